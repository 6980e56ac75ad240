"""Sparkplug B as input: births, aliases, datatypes, rebirth commands, and bounds."""

from __future__ import annotations

import contextlib
import struct
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.errors import RequestError
from gateway.common.domain.manifest import ModelManifest, TensorSpec
from gateway.common.domain.tensor import Datatype, finish
from gateway.serving.frontends.mqtt.inbound.decoder import RouteDecoder
from gateway.serving.frontends.mqtt.inbound.payloads import sparkplug
from gateway.serving.frontends.mqtt.inbound.payloads.sparkplug import Births
from gateway.serving.frontends.mqtt.inbound.payloads.sparkplug_message import read_payload, rebirth_command
from gateway.serving.frontends.mqtt.messages import Message, OutgoingPublish
from gateway.serving.frontends.mqtt.settings.route import MqttChannel, MqttRoute
from gateway.serving.frontends.mqtt.settings.samples import MqttTime
from tests.simulators.inference import VARIANT
from tests.simulators.sparkplug import metric, payload

NODE, DEVICE = "spBv1.0/plant/{}/edge-1", "spBv1.0/plant/{}/edge-1/press"
BIRTH = payload(
    metric("Pressure", 1, 10, double=80.5), metric("Level", 2, 2, integer=5), metric("Unused", 3, 12, text="x")
)


def document(births: Births, topic: str, content: bytes) -> Any:
    """Return the metrics of a message, and take note of it."""
    read = births.read(topic, content)
    births.apply(read, Message(topic, content))
    return read.document and read.document["metrics"]


def test_data_uses_the_names_and_datatypes_of_the_birth() -> None:
    births = Births()
    assert document(births, DEVICE.format("DBIRTH"), BIRTH) == {"Pressure": 80.5, "Level": 5, "Unused": "x"}
    data = payload(metric(alias=2, integer=0xFFFF), metric(alias=1, null=True))
    assert document(births, DEVICE.format("DDATA"), data) == {"Level": -1, "Pressure": None}
    named = payload(metric("Level", integer=0xFFFFFFFE), metric("New", None, 3, integer=7))
    assert document(births, DEVICE.format("DDATA"), named) == {"Level": -2, "New": 7}


@pytest.mark.parametrize(
    ("datatype", "value", "found"),
    [
        (1, {"integer": 0xFF}, -1),
        (2, {"integer": 0xFFFE}, -2),
        (3, {"integer": 0xFFFFFFFD}, -3),
        (4, {"long": 2**64 - 4}, -4),
        (5, {"integer": 255}, 255),
        (7, {"integer": 2**32 - 1}, 2**32 - 1),
        (8, {"long": 2**64 - 1}, 2**64 - 1),
        (9, {"single": 0.5}, 0.5),
        (11, {"boolean": True}, True),
        (12, {"text": "on"}, "on"),
        (30, {"packed": struct.pack("<2f", 0.5, 1.5)}, [0.5, 1.5]),
        (23, {"packed": struct.pack("<2h", -1, 2)}, [-1, 2]),
    ],
)
def test_values_are_read_by_their_datatype(datatype: int, value: dict[str, Any], found: Any) -> None:
    assert document(Births(), NODE.format("NBIRTH"), payload(metric("m", None, datatype, **value))) == {"m": found}


def test_time_and_sequence_are_in_the_document() -> None:
    read = Births().read(NODE.format("NBIRTH"), payload(metric("a", integer=1), timestamp=1000, seq=7)).document
    assert read == {"timestamp": 1000, "seq": 7, "metrics": {"timestamp": 1000, "a": 1}}


def test_births_replace_and_deaths_forget() -> None:
    births = Births()
    data = payload(metric(alias=1, double=1.0))
    document(births, NODE.format("NBIRTH"), BIRTH)
    document(births, DEVICE.format("DBIRTH"), BIRTH)
    assert births.read(DEVICE.format("DDATA"), data).unknown is None
    document(births, DEVICE.format("DDEATH"), payload())
    assert births.read(DEVICE.format("DDATA"), data).unknown == 1
    assert births.read(NODE.format("NDATA"), data).unknown is None
    document(births, DEVICE.format("DBIRTH"), BIRTH)
    document(births, NODE.format("NBIRTH"), BIRTH)  # births of devices follow
    assert births.read(DEVICE.format("DDATA"), data).unknown == 1
    document(births, NODE.format("NDEATH"), payload())
    assert births.read(NODE.format("NDATA"), data).unknown == 1


