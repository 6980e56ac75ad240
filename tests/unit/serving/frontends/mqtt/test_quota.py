"""Quotas of sensors: names, rate and burst of each sensor, errors now and then, and bounds."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.common.domain.errors import ConfigurationError
from gateway.serving.config import parse_config
from gateway.serving.frontends.mqtt.inbound.limits import RouteQuotas, SensorQuota
from gateway.serving.frontends.mqtt.inbound.routing import Router
from gateway.serving.frontends.mqtt.messages import Message
from gateway.serving.frontends.mqtt.outbound.context import RouteContext
from gateway.serving.frontends.mqtt.outbound.delivery import Delivery
from gateway.serving.frontends.mqtt.settings.broker import MqttSettings
from gateway.serving.frontends.mqtt.settings.route import MqttQuota, MqttRoute
from tests.simulators.constants import settings_with
from tests.simulators.examples import examples
from tests.simulators.mqtt_gateway import simulated
from tests.unit.serving.frontends.mqtt.test_route_results import Outbox

SECOND_NS = 1_000_000_000


def route(sensor: str = "topic[1]", **quota: Any) -> MqttRoute:
    return MqttRoute("r", ("a/+/#",), "m", sensor=sensor, quota=settings_with(MqttQuota(2.0), **quota))


@pytest.mark.parametrize(
    ("of", "name"),
    [
        (route(), "left"),
        (route(sensor="topic"), "a/left/b"),
        (route(by="topic[1:]"), "left/b"),
        (route(sensor="payload.id", by="topic[1]"), "left"),
        (route(by="property.client"), "c-7"),
        (route(by="property.other"), ""),
    ],
)
def test_a_message_counts_for_the_name_that_the_route_says(of: MqttRoute, name: str) -> None:
    message = Message("a/left/b", b"", user=(("client", "c-7"), ("client", "x")))
    assert SensorQuota(of, 10.0).name_of(message) == name


def test_a_long_name_counts_by_its_beginning() -> None:
    message = Message("a/" + "x" * 5_000, b"")
    assert len(SensorQuota(route(), 10.0).name_of(message)) == 256


EVENTS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, SECOND_NS)), max_size=200)


@settings(max_examples=examples(200), deadline=None)
@given(rate=st.floats(0.1, 50), burst=st.integers(0, 20), events=EVENTS)
def test_a_sensor_gets_its_rate_and_burst_whatever_others_send(
    rate: float, burst: int, events: list[tuple[str, int]]
) -> None:
    """No span of time has more than burst + rate · span messages; no message is dropped that fits alone."""
    limited = route(messages_per_s=rate, burst=burst)
    quota, alone = SensorQuota(limited, 10.0), {name: SensorQuota(limited, 10.0) for name in "abc"}
    now_ns, granted = 0, defaultdict[str, list[int]](list)
    for name, pause_ns in events:
        now_ns += pause_ns
        taken = quota.take(name, now_ns)
        assert taken == alone[name].take(name, now_ns)
        granted[name] += [now_ns] if taken else []
    for times in granted.values():
        for first, begin_ns in enumerate(times):
            for count, end_ns in enumerate(times[first:], 1):
                span_s = (end_ns - begin_ns) / SECOND_NS
                assert count <= limited.quota.allowance + rate * span_s + 1e-6


def test_of_too_many_sensors_the_one_that_sent_least_recently_is_forgotten() -> None:
    quota = SensorQuota(route(burst=1, max_sensors=2), 10.0)
    assert [quota.take(name, 0) for name in "abab"] == [True, True, False, False]
    assert quota.take("c", 0)
    assert [quota.take("b", 0), quota.take("a", 0)] == [False, True]
    assert [quota.is_error_due(name, 0) for name in "abaca"] == [True, True, False, True, True]


def test_a_message_beyond_the_quota_is_acknowledged_counted_and_reported_now_and_then() -> None:
    acknowledged: list[Message] = []
    outbox, counters = Outbox(), Counter[str]()
    outbox.acknowledge = acknowledged.append  # type: ignore[method-assign]
    of = settings_with(MqttSettings(url="mqtt://x", route=(limited := route(burst=1),)), error_repeat_s=10.0)
    quotas = RouteQuotas.of(of, Delivery(RouteContext(simulated(), of, "gw", outbox, counters)))
    assert quotas is not None
    admitted = [
        quotas.admits(limited, Message(f"a/{name}", b"", 1, arrived_ns=ms * 1_000_000))
        for ms, name in ((0, "x"), (1, "x"), (2, "x"), (3, "y"), (600, "x"), (11_000, "x"), (11_001, "x"))
    ]
    assert admitted == [True, False, False, True, True, True, False]
    assert counters["dropped_quota"] == len(acknowledged) == 3
    assert [each.topic for each in outbox.published] == ["edge/gw/errors"] * 2
    assert b"'x' sends more than 2 messages per second (quota of route 'r')" in outbox.published[0].payload


def test_routes_without_a_quota_cost_nothing() -> None:
    outbox = Outbox()
    of = MqttSettings(url="mqtt://x", route=(MqttRoute("r", ("a/+",), "m"),))
    assert RouteQuotas.of(of, Delivery(RouteContext(simulated(), of, "gw", outbox, Counter()))) is None


@pytest.mark.parametrize(
    ("key", "quota"),
    [
        ("messages_per_s", "messages_per_s = 2e6"),
        ("messages_per_s", "burst = 5"),
        ("burst", "messages_per_s = 1.0\nburst = 4_000_000_000"),
        ("by", 'messages_per_s = 1.0\nby = "payload.id"'),
        ("quota.by", "messages_per_s = 1.0"),
    ],
)
def test_quotas_that_cannot_work_are_refused(key: str, quota: str) -> None:
    text = '[[mqtt.route]]\nname = "r"\ntopics = ["a"]\nmodel = "m"\nsensor = "payload.id"\n[mqtt.route.quota]\n'
    with pytest.raises(ConfigurationError) as refused:
        parse_config(text + quota, "")
    assert refused.value.key == key


def test_a_level_that_topics_do_not_have_is_refused() -> None:
    short = MqttRoute("r", ("a/+",), "m", quota=MqttQuota(messages_per_s=1.0, by="topic[2]"))
    with pytest.raises(ConfigurationError, match=r"^mqtt\.route\[r\]\.quota\.by: topic\[2\] is beyond the 2 levels"):
        Router((short,), "gw")
