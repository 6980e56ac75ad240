"""Topic filters against paho's matcher and against each other; which route takes what; whose sample it is."""

from __future__ import annotations

from urllib.parse import unquote

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from paho.mqtt.client import topic_matches_sub

from gateway.common.domain.errors import ConfigurationError, RequestError
from gateway.serving.frontends.mqtt.inbound.routing import Router, sensor_of
from gateway.serving.frontends.mqtt.messages import Message
from gateway.serving.frontends.mqtt.settings.route import MqttRoute
from gateway.serving.frontends.mqtt.settings.templates import topic_level
from gateway.serving.frontends.mqtt.settings.topic_filters import read_filter

words = st.sampled_from(["", "a", "b", "c", "$x"])
topics = st.lists(words, min_size=1, max_size=5).map("/".join).filter(bool)
levels = st.one_of(words, st.just("+"))
filters = st.tuples(st.lists(levels, min_size=1, max_size=4), st.booleans()).map(
    lambda drawn: "/".join([*drawn[0], "#"] if drawn[1] else drawn[0])
)


@given(filters, topics)
def test_filters_match_as_pahos_do(text: str, topic: str) -> None:
    assume(text)
    assert read_filter(text).takes(topic.split("/")) == topic_matches_sub(text, topic)


@given(filters, filters, topics)
def test_filters_that_share_a_topic_overlap(one: str, other: str, topic: str) -> None:
    assume(one and other)
    first, second = read_filter(one), read_filter(other)
    assert first.overlaps(second) == second.overlaps(first)
    if first.takes(topic.split("/")) and second.takes(topic.split("/")):
        assert first.overlaps(second)


@given(st.lists(filters.filter(bool), min_size=1, max_size=5), topics)
def test_subscriptions_cover_the_topics_of_all_routes_and_do_not_overlap(texts: list[str], topic: str) -> None:
    own = [f"x/{text}" for text in texts]
    routes = [MqttRoute(f"{index}", (text,), "model", qos=index % 2) for index, text in enumerate(own)]
    router, words = Router(routes, "gw"), f"x/{topic}".split("/")
    assert [one.name for one in router.routes(f"x/{topic}")] == [
        f"{index}" for index, text in enumerate(own) if read_filter(text).takes(words)
    ]
    found = [(read_filter(one.filter), one.qos) for one in router.subscriptions]
    assert not any(one.overlaps(other) for one, _ in found for other, _ in found if one is not other)
    qualities = [qos for one, qos in found if one.takes(words)]
    assert all(route.qos <= qualities[0] for route in router.routes(f"x/{topic}"))
    assert router.is_subscribed(f"x/{topic}") == bool(qualities)


@pytest.mark.parametrize(
    ("topics", "subscribed"),
    [
        (("a/+/c", "a/b/+"), ["a/+/+"]),
        (("a/b", "a/#", "a/+"), ["a/#"]),
        (("a", "a/#"), ["a/#"]),
        (("a/b/+", "a/+/c", "a/d/e"), ["a/+/+"]),
        (("a/b/#", "a/+/c"), ["a/+/#"]),
        (("a/b", "a/c", "a/b"), ["a/c", "a/b"]),
        (("$share/g/a/+/c", "$share/g/a/b/+"), ["$share/g/a/+/+"]),
        (("$SYS/broker", "+/load"), ["$SYS/broker", "+/load"]),
    ],
)
def test_overlapping_filters_have_a_common_cover(topics: tuple[str, ...], subscribed: list[str]) -> None:
    routes = [MqttRoute(f"{index}", (text,), "model", qos=index % 2) for index, text in enumerate(topics)]
    assert [one.filter for one in Router(routes, "gw").subscriptions] == subscribed


@pytest.mark.parametrize(
    "text", ["", "a+", "a/b+/c", "#/a", "a#", "a/#b", "a\0", "$share/g", "$share//a", "$share/+/a"]
)
def test_bad_filters_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_filter(text)


def route(name: str, *topics: str, sensor: str = "topic") -> MqttRoute:
    return MqttRoute(name, topics, "model", sensor=sensor)


def test_a_topic_goes_to_its_routes_and_is_remembered() -> None:
    router = Router((route("a", "a/+"), route("b", "$share/g/b/#")), "gw")
    for _ in range(2):
        assert [found.name for found in router.routes("a/1")] == ["a"]
        assert router.routes("a/1/2") == ()
        assert [found.name for found in router.routes("b/1/2")] == ["b"]
    assert [subscription.filter for subscription in router.subscriptions] == ["a/+", "$share/g/b/#"]


@pytest.mark.parametrize(
    ("routes", "key"),
    [
        ((route("a", "a/+/c"), route("b", "+/b/c")), "topics"),  # +/+/c is a topic of the gateway, too
        ((route("a", "$share/g/a/+"), route("b", "$share/h/a/b")), "topics"),
        ((route("a", "$share/g/a/+/c"), route("b", "$share/g/a/b/+"), route("c", "a/d/d")), "topics"),
        ((route("a", "a/#"), route("b", "$share/g/a")), "topics"),
        ((route("a", "#"),), "topics"),
        ((route("a", "edge/+/results/#"),), "topics"),
        ((route("a", "a+"),), "topics"),
        ((route("a", "a/+", sensor="topic[2]"),), "sensor"),
    ],
)
def test_routes_that_cannot_work_are_refused_by_name(routes: tuple[MqttRoute, ...], key: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Router(routes, "gw")
    assert refused.value.key == key
    assert refused.value.table.startswith("mqtt.route[")


@given(st.text(max_size=30))
def test_a_sensor_is_one_level_of_a_topic(name: str) -> None:
    level = topic_level(name)
    assert not set(level) & set("+#/\0\n")
    assert unquote(level, errors="surrogatepass") == name  # so names that differ have levels that differ


def test_sensors_of_different_names_have_different_topics() -> None:
    levels = [topic_level(name) for name in ("a/b", "a_b", "a%2Fb", "a+b", "å b")]
    assert levels == ["a%2Fb", "a_b", "a%252Fb", "a%2Bb", "å b"]


@pytest.mark.parametrize(
    ("rule", "sensor"),
    [("topic", "a/b"), ("topic[1]", "b"), ("property.who", "w"), ("payload.d.id", "p"), ("payload.n", "7")],
)
def test_sensors_are_named_by_rule(rule: str, sensor: str) -> None:
    message = Message("a/b", b"", user=(("who", "w"),))
    assert sensor_of(rule, message, {"d": {"id": "p"}, "n": 7}) == sensor


@pytest.mark.parametrize("rule", ["topic[5]", "property.no", "payload.no.no", "payload.d", "payload.long", "payload.t"])
def test_a_message_that_does_not_name_its_sensor_is_refused(rule: str) -> None:
    with pytest.raises(RequestError, match="sensor"):
        sensor_of(rule, Message("a/b", b""), {"d": {}, "long": "x" * 999, "t": True})