def test_a_rebirth_is_requested_once_in_a_while() -> None:
    births, topic = Births(), DEVICE.format("DDATA")
    read = births.read(topic, payload(metric(alias=9, double=1.0)))
    sent = [
        births.apply(read, Message(topic, b"", arrived_ns=int(second * 1e9), wall_ns=5_000_000))[1]
        for second in (0, 9, 10, 11)
    ]
    first, *rest = sent
    assert first is not None
    assert (first.topic, first.qos) == ("spBv1.0/plant/NCMD/edge-1", 0)
    (command,) = read_payload(first.payload).metrics
    assert (command.name, command.datatype, command.value) == ("Node Control/Rebirth", 11, True)
    assert first.payload == rebirth_command(5)
    assert [command is None for command in rest] == [True, False, True]


def applied(births: Births, kind: str, *metrics: bytes, seq: int | None = None) -> tuple[bool, bool]:
    """Apply a message of the node, or of its device. Return if it is refused, and if it asks for a rebirth."""
    topic = (DEVICE if kind.startswith("D") else NODE).format(kind)
    births._asked_ns.clear()
    content = payload(*metrics, seq=seq)
    problem, command = births.apply(births.read(topic, content), Message(topic, content))
    return bool(problem), command is not None


def session(number: int) -> bytes:
    return metric("bdSeq", None, 4, long=number)


TAKEN, ASKS, REFUSED = (False, False), (False, True), (True, True)
VALUE = metric("Level", None, 3, integer=1)


def test_a_gap_in_the_sequence_asks_for_a_rebirth_and_is_told_once() -> None:
    births = Births()
    assert applied(births, "NDATA", VALUE, seq=9) == TAKEN  # the birth was before the gateway
    assert applied(births, "NBIRTH", session(0), seq=0) == TAKEN
    assert applied(births, "DBIRTH", VALUE, seq=1) == TAKEN
    assert applied(births, "DDATA", VALUE, seq=2) == TAKEN
    assert applied(births, "NDATA", VALUE, seq=4) == ASKS
    assert applied(births, "DDATA", VALUE, seq=5) == TAKEN
    assert applied(births, "DDEATH", seq=6) == TAKEN
    assert applied(births, "NBIRTH", session(0), seq=0) == TAKEN
    for seq in (*range(1, 256), 0, 1):
        assert applied(births, "NDATA", VALUE, seq=seq) == TAKEN


def test_a_route_that_gets_a_part_of_the_messages_knows_no_gaps() -> None:
    births = Births(gets_all=False)
    applied(births, "NBIRTH", session(0), seq=0)
    assert applied(births, "NDATA", VALUE, seq=4) == TAKEN
    for filters, wanted in (
        (("spBv1.0/#",), True),
        (("spBv1.0/plant/+/#",), True),
        (("x", "spBv1.0/plant/+/edge-1/#"), True),
        (("#",), True),
        (("spBv1.0/plant/+/edge-1",), False),
        (("spBv1.0/plant/DDATA/#", "spBv1.0/plant/NBIRTH/#"), False),
        (("spBv1.0/plant/+/edge-1/press/#",), False),
        (("$share/a/spBv1.0/#",), False),
    ):
        assert sparkplug.gets_all(filters) is wanted, filters


