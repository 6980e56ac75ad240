"""Results of a route on their way to the outbox: what is refused there, timers, and bounds."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.tensor import Tensor
from gateway.serving.domain.infer import InferResponse, ResponseForm
from gateway.serving.frontends.mqtt.messages import Message, OutgoingPublish
from gateway.serving.frontends.mqtt.outbound.contents import plan_results
from gateway.serving.frontends.mqtt.outbound.context import RouteContext
from gateway.serving.frontends.mqtt.outbound.delivery import Debt
from gateway.serving.frontends.mqtt.outbound.inputs import Ready
from gateway.serving.frontends.mqtt.outbound.publish_topics import PublishTopics
from gateway.serving.frontends.mqtt.outbound.results import RouteResults
from gateway.serving.frontends.mqtt.settings.broker import MqttSettings
from gateway.serving.frontends.mqtt.settings.results import ResultSettings
from gateway.serving.frontends.mqtt.settings.route import MqttRoute
from gateway.serving.frontends.mqtt.settings.rules import RuleSettings
from tests.simulators.constants import settings_with
from tests.simulators.mqtt_gateway import simulated
from tests.unit.serving.frontends.mqtt.test_results import ABC, fp32, model, out

MODEL = model(out("y", -1, 3), labels=ABC)
A, B = [[1, 0, 0]], [[0, 1, 0]]


class Outbox:
    """Outlet that keeps what is published, or accepts nothing."""

    full = False
    receives_since_ns = 0

    def __init__(self) -> None:
        self.accepts = True
        self.published: list[OutgoingPublish] = []

    def publish(self, publication: OutgoingPublish) -> bool:
        self.published += [publication] if self.accepts else []
        return self.accepts

    def acknowledge(self, message: Message) -> None: ...
    def pause(self, *, on: bool) -> None: ...


class Rig:
    """Results of one route, with a clock of the test."""

    def __init__(
        self, *rules: RuleSettings, max_sensors: int = 10, permitted: tuple[str, ...] = (), **result: Any
    ) -> None:
        self.outbox, self.now_ns, self.counters = Outbox(), 0, Counter[str]()
        self.route = settings_with(
            MqttRoute("r", ("a/+",), "m", result=ResultSettings(**result), rule=rules), max_sensors=max_sensors
        )
        settings, topics = MqttSettings(max_result_bytes=2**16), PublishTopics(permitted, "gw", self.counters)
        context = RouteContext(simulated(), settings, "gw", self.outbox, self.counters, topics)
        self.results = RouteResults(self.route, context, lambda: self.now_ns)

    def result(self, scores: Any, sensor: str = "s") -> OutgoingPublish | None:
        """Return what an answer publishes; an outbox that accepts nothing drops it."""
        tensor = fp32(scores)
        plan = plan_results(MODEL, (), self.route.result)
        ready = Ready(sensor, MODEL, plan, Tensor(tensor.datatype, tensor.array), 0, 1_500_000_000)
        debt = Debt(Message("a/s", b"", user=(("traceparent", "t"), ("x", "y"))), 1, "", identity="i-1")
        payload = self.results.encode(debt, ready, lambda *_: plan, InferResponse("m", "1", "i", {"y": tensor}, "v"))
        if payload is None:
            return None
        if not self.outbox.accepts:
            debt.drop()
        return debt.publication(payload, lambda _: None)


def test_every_placeholder_has_its_value() -> None:
    names = ("gateway", "route", "sensor", "model", "version", "variant", "id", "started_at", "ended_at", "label")
    template = "[" + ", ".join(f"{{{name}}}" for name in (*names, "score", "value")) + "]"
    sent = Rig(template=template).result(B)
    assert sent is not None
    assert json.loads(sent.payload) == [
        *("gw", "r", "s", "m", "1", "v", "i-1", "1970-01-01T00:00:00.000Z", "1970-01-01T00:00:01.500Z", "b", 1.0, "b"),
    ]
    assert (sent.content_type, sent.user) == ("application/json", (("traceparent", "t"),))


@given(
    scores=st.lists(st.floats(width=32), min_size=3, max_size=3),
    names=st.sampled_from([(), ("y",)]),
    result=st.sampled_from([{}, {"content": "scores"}, {"content": "scores", "top_k": 2}, {"content": "values"}]),
    labels=st.booleans(),
    wall_ns=st.integers(0, 10**19),
)
def test_plain_results_are_the_same_bytes_on_either_way(
    scores: list[float], names: tuple[str, ...], result: dict[str, Any], labels: bool, wall_ns: int
) -> None:
    rig, tensor = Rig(retain=True, expiry_s=9, **result), fp32([scores])
    manifest = MODEL if labels else model(out("y", -1, 3), out("z", 1))
    outputs = {"y": tensor} if labels else {"y": tensor, "z": fp32([0.1])}
    plan = plan_results(manifest, names, rig.route.result)
    like = Ready("s", manifest, plan, tensor, wall_ns, wall_ns)
    usual, quick = (Debt(Message("a/s", b"", wall_ns=wall_ns), 1, "", identity="i-1") for _ in range(2))
    assert rig.results.is_plain
    written = rig.results.encode(usual, like, lambda *_: plan, InferResponse("m", "1", "i", outputs, "v"))
    answer = ResponseForm("m", "1", (), "v"), outputs
    found = rig.results.encode_plain(quick, "s", replace(like, sensor=""), plan, answer)
    assert (found, quick.topic, quick.result) == (written, usual.topic, usual.result)


@pytest.mark.parametrize(
    "result",
    [{"publish": "change"}, {"payload": "value"}, {"template": "{value}"}, {"topic": "edge/gw/results/{label}"}],
)
def test_results_that_need_their_values_are_not_plain(result: dict[str, Any]) -> None:
    assert not Rig(**result).results.is_plain


def test_json_without_placeholders_is_a_template_too() -> None:
    sent = Rig(template='{"seen": true}').result(A)
    assert sent is not None
    assert sent.payload == b'{"seen": true}'


def test_a_change_that_was_not_accepted_is_published_with_the_next_result() -> None:
    rig = Rig(publish="change")
    rig.outbox.accepts = False
    assert rig.result(A) is not None
    rig.outbox.accepts = True
    assert rig.result(A) is not None
    assert rig.result(A) is None


def test_sensors_whose_last_result_is_remembered_are_bounded() -> None:
    rig = Rig(publish="change", max_sensors=2)
    assert [rig.result(A, sensor) is None for sensor in "abab"] == [False, False, True, True]
    assert [rig.result(A, sensor) is None for sensor in "cab"] == [False, False, False]


def test_a_result_without_label_and_value_is_always_published() -> None:
    rig = Rig(publish="change")
    assert [rig.result([[float("nan"), 0, 0]]) is None for _ in range(2)] == [False, False]


def test_an_answer_without_rows_has_no_values() -> None:
    sent = Rig(topic="home/{label}", payload="value").result(np.zeros((0, 3), np.float32))
    assert sent is not None
    assert (sent.topic, sent.payload) == ("home/_", b"")


def test_topics_are_bounded_however_long_values_are() -> None:
    sent = Rig(topic="home/{sensor}/{sensor}/{label}").result(A, "é/" * 2000)
    assert sent is not None
    assert len(sent.topic) <= 1024
    assert sent.topic.count("/") == 3


def test_text_that_is_no_unicode_is_sent_replaced() -> None:
    sent = Rig(payload="text", template="{sensor}").result(A, "\ud800")
    assert sent is not None
    assert sent.payload == b"?"


@pytest.mark.asyncio
async def test_heartbeats_need_one_timer_and_end_with_the_route() -> None:
    rig = Rig(RuleSettings("q", heartbeat_s=0.1), publish="never")
    assert rig.result(A) is None
    assert [each.payload for each in rig.outbox.published] == [b"a"]
    while len(rig.outbox.published) < 3:
        rig.now_ns += 50_000_000  # the timer may come before this clock says so: then it is set again
        await asyncio.sleep(0.01)
    rig.results.close()
    sent = len(rig.outbox.published)
    rig.result(B)
    assert [each.payload for each in rig.outbox.published[sent:]] == [b"b"]
    assert not [
        handle
        for handle in asyncio.get_running_loop()._scheduled
        if "_expire" in repr(handle) and not handle.cancelled()
    ]  # type: ignore[attr-defined]
