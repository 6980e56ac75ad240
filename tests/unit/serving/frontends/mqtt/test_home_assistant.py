"""Discovery documents of Home Assistant, and which of them are published, kept and removed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest import ModelManifest
from gateway.serving.frontends.mqtt.home_assistant import documents
from gateway.serving.frontends.mqtt.home_assistant.announcements import Announcements
from gateway.serving.frontends.mqtt.messages import Message, OutgoingPublish
from gateway.serving.frontends.mqtt.outbound.contents import plan_results
from gateway.serving.frontends.mqtt.settings.broker import HomeAssistantSettings
from gateway.serving.frontends.mqtt.settings.results import ResultSettings
from gateway.serving.frontends.mqtt.settings.route import MqttChannel, MqttRoute
from gateway.serving.frontends.mqtt.settings.rules import RuleSettings
from gateway.serving.tasks.interpreter import interpreter_of
from tests.simulators.constants import settings_with
from tests.simulators.mqtt_gateway import moves
from tests.unit.serving.frontends.mqtt.test_results import model, out

REGRESSOR = model(out("y", -1, 1))
SENSOR_KEYS = {
    *("platform", "unique_id", "name", "state_topic", "value_template"),
    *("state_class", "suggested_display_precision", "unit_of_measurement"),
}
KEYS = {
    "sensor": SENSOR_KEYS,
    "binary_sensor": SENSOR_KEYS - {"state_class"} | {"payload_on", "payload_off", "device_class", "entity_category"},
    "event": SENSOR_KEYS - {"state_class"} | {"event_types"},
}
"""Keys of components that Home Assistant documents, as far as they are used here."""


def route(*rules: RuleSettings, name: str = "wrists", **result: Any) -> MqttRoute:
    return MqttRoute(name, ("w/+",), "moves", result=ResultSettings(**result), rule=rules)


def document(route: MqttRoute, manifest: ModelManifest, sensor: str = "a") -> dict[str, Any] | None:
    plan = plan_results(manifest, route.outputs, route.result)
    return documents.sensor_document("gw", route, sensor, manifest, plan)


def components(route: MqttRoute, manifest: ModelManifest) -> dict[str, Any]:
    found = document(route, manifest)
    return {} if found is None else found["components"]


def test_a_device_has_what_home_assistant_documents() -> None:
    rules = RuleSettings("moving", labels=("walk",)), RuleSettings("steps", value="score", publish="result")
    found = document(route(*rules, RuleSettings("fall", value="score", above=(1,), publish="enter")), moves(), "left")
    assert found is not None
    assert found.keys() == {"device", "origin", "availability", "availability_mode", "components"}
    assert found["device"]["via_device"] == documents.gateway_document("gw")["device"]["identifiers"][0]
    assert found["device"]["serial_number"] == "left"
    assert [each["topic"] for each in found["availability"]] == ["edge/gw/status", "edge/gw/models/moves/status"]
    assert found["availability_mode"] == "all"
    for key, component in found["components"].items():
        assert component.keys() <= KEYS[component["platform"]]
        assert key.startswith(component["platform"]), "another platform makes another component"
    identities = [component["unique_id"] for component in found["components"].values()]
    assert len(set(identities)) == len(identities) == 5


def test_label_score_and_states_are_read_where_they_are_published() -> None:
    found = components(route(RuleSettings("moving", labels=("walk",))), moves())
    assert {key: (each["state_topic"], each.get("value_template")) for key, each in found.items()} == {
        "sensor_label": ("edge/gw/results/wrists/a", "{{ value_json.label }}"),
        "sensor_score": ("edge/gw/results/wrists/a", "{{ value_json.score }}"),
        "binary_sensor_rule_moving": ("edge/gw/rules/wrists/moving/a", None),
    }


def task(kind: str, *shape: int, labels: tuple[str, ...] = (), **options: Any) -> ModelManifest:
    """Return the manifest of a model with a task, as front ends see it."""
    found = interpreter_of(replace(model(out("y", -1, *shape), labels=labels), task=kind, task_options=options))
    assert found is not None
    return found.described


COLD = task("tabular-regression", 1, names=["temperature"], units=["°C"], scale=[0.1])
POWER = task("tabular-regression", 2, labels=("torque", "power"), units=["Nm", "W"], scale=[1.0, 100.0])
FORECAST = task("time-series-forecasting", 3, 2, quantiles=[], channels=["t", "h"], step=1.0, step_unit="h")
SCORES = task("anomaly-detection", 1, score="y", threshold=0.002)


@pytest.mark.parametrize(
    ("manifest", "wanted"),
    [
        (moves(), [("label", None, None), ("score", None, 3)]),
        (REGRESSOR, [("value", "V", 1)]),
        (task("image-classification", 2, labels=("a", "b")), [("label", None, None), ("score", None, 3)]),
        (COLD, [("value", "°C", 3)]),
        (POWER, [("value_0", "Nm", 2), ("value_1", "W", 0)]),
        (FORECAST, [("value_0", "K", 2), ("value_1", None, 2)]),
        (SCORES, [("score", None, 5)]),
        (task("embedding", 4), []),
    ],
)
def test_numbers_have_unit_and_decimals_by_task_and_channel(
    manifest: ModelManifest, wanted: list[tuple[str, str | None, int | None]]
) -> None:
    units = (MqttChannel("a.t", "t", unit="K"), MqttChannel("y", unit="V", scale=0.1))
    found = components(replace(route(), channel=units), manifest)
    read = {key: each for key, each in found.items() if each["platform"] == "sensor"}
    assert [
        (key.removeprefix("sensor_"), each.get("unit_of_measurement"), each.get("suggested_display_precision"))
        for key, each in read.items()
    ] == wanted
    for each in read.values():
        assert ("state_class" in each) is ("suggested_display_precision" in each)


def test_a_verdict_is_a_problem_in_home_assistant() -> None:
    rules = RuleSettings("alarm", value="anomalous"), RuleSettings("share", value="anomalous", aggregate="mean")
    found = components(route(*rules), SCORES)
    assert found["binary_sensor_anomalous"] | {"unique_id": ""} == {
        "platform": "binary_sensor",
        "name": "Anomalous",
        "device_class": "problem",
        "state_topic": "edge/gw/results/wrists/a",
        "value_template": "{{ value_json.anomalous }}",
        "payload_on": "True",
        "payload_off": "False",
        "unique_id": "",
    }
    assert found["binary_sensor_rule_alarm"]["device_class"] == "problem"
    assert (found["sensor_rule_share"]["platform"], found["sensor_rule_share"]["state_class"]) == (
        "sensor",
        "measurement",
    )


@pytest.mark.parametrize(
    ("route", "manifest", "wanted"),
    [
        (route(), REGRESSOR, {"sensor_value": "{{ value_json.outputs[0].data[0] }}"}),
        (route(content="values"), REGRESSOR, {"sensor_value": "{{ value_json.value }}"}),
        (route(payload="value"), REGRESSOR, {"sensor_value": None}),
        (route(payload="value"), moves(), {"sensor_label": None}),
        (route(payload="value"), SCORES, {"sensor_score": None}),
        (route(payload="value"), COLD, {"sensor_value": None}),
        (route(payload="value"), POWER, {}),
        (route(payload="value"), FORECAST, {}),
        (
            route(),
            POWER,
            {f"sensor_value_{place}": f"{{{{ value_json['values'][{place}].value }}}}" for place in (0, 1)},
        ),
        (
            route(),
            FORECAST,
            {f"sensor_value_{place}": f"{{{{ value_json.channels[{place}]['values'][0] }}}}" for place in (0, 1)},
        ),
        (route(), model(out("y", -1, 7)), {}),
        (route(payload="value"), model(out("y", -1, 7)), {}),
        (route(), model(out("y", -1, 1), out("z", -1, 1)), {}),
        (route(publish="never"), moves(), {}),
        (route(payload="text", template="{label}"), moves(), {}),
        (route(topic="home/{label}"), moves(), {}),
        (route(RuleSettings("r", topic="home/{state}"), publish="never"), moves(), {}),
        (route(RuleSettings("r", payload="text", template="{state}"), publish="never"), moves(), {}),
        (route(RuleSettings("r"), publish="never"), moves(), {"sensor_rule_r": None}),
        (
            route(RuleSettings("r", labels=("walk",), publish="leave"), publish="never"),
            moves(),
            {"event_rule_r": '{"event_type": "{{ value }}"}'},
        ),
        (route(RuleSettings("r", labels=("walk",), publish="enter", retain=True), publish="never"), moves(), {}),
    ],
)
def test_only_what_can_be_read_is_announced(
    route: MqttRoute, manifest: ModelManifest, wanted: dict[str, str | None]
) -> None:
    assert {key: each.get("value_template") for key, each in components(route, manifest).items()} == wanted


def test_ids_have_no_other_characters_and_differ() -> None:
    ids = {documents.object_id(name, sensor) for name in ("a.b", "a_b") for sensor in ("x", "x/y", "+", "é" * 256)}
    ids |= {documents.node_id("a.b"), documents.node_id("a_b")}
    assert len(ids) == 10
    assert all(each.replace("-", "_").isascii() and each.replace("-", "_").isidentifier() for each in ids)


def announcements(*routes: MqttRoute, **settings: Any) -> tuple[Announcements, Counter[str]]:
    counters: Counter[str] = Counter()
    settings_ = settings_with(HomeAssistantSettings(enabled=True), **settings)
    return Announcements(settings_, "gw", routes or (route(),), counters), counters


def seen(
    one: Announcements, sensor: str, manifest: ModelManifest, of: MqttRoute | None = None
) -> list[OutgoingPublish]:
    of = of or route()
    return one.seen(of, sensor, manifest, plan_results(manifest, of.outputs, of.result))


def retained(one: Announcements, publications: Sequence[OutgoingPublish]) -> list[OutgoingPublish]:
    """Give documents to another process's announcements, as the broker does."""
    found = []
    for each in publications:
        assert each.retain
        found += one.received(Message(each.topic, each.payload, retain=True))
    return found


