"""Templates: only known placeholders, no expressions, JSON that stays JSON, topics that stay topics."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.errors import ConfigurationError
from gateway.serving.frontends.mqtt.inbound.routing import Router
from gateway.serving.frontends.mqtt.settings.results import ResultSettings
from gateway.serving.frontends.mqtt.settings.route import MqttRoute
from gateway.serving.frontends.mqtt.settings.rules import RuleSettings
from gateway.serving.frontends.mqtt.settings.templates import (
    NAMES,
    RULE_NAMES,
    MessageTemplate,
    Value,
    read_template,
    render_topic,
    write_json,
    write_text,
)

values = st.none() | st.booleans() | st.floats() | st.text()
NASTY = 'a"b\\ {label}/+#$\n\0é'


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", ""),
        ("{label}", "walk"),
        ("a {label} b {score}", "a walk b 0.5"),
        ("{{label}}", "{walk}"),
        ("{label.__class__}{label!r}{label:>9}{}{0}{ label }", "{label.__class__}{label!r}{label:>9}{}{0}{ label }"),
        ("%s $label ${label}", "%s $label $walk"),
    ],
)
def test_only_names_in_braces_are_placeholders(text: str, wanted: str) -> None:
    assert read_template(text, NAMES).render({"label": "walk", "score": 0.5}, write_text) == wanted


@given(st.text(), values)
def test_a_value_is_never_read_as_a_template(prefix: str, value: Value) -> None:
    text = prefix.replace("{", "") + "{label}"
    rendered = read_template(text, NAMES).render({"label": value}, write_text)
    assert rendered == prefix.replace("{", "") + write_text(value)


@given(values, values)
def test_json_stays_json_whatever_the_values_are(label: Value, score: Value) -> None:
    template = read_template('{"label": {label}, "deep": [{"score": {score}}]}', NAMES)
    parsed: Any = json.loads(template.render({"label": label, "score": score}, write_json))
    assert parsed["label"] == _as_json(label)
    assert parsed["deep"] == [{"score": _as_json(score)}]


def _as_json(value: Value) -> Any:
    if isinstance(value, bool):
        return "on" if value else "off"
    return None if isinstance(value, float) and not math.isfinite(value) else value


@given(values)
def test_a_value_in_a_topic_is_a_part_of_one_level(value: Value) -> None:
    topic = render_topic(MessageTemplate(("a/", "sensor", "/b")), {"sensor": value})
    assert topic.count("/") == 2
    assert not set(topic) & set("+#\0")
    assert "//" not in topic


@pytest.mark.parametrize(
    ("settings", "key", "problem"),
    [
        ({"topic": "a/{who}"}, "topic", "no placeholder {who}; known ones are gateway"),
        ({"topic": ""}, "topic", "without"),
        ({"topic": "a/+/b"}, "topic", "without +, #"),
        ({"topic": "$SYS/{sensor}"}, "topic", "begin with"),
        ({"topic": "x" * 5000}, "topic", "at most 4096 characters"),
        ({"payload": "xml"}, "payload", "json, text, value"),
        ({"payload": "text"}, "template", "needs it"),
        ({"payload": "value", "template": "{label}"}, "template", "has none"),
        ({"payload": "text", "template": "{state}"}, "template", "no placeholder {state}"),
        ({"template": '{"a": "{label}"}'}, "template", "without quotes"),
        ({"template": '{"a": {label}'}, "template", "makes no JSON"),
        ({"template": '{"a": {label}, "b": NaN}'}, "template", "makes no JSON"),
        ({"template": "[" * 4000}, "template", "makes no JSON"),
        ({"publish": "often"}, "publish", "always, change, never"),
        ({"content": "boxes"}, "content", "label, scores, values"),
        ({"max_qos": 2}, "max_qos", "0 or 1"),
        ({"expiry_s": 2**32}, "expiry_s", "seconds"),
    ],
)
def test_templates_are_checked_when_the_configuration_is_read(settings: dict[str, Any], key: str, problem: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        ResultSettings(**settings)
    assert refused.value.key == key
    assert problem in refused.value.problem


@pytest.mark.parametrize(
    ("topic", "problem"),
    [
        ("sensors/{sensor}/imu", "may lead to route 'wrists'"),
        ("{label}/{sensor}/imu", "may lead to route 'wrists'"),
        ("{label}/x", "topic of the gateway"),
        ("edge/{gateway}/infer/{sensor}", "topic of the gateway"),
        ("edge/{gateway}/status", "topic of the gateway"),
        ("edge/other/results/{sensor}", "topic of the gateway"),
        ("edge/{sensor}/results", "topic of the gateway"),
        ("edge/{gateway}", "topic of the gateway"),
    ],
)
@pytest.mark.parametrize("place", ["result", "rule"])
def test_results_and_rules_never_come_back_to_the_gateway(topic: str, problem: str, place: str) -> None:
    result = ResultSettings(topic=topic) if place == "result" else ResultSettings()
    rules = (RuleSettings("r", topic=topic),) if place == "rule" else ()
    route = MqttRoute("wrists", ("sensors/+/imu",), "m", result=result, rule=rules)
    with pytest.raises(ConfigurationError) as refused:
        Router([route], "gw")
    assert problem in refused.value.problem


def chain(*names: str, last: str = "end/{sensor}") -> list[MqttRoute]:
    """Return routes of which each takes the results of the one before it."""
    topics = [f"{name}/{{sensor}}" for name in names[1:]] + [last]
    results = [ResultSettings(topic=topic) for topic in topics]
    return [MqttRoute(name, (f"{name}/+",), "m", result=result) for name, result in zip(names, results, strict=True)]


def test_a_route_takes_results_of_another_but_not_in_a_circle() -> None:
    router = Router(chain("a", "b", "c"), "gw")
    assert [route.name for route in router.routes("b/1")] == ["b"]
    for last in ("a/{sensor}", "b/{sensor}", "c/{sensor}", "{sensor}/{sensor}"):
        with pytest.raises(ConfigurationError, match="and from there back to"):
            Router(chain("a", "b", "c", last=last), "gw")
    rule = RuleSettings("r", topic="a/{sensor}")
    first, last_ = chain("a", "b")
    with pytest.raises(ConfigurationError, match="may lead to route 'b', and from there back to 'a'"):
        Router([first, replace(last_, rule=(rule,))], "gw")


@pytest.mark.parametrize("topic", ["edge/{gateway}/results/{label}", "home/{sensor}/{label}", "edge/gw/rules/x"])
def test_other_topics_are_free(topic: str) -> None:
    result, rule = ResultSettings(topic=topic), RuleSettings("r", topic=topic)
    Router([MqttRoute("wrists", ("sensors/+/imu",), "m", result=result, rule=(rule,))], "gw")


def test_rules_have_two_placeholders_more() -> None:
    assert set(RULE_NAMES) - set(NAMES) == {"rule", "state"}
    assert read_template(NASTY, NAMES).names == {"label"}