def test_data_after_a_death_is_refused_until_a_birth() -> None:
    births = Births()
    applied(births, "NBIRTH", session(3), seq=0)
    applied(births, "DBIRTH", VALUE, seq=1)
    assert applied(births, "DDEATH", seq=2) == TAKEN
    assert applied(births, "DDATA", VALUE, seq=3) == REFUSED
    assert applied(births, "NDATA", VALUE, seq=4) == TAKEN
    assert applied(births, "DBIRTH", VALUE, seq=5) == TAKEN
    assert applied(births, "DDATA", VALUE, seq=6) == TAKEN
    assert applied(births, "NDEATH", session(3)) == TAKEN
    for kind in ("NDATA", "DDATA", "DBIRTH"):
        assert applied(births, kind, VALUE, seq=7) == REFUSED
    assert applied(births, "NBIRTH", session(4), seq=0) == TAKEN
    assert applied(births, "NDATA", VALUE, seq=1) == TAKEN


def test_the_death_of_another_session_is_ignored_and_asks_for_a_rebirth() -> None:
    births = Births()
    applied(births, "NBIRTH", session(4), seq=0)
    assert applied(births, "NDEATH", session(3)) == ASKS
    assert applied(births, "NDATA", VALUE, seq=1) == TAKEN
    assert applied(births, "NDEATH") == TAKEN  # it does not tell its session
    assert applied(births, "NDATA", VALUE, seq=2) == REFUSED
    assert applied(births, "NDEATH", session(3)) == TAKEN
    births.apply(births.read(NODE.format("NBIRTH"), payload(session(5))), Message("", b""))
    births.apply(births.read(NODE.format("NDEATH"), b"\xff"), Message("", b""))
    assert applied(births, "NDATA", VALUE) == REFUSED


@pytest.mark.parametrize("topic", ["plant/NBIRTH/edge", "spBv1.0/plant/NBIRTH", "spBv1.0/a/DDATA/b/c/d", "spBv1.0"])
def test_topics_of_another_form_are_refused(topic: str) -> None:
    with pytest.raises(RequestError, match=r"spBv1\.0/<group>/<kind>/<node>"):
        Births().read(topic, payload())


def test_commands_and_states_have_no_document() -> None:
    assert Births().read(NODE.format("NCMD"), b"\xff").document is None
    assert Births().read(NODE.format("NDEATH"), b"\xff").document is None


def test_births_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparkplug, "NODES_LIMIT", 2)
    births = Births()
    for name in ("a", "b", "c"):
        document(births, f"spBv1.0/plant/NBIRTH/{name}", BIRTH)
    data = payload(metric(alias=1, double=1.0))
    assert [births.read(f"spBv1.0/plant/NDATA/{name}", data).unknown for name in "abc"] == [1, None, None]
    monkeypatch.setattr(sparkplug, "METRICS_LIMIT", 10)
    document(births, "spBv1.0/plant/NBIRTH/d", BIRTH)
    assert [births.read(f"spBv1.0/plant/NDATA/{name}", data).unknown for name in "bcd"] == [1, 1, None]
    with pytest.raises(RequestError, match="32769 metrics"):
        births.read("spBv1.0/plant/NBIRTH/e", payload(*[metric(f"m{index}") for index in range(32_769)]))
    with pytest.raises(RequestError, match="1048577 bytes"):
        births.read("spBv1.0/plant/NDATA/e", bytes(2**20 + 1))
    with pytest.raises(RequestError, match="1 to 256 characters"):
        births.read("spBv1.0/plant/NBIRTH/e", payload(metric("m" * 257, integer=1)))


@given(st.binary(max_size=80))
def test_any_bytes_are_metrics_or_a_refusal(content: bytes) -> None:
    births = Births()
    for kind in ("NBIRTH", "NDATA", "DDATA", "STATE"):
        topic = (DEVICE if kind.startswith("D") else NODE).format(kind)
        with contextlib.suppress(RequestError):
            document(births, topic, content)