def test_a_sensor_is_announced_once_and_when_its_document_changes() -> None:
    (one, _), manifest = announcements(), moves()
    (first,) = seen(one, "a", manifest)
    assert first.topic == f"homeassistant/device/edge_gw/{documents.object_id('wrists', 'a')}/config"
    assert seen(one, "a", manifest) == []
    assert seen(one, "a", moves()) == [], "another manifest, the same document"
    (second,) = seen(one, "a", moves("2"))
    assert json.loads(second.payload)["device"]["sw_version"] == "2"


def test_a_component_that_is_gone_is_removed() -> None:
    one, _ = announcements()
    seen(one, "a", moves())
    (changed,) = seen(one, "a", REGRESSOR)
    found = json.loads(changed.payload)["components"]
    assert found["sensor_label"] == found["sensor_score"] == {"platform": "sensor"}
    assert found["sensor_value"]["platform"] == "sensor"
    (gone,) = seen(one, "a", model(out("y", -1, 7)))
    assert gone.payload == b""


def test_after_a_restart_what_the_broker_has_is_not_announced_again() -> None:
    (before, _), (after, counters), manifest = announcements(), announcements(), moves()
    assert retained(after, [*before.connected(), *seen(before, "a", manifest)]) == []
    assert seen(after, "a", manifest) == []
    assert [each.topic for each in after.again()] == [
        seen(before, "b", manifest)[0].topic.replace(
            documents.object_id("wrists", "b"), documents.object_id("wrists", "a")
        )
    ]
    assert not counters["announcements_removed"]


