"""Payloads of sensors over a real broker: channels, presets, policies, and Sparkplug's rebirth."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
import sys
from pathlib import Path
from typing import Any

import cbor2
import pytest

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest import ModelManifest, TensorSpec
from gateway.common.domain.tensor import Datatype
from gateway.serving.frontends.mqtt.inbound.payloads.sparkplug_message import read_payload
from gateway.serving.frontends.mqtt.settings.route import MqttChannel, MqttRoute
from tests.simulators.broker import Mosquitto
from tests.simulators.inference import VARIANT
from tests.simulators.mqtt_gateway import frontend, motion, simulated, until
from tests.simulators.mqtt_peer import Peer
from tests.simulators.sparkplug import metric, payload

pytestmark = pytest.mark.asyncio
ERRORS = "edge/gw/errors"


def table(count: int) -> ModelManifest:
    """Return a model of rows with `count` numbers, which copies them."""
    x, y = (TensorSpec(name, Datatype.FP32, (-1, count)) for name in ("x", "y"))
    return ModelManifest("table", "1", (x,), (y,), (VARIANT,))


def channels(*paths: str, **settings: Any) -> tuple[MqttChannel, ...]:
    return tuple(MqttChannel(path, **settings) for path in paths)


async def result(client: Peer, topic: str) -> Any:
    """Return the numbers of the next result."""
    return (await client.next_json(f"edge/gw/results/{topic}"))["outputs"][0]["data"]


@pytest.mark.parametrize(
    ("content_type", "content"),
    [
        ("application/json", json.dumps({"t": {"v": "21.5"}, "on": "ON"}).encode()),
        ("application/cbor", cbor2.dumps({"t": {"v": 21.5}, "on": True})),
        ("application/x-ndjson", b'{"t": {"v": 21.5}, "on": "open"}\n'),
        ("application/senml+json", b'[{"n": "on", "vb": true}, {"n": "t", "v": 21.5}]'),
    ],
)
async def test_objects_work_where_one_message_is_the_input(
    broker: Mosquitto, client: Peer, content_type: str, content: bytes
) -> None:
    paths = ("t", "on") if "senml" in content_type else ("t.v", "on")
    route = MqttRoute("rooms", ("rooms/+",), "table", sensor="topic[1]", channel=channels(*paths))
    async with frontend(simulated(table(2)), broker.url, route) as gateway:
        await client.publish("rooms/attic", content, ContentType=content_type)
        assert await result(client, "rooms/attic") == [21.5, 1]
        await until(lambda: gateway.counters().get("acknowledged") == 1)


async def test_names_put_channels_in_the_order_of_the_window(broker: Mosquitto, client: Peer) -> None:
    named = (MqttChannel("c", name="z"), MqttChannel("a", name="x", scale=10.0), MqttChannel("b", name="y"))
    route = MqttRoute("wrists", ("w/+",), "motion", sensor="topic[1]", channel=named, size_rows=2, hop_rows=2)
    async with frontend(simulated(motion(size_rows=2)), broker.url, route):
        await client.publish("w/left", '[{"a": 1, "b": 2, "c": 3}, {"a": 4, "b": 5, "c": 6}]')
        assert await result(client, "wrists/left") == [10, 2, 3, 40, 5, 6]


async def test_another_number_of_channels_than_the_models_is_told(broker: Mosquitto, client: Peer) -> None:
    route = MqttRoute("wrists", ("w/+",), "motion", sensor="topic[1]", channel=channels("a", "b"))
    async with frontend(simulated(), broker.url, route):
        await client.publish("w/left", '{"a": 1, "b": 2}')
        complaint = await client.next_json(ERRORS)
    assert complaint["fault"] == "UNAVAILABLE"
    assert complaint["message"].endswith("takes 3 channels, but the route has 2 (EG-605)")


async def test_packed_bytes_of_lorawan_become_rows(broker: Mosquitto, client: Peer) -> None:
    route = MqttRoute(
        "fields",
        ("application/+/device/+/event/up",),
        "table",
        preset="chirpstack",
        struct="<hhHf",
        channel=channels("[0]", "[1]", "[2]", "[3]"),
    )
    data = base64.b64encode(struct.pack("<hhHf", -1, 2, 3, 0.5)).decode()
    async with frontend(simulated(table(4)), broker.url, route):
        event = {"deviceInfo": {"devEui": "0101010101010101"}, "fPort": 1, "data": data}
        await client.publish("application/a/device/0101010101010101/event/up", json.dumps(event))
        assert await result(client, "fields/0101010101010101") == [-1, 2, 3, 0.5]


@pytest.mark.parametrize("order", ["little", "big"])
async def test_raw_numbers_of_either_byte_order(broker: Mosquitto, client: Peer, order: str) -> None:
    raw = MqttRoute(
        "raw", ("raw/+",), "table", content_type="application/octet-stream", dtype="INT16", byte_order=order
    )
    channel = channels("[1]", "[0]")
    scaled = MqttRoute(
        "chosen",
        ("chosen/+",),
        "table",
        content_type=f"application/octet-stream; dtype=FP32; byteorder={order}",
        channel=channel,
    )
    mark = "<" if order == "little" else ">"
    async with frontend(simulated(table(2)), broker.url, raw, scaled):
        await client.publish("chosen/a", struct.pack(f"{mark}2f", 1, 2))
        assert await result(client, "chosen/chosen%2Fa") == [2, 1]
        await client.publish("raw/a", struct.pack(f"{mark}2h", 1, -2))
        assert await result(client, "raw/raw%2Fa") == [1, -2]


async def test_a_missing_value_is_skipped_taken_from_before_or_refused(broker: Mosquitto, client: Peer) -> None:
    routes = [
        MqttRoute(policy, (f"{policy}/+",), "table", sensor="topic[1]", channel=channels("a", "b", missing=policy))
        for policy in ("skip", "last", "zero", "refuse")
    ]
    async with frontend(simulated(table(2)), broker.url, *routes) as gateway:
        for policy in ("skip", "last", "zero", "refuse"):
            await client.publish(f"{policy}/s", '{"a": 1, "b": 2}')
            assert await result(client, f"{policy}/s") == [1, 2]
            await client.publish(f"{policy}/s", '{"a": 3, "b": "unavailable"}')
        assert await result(client, "last/s") == [3, 2]
        assert await result(client, "zero/s") == [3, 0]
        complaint = await client.next_json(ERRORS)
        await until(lambda: gateway.counters().get("acknowledged") == 8)
        assert gateway.counters()["samples_skipped"] == 1
    assert complaint["topic"] == "refuse/s"
    assert "path 'b' finds the text 'unavailable'" in complaint["message"]
    assert not client.received


async def test_many_values_in_a_small_message_are_read_on_a_thread(broker: Mosquitto, client: Peer) -> None:
    route = MqttRoute("rooms", ("rooms/+",), "table", sensor="topic[1]", channel=channels("a", "b", missing="skip"))
    inference = simulated(table(2))
    async with frontend(inference, broker.url, route) as gateway:
        await client.publish("rooms/attic", "[" + "{}," * 5000 + '{"a": 1, "b": 2}]')
        await client.publish("rooms/attic", '{"a": 3, "b": 4}')
        assert await result(client, "rooms/attic") == [1, 2]
        assert await result(client, "rooms/attic") == [3, 4]
        await until(lambda: gateway.counters().get("acknowledged") == 2)


async def test_a_sparkplug_node_is_asked_for_its_births(broker: Mosquitto, client: Peer) -> None:
    route = MqttRoute(
        "presses", ("spBv1.0/plant/+/#",), "table", preset="sparkplug", channel=channels("Pressure", "Level")
    )
    birth = payload(metric("Pressure", 1, 10, double=80.5), metric("Level", 2, 3, integer=0xFFFFFFFF))
    data = payload(metric(alias=1, double=81.5))
    await client.subscribe("spBv1.0/plant/NCMD/+")
    async with frontend(simulated(table(2)), broker.url, route) as gateway:
        await client.publish("spBv1.0/plant/DDATA/edge-1/press", data, 0)
        command = await client.next("spBv1.0/plant/NCMD/edge-1")
        assert [each.name for each in read_payload(command.payload).metrics] == ["Node Control/Rebirth"]
        assert "alias 1" in (await client.next_json(ERRORS))["message"]
        await client.publish("spBv1.0/plant/DBIRTH/edge-1/press", birth, 0)
        assert await result(client, "presses/edge-1%2Fpress") == [80.5, -1]
        await client.publish("spBv1.0/plant/DDATA/edge-1/press", data, 0)
        assert await result(client, "presses/edge-1%2Fpress") == [81.5, -1]
        assert gateway.counters()["rebirths_requested"] == 1


async def test_descriptors_that_cannot_be_read_end_the_start(broker: Mosquitto, tmp_path: Path) -> None:
    missing = tmp_path / "missing.binpb"
    plc = MqttRoute("plc", ("plc",), "m", content_type="application/protobuf", descriptor=str(missing), message="a.M")
    with pytest.raises(ConfigurationError, match="cannot be read") as refused:
        async with frontend(simulated(), broker.url, plc):
            pass
    assert (refused.value.table, refused.value.key) == ("mqtt.route[plc]", "descriptor")


TAILED = """
[mqtt]
url = "{url}"
[[mqtt.route]]
name = "rooms"
topics = ["$share/gateways/rooms/+"]
model = "comfort"
sensor = "topic[1]"
channel = [{{path = "t"}}, {{path = "h", missing = "last"}}]
"""


async def test_messages_on_the_broker_are_shown_as_rows(broker: Mosquitto, client: Peer, tmp_path: Path) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text(TAILED.format(url=broker.url))
    words = ("-m", "gateway", "routes", "tail", str(config), "--count", "3")
    tail = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=asyncio.subprocess.PIPE)
    ended = asyncio.create_task(tail.communicate())
    await client.subscribe("edge/+/status")
    while not ended.done():  # it does not say when it is subscribed
        for content in ('{"t": 21.5, "h": 40}', '{"t": 22}', '{"t": "warm"}'):
            await client.publish("rooms/attic", content, 0)
        await asyncio.wait({ended}, timeout=0.2)
    lines = (await ended)[0].decode().splitlines()
    assert tail.returncode == 0
    shown = [line.removeprefix("rooms/attic  rooms") for line in lines]
    refusal = "  refused: INVALID: path 't' finds the text 'warm'; "
    assert {line if line.startswith("/") else line[: len(refusal)] for line in shown} <= {
        *("/attic  [[21.5, 40.0]]", "/attic  [[22.0, null]]", refusal),
    }
    assert len(lines) == 3
    assert not client.received  # it left in order: no Will


async def test_a_broker_that_is_away_is_exit_code_3(tmp_path: Path) -> None:
    config = tmp_path / "gateway.toml"
    away = TAILED.format(url="mqtt://127.0.0.1:9").replace("[[mqtt", "connect_timeout_s = 0.2\n[[mqtt", 1)
    config.write_text(away)
    words = ("-m", "gateway", "routes", "tail", str(config))
    tail = await asyncio.create_subprocess_exec(sys.executable, *words, stderr=asyncio.subprocess.PIPE)
    _, said = await tail.communicate()
    assert (tail.returncode, b"mqtt://127.0.0.1:9 cannot be used" in said) == (3, True), said
