"""What hostile publishers, brokers and retained documents must not do."""

from __future__ import annotations

from collections import Counter
from typing import Any

import cbor2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.errors import RequestError
from gateway.serving.frontends.mqtt.home_assistant.announcements import _read
from gateway.serving.frontends.mqtt.home_assistant.documents import with_removals
from gateway.serving.frontends.mqtt.inbound.payloads.content import read_content_type
from gateway.serving.frontends.mqtt.inbound.payloads.documents import read_cbor
from gateway.serving.frontends.mqtt.inbound.payloads.sparkplug import METRICS_LIMIT, Births
from gateway.serving.frontends.mqtt.inbound.requests import Requests
from gateway.serving.frontends.mqtt.inbound.routing import Router
from gateway.serving.frontends.mqtt.messages import Message, OutgoingPublish
from gateway.serving.frontends.mqtt.outbound.contents import ResultPlan
from gateway.serving.frontends.mqtt.outbound.rows import ResultRow
from gateway.serving.frontends.mqtt.outbound.rules import DUE_SPARE, RouteRules
from gateway.serving.frontends.mqtt.session.outbox import Outbox
from gateway.serving.frontends.mqtt.settings.broker import MqttSettings
from gateway.serving.frontends.mqtt.settings.rules import RuleSettings
from gateway.serving.frontends.mqtt.settings.templates import NAMES, is_topic, read_template, render_topic, topic_level
from tests.simulators.mqtt_gateway import simulated
from tests.simulators.sparkplug import metric, payload

CBOR = read_content_type("application/cbor")
UNFIT = ("\ufffe", "\U0010ffff", "\ufdd0", "\x01", "\x7f", "\x9f", "\n", "\0", "+", "#", "\ud800")


@given(st.text(max_size=400))
def test_any_name_becomes_a_level_that_may_be_published(name: str) -> None:
    topic = render_topic(read_template("edge/{sensor}/x", NAMES), {"sensor": name})
    assert is_topic(topic)
    assert topic.count("/") == 2


@pytest.mark.parametrize("character", UNFIT, ids=ascii)
def test_a_character_that_no_topic_may_hold_is_replaced(character: str) -> None:
    assert is_topic(topic_level(f"a{character}b"))
    assert not is_topic(f"a{character}b")


@pytest.mark.parametrize("character", ["\\u0001", "\\n", "\\u007f", "\\ufffe"])
def test_a_request_cannot_name_such_a_topic(character: str) -> None:
    requests = Requests(MqttSettings(url="mqtt://x"), "gw", Router((), "gw"), simulated().describe)
    body = f'{{"parameters": {{"reply_topic": "answers/{character}"}}}}'.encode()
    with pytest.raises(RequestError, match="must be a topic without"):
        requests.reply(Message("edge/gw/infer/m", body))


@pytest.mark.parametrize("body", [b'{"parameters": {"reply_topic": "\xff"}}', b'{"x": ' + b"[" * 5_000])
def test_a_body_that_cannot_be_read_has_no_reply_topic(body: bytes) -> None:
    requests = Requests(MqttSettings(url="mqtt://x"), "gw", Router((), "gw"), simulated().describe)
    with pytest.raises(RequestError, match="no Response Topic"):
        requests.reply(Message("edge/gw/infer/m", body))


@pytest.mark.parametrize("payload", [b"[" * 5_000, b'{"a": "\xff"}', b"1", b""])
def test_a_retained_document_of_any_form_is_read_as_empty(payload: bytes) -> None:
    assert _read(payload) == {}


@pytest.mark.parametrize("components", [[1], "abc", {"a": 1}, 1, None, {"a": {"platform": 1}}, {"a": {}}])
def test_a_forged_document_removes_nothing(components: Any) -> None:
    document: dict[str, Any] = {"components": {"label": {"platform": "sensor"}}}
    assert with_removals(document, {"components": components}) == document


@pytest.mark.parametrize(
    "value",
    [
        cbor2.CBORTag(35, "(?i)" + "[\u0001-\U0010ffff]" * 500),
        cbor2.CBORTag(36, "MIME-Version: 1.0"),
        cbor2.CBORTag(4, [1, 2]),
        2**20_000,
        -(2**20_000),
    ],
    ids=["regular expression", "MIME", "decimal", "large", "large negative"],
)
def test_tagged_values_of_cbor_are_refused_before_they_are_built(value: Any) -> None:
    with pytest.raises(RequestError, match="the payload is not application/cbor"):
        read_cbor(cbor2.dumps({"a": value}), CBOR)


def test_births_of_one_node_are_bounded() -> None:
    births = Births()
    empty = b""
    for index in range(METRICS_LIMIT + 100):
        topic = f"spBv1.0/g/DBIRTH/n/d{index}"
        births.apply(births.read(topic, empty), Message(topic, empty))
    assert births.held <= METRICS_LIMIT
    large = payload(*(metric(f"m{index}", None, 3, integer=1) for index in range(4_000)))
    for index in range(20):
        topic = f"spBv1.0/g/DBIRTH/n/large{index}"
        births.apply(births.read(topic, large), Message(topic, large))
    assert births.held <= METRICS_LIMIT


def test_the_outbox_counts_everything_that_a_publication_holds() -> None:
    outbox = Outbox(100, 1_000, 10)
    outbox.put(OutgoingPublish("t", b"", correlation=b"c" * 500, user=(("tracestate", "s" * 600),)))
    assert outbox.full


def test_the_queue_of_due_times_does_not_outgrow_the_states() -> None:
    rules = RouteRules((RuleSettings("r", heartbeat_s=3_600.0),), 100, Counter())
    for number in range(5_000):
        row = ResultRow(ResultPlan("y", 2, ("a", "b")), np.array([0.9, 0.1], np.float32), {})
        for one in rules.observe(f"s{number}", row, {}, number):
            one.sent(number, accepted=True)
        rules.due_ns()
    assert len(rules._due) <= DUE_SPARE + 2 * 100 + 1