@pytest.mark.parametrize(
    "payload", [b"{", b"[]", b"{}", b'{"device": 1}', b'{"device": {"serial_number": "b"}}', b"x" * 70_000]
)
def test_what_is_of_no_sensor_of_ours_is_removed(payload: bytes) -> None:
    one, counters = announcements()
    topic = f"homeassistant/device/edge_gw/{documents.object_id('wrists', 'a')}/config"
    (removal,) = one.received(Message(topic, payload, retain=True))
    assert (removal.topic, removal.payload, removal.retain) == (topic, b"", True)
    assert counters["announcements_removed"] == 1


def test_sensors_of_a_route_that_is_gone_are_removed() -> None:
    former = route(name="former")
    (before, _), (after, _) = announcements(former), announcements()
    (removal,) = retained(after, seen(before, "a", moves(), former))
    assert removal.payload == b""


def test_a_device_that_an_operator_deletes_comes_back_with_its_next_result() -> None:
    (one, _), manifest = announcements(), moves()
    (first,) = seen(one, "a", manifest)
    assert one.received(Message(first.topic, b"")) == []
    assert seen(one, "a", manifest) == [first]


def test_an_announcement_that_was_dropped_is_made_again() -> None:
    (one, _), manifest = announcements(), moves()
    (first,) = seen(one, "a", manifest)
    one.dropped(first)
    assert seen(one, "a", manifest) == [first]


def test_sensors_are_bounded() -> None:
    (one, counters), manifest = announcements(max_sensors=2), moves()
    one.connected()
    assert [len(seen(one, sensor, manifest)) for sensor in "abca"] == [1, 1, 0, 0]
    assert counters["results_unannounced"] == 1
    (other, _), object_ = announcements(max_sensors=1), documents.object_id("wrists", "b")
    other.connected()
    (removal,) = retained(other, [seen(announcements()[0], sensor, manifest)[0] for sensor in "ab"])
    assert (object_ in removal.topic, removal.payload) == (True, b"")


def test_our_own_message_is_no_document_of_the_broker() -> None:
    one, _ = announcements()
    assert one.received(Message("homeassistant/device/edge_gw/x/config", b"{}")) == []
    assert not one.is_document("homeassistant/device/edge_other/x/config")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("prefix", ""),
        ("prefix", "edge"),
        ("prefix", "edge/a"),
        ("prefix", "a/#"),
        ("max_sensors", 0),
    ],
)
def test_settings_that_cannot_work_are_refused(key: str, value: Any) -> None:
    with pytest.raises(ConfigurationError) as refused:
        HomeAssistantSettings(**{key: value})
    assert refused.value.key == key
