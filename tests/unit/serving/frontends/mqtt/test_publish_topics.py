"""Topics on which the gateway may publish: filters, templates at the start, and each message."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.common.domain.errors import ConfigurationError, Fault, RequestError
from gateway.serving.frontends.mqtt.frontend import MqttFrontend
from gateway.serving.frontends.mqtt.inbound.requests import Requests
from gateway.serving.frontends.mqtt.inbound.routing import Router
from gateway.serving.frontends.mqtt.messages import Message
from gateway.serving.frontends.mqtt.outbound.publish_topics import PublishTopics
from gateway.serving.frontends.mqtt.settings.broker import MqttSettings
from gateway.serving.frontends.mqtt.settings.results import ResultSettings
from gateway.serving.frontends.mqtt.settings.route import MqttRoute
from gateway.serving.frontends.mqtt.settings.rules import RuleSettings
from gateway.serving.frontends.mqtt.settings.topic_filters import TopicFilter
from tests.simulators.examples import examples
from tests.simulators.mqtt_gateway import simulated
from tests.unit.serving.frontends.mqtt.test_route_results import A, B, Rig

LEVELS = st.lists(st.sampled_from(["a", "b", "+"]), min_size=1, max_size=4)
FILTERS = st.tuples(LEVELS, st.booleans()).map(lambda both: TopicFilter((*both[0], *(["#"] if both[1] else []))))
TOPICS = st.lists(st.sampled_from(["a", "b", ""]), min_size=1, max_size=5)


def topics(*filters: str) -> PublishTopics:
    return PublishTopics(filters, "gw", Counter())


def route(result: str = "", **more: Any) -> MqttRoute:
    form = ResultSettings(topic=result) if result else ResultSettings()
    return MqttRoute(**({"name": "r", "topics": ("a/+",), "model": "m", "result": form} | more))


@pytest.mark.parametrize("topic", ["edge/gw/results/r/s", "edge/gw", "plant/7/alarm"])
def test_a_topic_is_permitted_if_a_filter_matches_it(topic: str) -> None:
    topics("edge/<id>/#", "plant/+/alarm").check(topic)
    topics().check(topic)


@pytest.mark.parametrize("topic", ["edge/other/results", "plant/7/alarm/8", "plant/alarm", "PLANT/7/alarm"])
def test_any_other_topic_is_refused_and_counted(topic: str) -> None:
    counters = Counter[str]()
    with pytest.raises(RequestError, match=f"may not publish on '{topic}'; permitted are edge/gw/#, plant") as refused:
        PublishTopics(("edge/<id>/#", "plant/+/alarm"), "gw", counters).check(topic)
    assert refused.value.fault is Fault.DENIED
    assert counters == {"publications_denied": 1}


@pytest.mark.parametrize("wrong", ["", "a/#/b", "a+", "$share/g/a", "$SYS/#"])
def test_filters_that_cannot_work_are_refused(wrong: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^mqtt\.publish_topics: "):
        topics(wrong)


@pytest.mark.parametrize(
    ("filters", "wrong", "said"),
    [
        (("plant/#",), route(), r"^mqtt\.route\.result\.topic: 'edge/.* of route 'r' is outside .* \(plant/#\)"),
        (("edge/<id>/#",), route("plant/{sensor}"), r"^mqtt\.route\.result\.topic: "),
        (
            ("edge/<id>/results/#",),
            route(rule=(RuleSettings("hot"),)),
            r"^mqtt\.route\.rule\[hot\]\.topic: 'edge/\{gateway\}/rules/",
        ),
        (
            ("edge/<id>/#", "spBv1.0/other/NCMD/+"),
            route(preset="sparkplug", topics=("spBv1.0/plant/+/#",)),
            r"^mqtt\.publish_topics: must have 'spBv1.0/plant/NCMD/\+'",
        ),
    ],
)
def test_templates_of_which_no_topic_is_permitted_are_refused_at_the_start(
    filters: tuple[str, ...], wrong: MqttRoute, said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        MqttFrontend(simulated(), MqttSettings(url="mqtt://a", publish_topics=filters, route=(wrong,)), "gw")


@pytest.mark.parametrize(
    ("filters", "fit"),
    [
        (("plant/7/#",), route("plant/{sensor}")),  # for some sensors only: each message is checked
        (("other",), MqttRoute("r", ("a",), "m", result=ResultSettings(publish="never"))),
        (("edge/gw/#", "spBv1.0/+/NCMD/#"), route(preset="sparkplug", topics=("spBv1.0/plant/+/#",))),
        (("#",), route(rule=(RuleSettings("hot"),))),
    ],
)
def test_templates_that_may_be_permitted_are_accepted(filters: tuple[str, ...], fit: MqttRoute) -> None:
    topics(*filters).check_route(fit)


@settings(max_examples=examples(300), deadline=None)
@given(wide=FILTERS, narrow=FILTERS, topic=TOPICS)
def test_a_filter_that_covers_another_one_matches_all_its_topics(
    wide: TopicFilter, narrow: TopicFilter, topic: list[str]
) -> None:
    assert wide.covers(wide)
    if wide.covers(narrow):
        assert wide.overlaps(narrow)
        assert not narrow.takes(topic) or wide.takes(topic)


def test_a_result_on_a_topic_that_is_not_permitted_is_refused_with_it() -> None:
    rig = Rig(topic="home/{sensor}", permitted=("home/left", "edge/#"))
    assert rig.result(A, "left") is not None
    with pytest.raises(RequestError, match="may not publish on 'home/right'"):
        rig.result(A, "right")


def test_an_error_takes_the_place_of_a_rules_message_and_is_not_repeated() -> None:
    rule = RuleSettings("hot", topic="alarms/{sensor}", labels=("b",))
    rig = Rig(rule, permitted=("edge/#", "alarms/left"))
    for scores in (A, B, B, B, A):
        rig.result(scores, "right")
        rig.result(scores, "left")
    sent = [(each.topic, each.payload) for each in rig.outbox.published]
    assert [payload for topic, payload in sent if topic == "alarms/left"] == [b"off", b"on", b"off"]
    errors = [json.loads(payload) for topic, payload in sent if topic == "edge/gw/errors"]
    assert [(each["topic"], each["fault"]) for each in errors] == [("alarms/right", "DENIED")] * 3
    assert not [topic for topic, _ in sent if topic == "alarms/right"]
    assert rig.counters["publications_denied"] == 3
    assert rig.counters["rule_messages"] == 3


def test_an_answer_goes_to_permitted_topics_only() -> None:
    requests = Requests(MqttSettings(url="mqtt://a"), "gw", Router((), "gw"), simulated().describe, topics("replies/#"))
    message = Message("edge/gw/infer/m", b"{}", response_topic="replies/a")
    assert requests.reply(message).topic == "replies/a"
    message.response_topic = "other/a"
    with pytest.raises(RequestError, match="may not publish on 'other/a'"):
        requests.reply(message)