def test_a_route_makes_rows_of_data_and_asks_for_births() -> None:
    x, y = (TensorSpec(name, Datatype.FP32, (-1, 2)) for name in ("x", "y"))
    manifest = ModelManifest("press", "1", (x,), (y,), (VARIANT,))
    channels = (MqttChannel("Pressure"), MqttChannel("Level"))
    route = MqttRoute("r", ("spBv1.0/#",), "press", preset="sparkplug", channel=channels)
    counters, sent = Counter[str](), list[OutgoingPublish]()
    decoder = RouteDecoder(route, lambda *_: manifest, counters, sent.append)

    def rows(topic: str, content: bytes) -> Any:
        message = Message(topic, content, arrived_ns=10**9)
        reading = decoder.begin(message)
        inputs = list(decoder.complete(message, reading, finish(decoder.steps(message, reading))).ready)
        assert all(ready.sensor == "edge-1/press" for ready in inputs)
        return [ready.tensor.array.tolist() for ready in inputs]

    data = payload(metric(alias=1, double=81.0), timestamp=1)
    with pytest.raises(RequestError, match="alias 1; the gateway asks the node for a rebirth"):
        rows(DEVICE.format("DDATA"), data)
    assert [command.topic for command in sent] == ["spBv1.0/plant/NCMD/edge-1"]
    assert rows(DEVICE.format("DBIRTH"), BIRTH) == [[[80.5, 5]]]
    assert rows(DEVICE.format("DDATA"), data) == [[[81, 5]]]
    assert rows(DEVICE.format("DDEATH"), payload()) == []
    unfit = payload(metric("Pressure", 1, 12, text="high"), metric("Level", 2, 3, integer=1))
    with pytest.raises(RequestError, match="finds the text 'high'"):
        rows(DEVICE.format("DBIRTH"), unfit)
    assert rows(DEVICE.format("DDATA"), data) == [[[81, 5]]]  # the birth counts, though its row was refused
    rows(DEVICE.format("DDEATH"), payload())
    assert counters["rebirths_requested"] == 1
    with contextlib.suppress(RequestError):
        rows(DEVICE.format("DDATA"), data)
    assert len(sent) == 1  # the last command was a moment ago


STORED = [
    metric("Pressure", None, 10, double=70.0, timestamp=3_000, historical=True),
    metric("Pressure", None, 10, double=60.0, timestamp=2_000, historical=True),
    metric("Level", None, 2, integer=1, timestamp=2_000, historical=True),
    metric("Level", None, 2, integer=9, historical=True),  # it does not tell its time
]


@pytest.mark.parametrize(
    ("missing", "time", "wanted"),
    [
        ("refuse", MqttTime(), [[80.5, 5]]),
        ("last", MqttTime(), [[80.5, 5], [80.5, 6]]),
        ("last", MqttTime("timestamp", "ms"), [[80.5, 5], [60, 1], [80.5, 6]]),
        ("skip", MqttTime("timestamp", "ms"), [[80.5, 5], [60, 1]]),
    ],
)
def test_stored_values_go_with_their_own_time_or_are_left_out(
    missing: str, time: MqttTime, wanted: list[list[float]]
) -> None:
    x, y = (TensorSpec(name, Datatype.FP32, (-1, 2)) for name in ("x", "y"))
    manifest = ModelManifest("press", "1", (x,), (y,), (VARIANT,))
    channels = (MqttChannel("Pressure", missing=missing), MqttChannel("Level", missing=missing))
    route = MqttRoute("r", ("spBv1.0/#",), "press", preset="sparkplug", channel=channels, time=time)
    decoder = RouteDecoder(route, lambda *_: manifest, Counter[str]())
    rows, times = list[list[float]](), list[float]()
    for metrics in (
        [metric("Pressure", None, 10, double=80.5), metric("Level", None, 2, integer=5)],
        STORED,
        [metric("Level", None, 2, integer=6)] if missing != "refuse" else [],
    ):
        content = payload(*metrics, timestamp=9_000)
        message = Message(DEVICE.format("DDATA"), content, arrived_ns=10**9, wall_ns=10 * 10**9)
        reading = decoder.begin(message)
        with contextlib.suppress(RequestError):
            for ready in decoder.complete(message, reading, finish(decoder.steps(message, reading))).ready:
                rows += ready.tensor.array.tolist()
                times.append(ready.started_ns / 1e9)
    assert rows == wanted
    assert times == [2.0 if row == [60, 1] else 9.0 if time.path else 10.0 for row in wanted]
