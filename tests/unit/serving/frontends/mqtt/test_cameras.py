"""Cameras over MQTT: their routes, rules on counts, entities of pipelines, and what waits or is dropped on its way."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest import ModelManifest, TensorSpec
from gateway.common.domain.pipeline import DURATIONS, TOTALS
from gateway.common.domain.tensor import Datatype, Tensor
from gateway.serving.domain.cameras import CameraAnswer, KnownCamera
from gateway.serving.domain.infer import InferResponse
from gateway.serving.frontends.mqtt.home_assistant import documents
from gateway.serving.frontends.mqtt.home_assistant.announcements import Announcements
from gateway.serving.frontends.mqtt.messages import Message, OutgoingPublish
from gateway.serving.frontends.mqtt.outbound.contents import ResultPlan, plan_results
from gateway.serving.frontends.mqtt.outbound.context import RouteContext
from gateway.serving.frontends.mqtt.outbound.publish_topics import PublishTopics
from gateway.serving.frontends.mqtt.outbound.rows import document_rows
from gateway.serving.frontends.mqtt.outbound.rules import value_of
from gateway.serving.frontends.mqtt.pipeline.cameras import CameraResults
from gateway.serving.frontends.mqtt.settings.broker import HomeAssistantSettings, MqttBroker, MqttSettings, brokers
from gateway.serving.frontends.mqtt.settings.results import ResultSettings
from gateway.serving.frontends.mqtt.settings.route import MqttChannel, MqttRoute
from gateway.serving.frontends.mqtt.settings.rules import RuleSettings
from gateway.serving.frontends.mqtt.settings.samples import MqttTime, MqttWindow
from tests.simulators.mqtt_gateway import simulated

URL = "mqtt://here"
ROWS = TensorSpec("image", Datatype.BYTES, (-1,))


def out(name: str, datatype: Datatype, *shape: int) -> TensorSpec:
    return TensorSpec(name, datatype, (-1, *shape))


SPECS = (
    out("result", Datatype.BYTES),
    out("people.track", Datatype.INT64, -1),
    out("people.box", Datatype.FP32, -1, 4),
    out("scores", Datatype.FP32, -1),
    out("entered", Datatype.INT64),
    out("porch.now", Datatype.INT64),
    out("porch.longest", Datatype.FP64),
    out("speed", Datatype.FP64),
    out("alarm", Datatype.BOOL),
    out("plate", Datatype.BYTES),
    out("vector", Datatype.FP32, 4),
)
YARD = ModelManifest(
    "yard",
    "2",
    (ROWS,),
    SPECS,
    (),
    batch=True,
    answered=tuple(spec.name for spec in SPECS),
    parameters={"state": "stream", TOTALS: "entered", DURATIONS: "porch.longest"},
)
DOCUMENT = {"people": [{"track": 1, "box": [0, 0, 1, 1]}], "entered": 3, "porch": {"now": 1, "longest": 2.5}}


class CameraLink:
    """Link that keeps what is published."""

    receives_since_ns = 0

    def __init__(self) -> None:
        self.full = False
        self.packet_limit_bytes: int | None = 2**20
        self.published: list[OutgoingPublish] = []
        self.acknowledged = 0

    def publish(self, publication: OutgoingPublish) -> bool:
        self.published.append(publication)
        return True

    def publish_status(self, publication: OutgoingPublish) -> None:
        self.published.append(publication)

    def acknowledge(self, message: Message) -> None:
        self.acknowledged += 1

    def pause(self, *, on: bool) -> None:
        raise AssertionError("frames of cameras must not stop the messages of sensors")

    @property
    def sent(self) -> list[tuple[str, bytes]]:
        """Return topic and payload of what was published since the last time."""
        sent, self.published = self.published, []
        return [(each.topic, each.payload) for each in sent]


class CameraRig:
    """Results of the cameras `door` and `yard` on one route."""

    def __init__(
        self, *rules: RuleSettings, outputs: tuple[str, ...] = (), permitted: tuple[str, ...] = (), **result: Any
    ) -> None:
        self.link, self.counters = CameraLink(), Counter[str]()
        route = MqttRoute("c", cameras=("door", "yard"), outputs=outputs, result=ResultSettings(**result), rule=rules)
        topics = PublishTopics(permitted, "gw", self.counters)
        settings = MqttSettings(url=URL, route=(route,))
        self.cameras = CameraResults(
            RouteContext(simulated(), settings, "gw", self.link, self.counters, topics), self.link
        )

    def answer(self, camera: str = "door", **document: Any) -> None:
        """Answer a frame of a camera."""
        texts = np.array([json.dumps(DOCUMENT | document).encode()], object)
        response = InferResponse("yard", "2", "", {"result": Tensor(Datatype.BYTES, texts)}, "pipeline")
        tensor = Tensor(Datatype.BYTES, np.array([b"jpeg"], object))
        self.cameras.answered(CameraAnswer(camera, 1_500_000_000, YARD, tensor, response, (640, 480)))


# ---- settings --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("topics", ("a/+",)),
        ("model", "m"),
        ("version", "1"),
        ("sensor", "topic"),
        ("window", MqttWindow(session_gap_s=1.0)),
        ("channel", (MqttChannel("a"),)),
        ("time", MqttTime(path="t")),
        ("content_type", "image/jpeg"),
    ],
)
def test_a_route_of_cameras_has_nothing_of_messages(key: str, value: Any) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"^mqtt\.route\[yard\]\.{key}: must be absent: the route has cameras"
    ):
        MqttRoute(**{"name": "yard", "cameras": ("door",), key: value})


@pytest.mark.parametrize(
    ("routes", "wanted"),
    [
        ([], {"camera": ("door", "yard")}),
        ([MqttRoute("a", cameras=("yard", "yard"))], {"a": ("yard",), "camera": ("door",)}),
        ([MqttRoute("a", cameras=("*", "yard"))], {"a": ("door", "yard")}),
        ([MqttRoute("a", cameras=("*",)), MqttRoute("b", cameras=("door",))], {"a": ("door", "yard"), "b": ("door",)}),
        ([MqttRoute("camera", cameras=("*",))], {"camera": ("door", "yard")}),
        ([MqttRoute("a", ("t",), "m")], {"a": (), "camera": ("door", "yard")}),
    ],
)
def test_each_camera_has_a_route(routes: list[MqttRoute], wanted: dict[str, tuple[str, ...]]) -> None:
    found = brokers(MqttSettings(url=URL, route=tuple(routes)), ["door", "yard"])["default"]
    assert {route.name: route.cameras for route in found.route} == wanted


def test_a_route_of_all_cameras_is_none_where_there_is_no_camera() -> None:
    settings = MqttSettings(url=URL, route=(MqttRoute("a", cameras=("*",)),))
    assert brokers(settings)["default"].route == ()


def test_cameras_without_a_route_need_the_broker_of_mqtt() -> None:
    settings = MqttSettings(
        broker=(MqttBroker("plant", "mqtt://plant"),), route=(MqttRoute("a", cameras=("yard",), broker="plant"),)
    )
    assert [route.name for route in brokers(settings, ["door", "yard"])["plant"].route] == ["a"]


@pytest.mark.parametrize(
    ("route", "cameras", "said"),
    [
        (MqttRoute("a", cameras=("dor",)), ["door"], r'a\]\.cameras: no camera is called .dor.; did you mean "door"'),
        (MqttRoute("a", cameras=("*", "gate")), ["door", "yard"], "no camera is called 'gate'; known are door, yard"),
        (MqttRoute("a", cameras=("door",)), [], r"there is no \[\[camera\]\]"),
        (MqttRoute("camera", ("t",), "m"), ["door"], r"camera\]\.name: cameras that no route names have the route"),
    ],
)
def test_wrong_cameras_are_named_with_the_known_ones(route: MqttRoute, cameras: list[str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        brokers(MqttSettings(url=URL, route=(route,)), cameras)


# ---- values of rules -------------------------------------------------------------------------------------------------
PERSON, CAR = ({"label": label, "score": 0.5} for label in ("person", "car"))


@pytest.mark.parametrize(
    ("document", "name", "value"),
    [
        ({"detections": [PERSON, CAR, PERSON]}, "count", 3),
        ({"detections": [PERSON, CAR, PERSON]}, "count.person", 2),
        ({"detections": []}, "count.person", 0),
        ({"classes": [PERSON]}, "count.person", None),
        ({"detections": [0.5, 0.4]}, "count", 2),
        ({"detections": [0.5, 0.4]}, "count.person", 0),
        (DOCUMENT, "value.entered", 3),
        (DOCUMENT, "value.porch.now", 1),
        (DOCUMENT, "value.porch", None),
        (DOCUMENT, "value.people", None),
        (DOCUMENT, "value.gate", None),
        (DOCUMENT, "label", None),
        # outputs of a pipeline may have any name
        ({"label": ["a"], "score": [0.1], "values": 3, "text": [], "detections": 2}, "value", None),
        ({"label": ["a"], "score": [0.1], "values": 3, "text": [], "detections": 2}, "score", None),
        ({"label": ["a"], "detections": [{"box": [0, 0, 1, 1]}], "classes": 1}, "label", None),
        ({"values": [1, 2], "detections": "none"}, "value.values", None),
    ],
)
def test_counts_and_outputs_of_pipelines_are_values_of_rules(document: dict[str, Any], name: str, value: Any) -> None:
    (row,) = document_rows(ResultPlan(document="result"), [document], {})
    found = value_of(RuleSettings("r", value=name).value, row)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("value", ["counts", "count.", "counter.person"])
def test_other_values_are_refused(value: str) -> None:
    with pytest.raises(ConfigurationError, match=r"count, count\.<label>"):
        RuleSettings("r", value=value)


def test_rules_on_zones_and_lines() -> None:
    rig = CameraRig(
        RuleSettings("porch", value="value.porch.now", above=(0.5,)),
        RuleSettings("entered", value="value.entered"),
        publish="never",
    )
    for now, entered in ((0, 3), (1, 3), (2, 4), (0, 4)):
        rig.answer(porch={"now": now}, entered=entered)
    assert rig.link.sent == [
        ("edge/gw/rules/c/porch/door", b"off"),
        ("edge/gw/rules/c/entered/door", b"3"),
        ("edge/gw/rules/c/porch/door", b"on"),
        ("edge/gw/rules/c/entered/door", b"4"),
        ("edge/gw/rules/c/porch/door", b"off"),
    ]


# ---- results ---------------------------------------------------------------------------------------------------------
def test_a_result_names_its_camera_and_the_time_of_its_frame() -> None:
    rig = CameraRig()
    rig.answer()
    rig.answer("yard")
    rig.answer("gate")
    assert [each.topic for each in rig.link.published] == [f"edge/gw/results/c/{name}" for name in ("door", "yard")]
    first, second = (json.loads(each.payload) for each in rig.link.published)
    assert first["id"] != second["id"]
    assert (first["sensor"], first["entered"], first["version"]) == ("door", 3, "2")
    assert first["started_at"] == first["ended_at"] == "1970-01-01T00:00:01.500Z"
    rig.link.published[0].taken(0)  # type: ignore[misc]
    rig.link.published[1].taken(0x87)  # type: ignore[misc]
    assert rig.counters == {"answered": 1}


def test_results_are_dropped_without_a_broker_and_rules_wait_for_it() -> None:
    rig = CameraRig(RuleSettings("porch", value="value.porch.now"), publish="change")
    rig.link.packet_limit_bytes = None
    rig.answer()
    assert [topic for topic, _ in rig.link.sent] == ["edge/gw/rules/c/porch/door"]
    assert rig.counters["dropped_broker_away"] == 1


def test_few_results_wait_for_a_slow_broker() -> None:
    rig = CameraRig()
    for _ in range(10):
        rig.answer()
        rig.answer("yard")
    waiting = rig.link.published
    assert [each.topic.rpartition("/")[2] for each in waiting] == ["door", "yard"] * 8
    assert rig.counters == {"dropped_outbox_full": 4}
    for each in waiting[:2]:
        each.taken(0)  # type: ignore[misc]
    for _ in range(2):
        rig.answer()
    assert (len(waiting), rig.counters["dropped_outbox_full"]) == (17, 5)


def test_nothing_is_added_to_a_full_outbox_and_a_state_follows_later() -> None:
    rig = CameraRig(RuleSettings("porch", value="value.porch.now"), publish="change", payload="value")
    rig.link.full = True
    rig.answer(detections=[])
    rig.answer(detections=[])
    assert rig.link.sent == []
    assert rig.counters["dropped_outbox_full"] == 4
    rig.link.full = False
    rig.answer(detections=[])
    rig.answer(detections=[])
    assert [topic for topic, _ in rig.link.sent] == ["edge/gw/rules/c/porch/door", "edge/gw/results/c/door"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"outputs": ("gone",)}, "no output 'gone'"), ({"permitted": ("edge/gw/results/c/x",)}, "may not publish")],
)
def test_a_result_that_cannot_be_published_is_an_error_once(changes: dict[str, Any], said: str) -> None:
    rig = CameraRig(**changes)
    for _ in range(3):
        rig.answer()
    ((topic, payload),) = rig.link.sent
    assert topic == "edge/gw/errors"
    assert said in json.loads(payload)["message"]
    assert json.loads(payload)["topic"] == "edge/gw/cameras/door"
    assert rig.counters["refused"] == 3


def test_a_camera_that_streams_already_is_online_with_its_first_route() -> None:
    rig = CameraRig()
    rig.cameras.follow([], known := [KnownCamera("yard", "yard")])
    rig.cameras.changed("yard", streaming=True)
    rig.link.published.clear()
    rig.cameras.follow([MqttRoute("c", cameras=("yard",))], known)
    assert [each.payload for each in rig.link.published] == [b"online"]


def test_a_defect_does_not_reach_the_camera(caplog: pytest.LogCaptureFixture) -> None:
    rig = CameraRig()
    response = InferResponse("yard", "2", "", {"result": Tensor(Datatype.BYTES, np.array([b"no JSON"], object))})
    rig.cameras.answered(
        CameraAnswer("door", 0, YARD, Tensor(Datatype.BYTES, np.array([b""], object)), response, (1, 1))
    )
    assert rig.link.sent == []
    assert "camera door; report this traceback" in caplog.text


# ---- states and pictures ---------------------------------------------------------------------------------------------
def test_states_are_retained_and_published_again_at_each_connection() -> None:
    rig = CameraRig()
    rig.cameras.connected()
    rig.cameras.changed("door", streaming=True)
    rig.cameras.changed("gate", streaming=True)
    rig.cameras.connected()
    assert all((each.retain, each.qos) == (True, 1) for each in rig.link.published)
    states = [
        (f"edge/gw/cameras/{camera}/status", word) for camera, word in (("door", b"offline"), ("yard", b"offline"))
    ]
    online = (states[0][0], b"online")
    assert rig.link.sent == [*states, online, online, states[1]]
    rig.cameras.close()
    rig.cameras.changed("door", streaming=True)
    rig.answer()
    assert rig.link.sent == [states[0]]


def test_the_newest_picture_waits_for_the_broker() -> None:
    rig = CameraRig()
    rig.link.packet_limit_bytes = None
    for picture in (b"old", b"new"):
        rig.cameras.pictured("door", 0, picture)
    rig.cameras.pictured("gate", 0, b"other")
    assert rig.link.sent == []
    rig.link.packet_limit_bytes, rig.link.full = 100, True
    rig.cameras.resume()
    rig.link.full = False
    rig.cameras.resume()
    rig.cameras.resume()
    (sent,) = rig.link.published
    assert (sent.topic, sent.payload, sent.retain) == ("edge/gw/cameras/door/snapshot", b"new", True)
    assert sent.content_type == "image/jpeg"
    rig.cameras.pictured("door", 0, bytes(100))
    rig.cameras.resume()
    assert (len(rig.link.sent), rig.counters["dropped_picture_too_large"]) == (1, 1)


@pytest.mark.parametrize(
    ("topic", "retain", "payload", "removes"),
    [
        ("edge/gw/cameras/gate/status", True, b"online", True),
        ("edge/gw/cameras/gate/status", True, b"", False),
        ("edge/gw/cameras/gate/status", False, b"online", False),
        ("edge/gw/cameras/door/status", True, b"online", False),
    ],
)
def test_what_the_broker_keeps_of_other_cameras_is_removed(
    topic: str, retain: bool, payload: bytes, removes: bool
) -> None:
    rules = (
        RuleSettings("kept", retain=True),
        RuleSettings("not"),
        RuleSettings("outside", retain=True, topic="x/{sensor}"),
    )
    rig = CameraRig(*rules, permitted=("edge/gw/#", "x/door", "x/yard"), topic="edge/gw/results/{label}", retain=True)
    assert rig.cameras.take(Message(topic, payload, 1, retain=retain))
    removed = [(f"edge/gw/cameras/gate/{kind}", b"") for kind in ("snapshot", "status")]
    removed.append(("edge/gw/rules/c/kept/gate", b""))
    assert rig.link.sent == (removed if removes else [])
    assert rig.link.acknowledged == 1
    assert not rig.cameras.take(Message("edge/gw/infer/x", b""))


# ---- Home Assistant --------------------------------------------------------------------------------------------------
def document(manifest: ModelManifest, *, has_pictures: bool = True, **changes: Any) -> dict[str, Any]:
    route = MqttRoute("c", cameras=("door",), **changes)
    plan = plan_results(manifest, route.outputs, route.result)
    found = documents.sensor_document("gw", route, "door", manifest, plan, has_pictures=has_pictures)
    assert found is not None
    return found


def test_a_camera_is_available_with_the_gateway_its_model_and_its_frames() -> None:
    found = document(YARD)
    topics = ["edge/gw/status", "edge/gw/models/yard/status", "edge/gw/cameras/door/status"]
    assert [each["topic"] for each in found["availability"]] == topics
    assert found["availability_mode"] == "all"
    assert found["components"]["image_snapshot"]["image_topic"] == "edge/gw/cameras/door/snapshot"
    assert "image_snapshot" not in document(YARD, has_pictures=False)["components"]
    only = document(YARD, result=ResultSettings(publish="never"))
    assert list(only["components"]) == ["image_snapshot"]


def test_outputs_of_a_pipeline_are_entities_by_their_kind() -> None:
    found = document(YARD, has_pictures=False)["components"]
    read = {
        key: (each["value_template"], each.get("state_class"), each.get("device_class")) for key, each in found.items()
    }
    assert read == {
        "sensor_output_people": ("{{ value_json['people'] | count }}", "measurement", None),
        "sensor_output_scores": ("{{ value_json['scores'] | count }}", "measurement", None),
        "sensor_output_entered": ("{{ value_json['entered'] }}", "total_increasing", None),
        "sensor_output_porch.now": ("{{ value_json['porch']['now'] }}", "measurement", None),
        "sensor_output_porch.longest": ("{{ value_json['porch']['longest'] }}", "measurement", "duration"),
        "sensor_output_speed": ("{{ value_json['speed'] }}", "measurement", None),
        "binary_sensor_output_alarm": ("{{ value_json['alarm'] }}", None, None),
        "sensor_output_plate": (
            "{{ value_json['plate'][:255] if value_json['plate'] is string else None }}",
            None,
            None,
        ),
    }
    assert found["sensor_output_porch.longest"]["unit_of_measurement"] == "s"
    assert found["sensor_output_porch.now"]["name"] == "Porch now"


def test_detections_are_counted_by_label() -> None:
    detector = ModelManifest(
        "street", "1", (ROWS,), SPECS[:1], (), "object-detection", {}, labels=("person", 'a "b"'), answered=("result",)
    )
    found = document(detector, has_pictures=False)["components"]
    counts = {key: each["value_template"] for key, each in found.items() if key.startswith("sensor_count")}
    counted = "{{{{ value_json.detections | selectattr('label', 'eq', {}) | list | count }}}}"
    assert counts == {
        "sensor_count_0": counted.format('"person"'),
        "sensor_count_1": counted.format(r'"a \"b\""'),
    }
    rule = RuleSettings("persons", value="count.person")
    found = document(detector, has_pictures=False, rule=(rule,))["components"]
    assert found["sensor_rule_persons"]["state_class"] == "measurement"


def test_documents_of_cameras_that_are_gone_are_removed() -> None:
    cameras = [KnownCamera("door", "yard", has_pictures=True), KnownCamera("gate", "other")]
    route, plan = MqttRoute("c", cameras=("door",)), plan_results(YARD)
    found = Announcements(HomeAssistantSettings(enabled=True), "gw", [route], Counter(), cameras)
    assert found.models == {"yard"}
    (announced,) = found.seen(route, "door", YARD, plan)
    assert "image_snapshot" in json.loads(announced.payload)["components"]
    again = Announcements(HomeAssistantSettings(enabled=True), "gw", [route], Counter(), cameras)
    assert again.received(Message(announced.topic, announced.payload, 1, retain=True)) == []
    gone = Announcements(HomeAssistantSettings(enabled=True), "gw", [MqttRoute("c", cameras=("yard",))], Counter())
    (removed,) = gone.received(Message(announced.topic, announced.payload, 1, retain=True))
    assert (removed.topic, removed.payload) == (announced.topic, b"")
