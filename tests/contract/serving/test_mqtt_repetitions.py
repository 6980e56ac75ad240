"""Which messages repeat an earlier one, with real brokers that send again, and that forget their sessions."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gateway.serving.frontends.mqtt.frontend import MqttFrontend
from gateway.serving.frontends.mqtt.settings.route import MqttRoute
from tests.simulators.broker import Mosquitto, Relay, relay
from tests.simulators.mqtt_gateway import frontend, motion, simulated, until
from tests.simulators.mqtt_peer import Peer, peer

pytestmark = pytest.mark.asyncio
SINGLE = MqttRoute("r", ("s/+",), "identity_fp32", sensor="topic[1]")
WINDOWS = MqttRoute("r", ("s/+",), "motion", sensor="topic[1]")
RESULT = "edge/gw/results/r/a"
CONSTANT = {"r": "[1, 1, 1]", "identity_fp32": "[1]", "motion": "[1, 1, 1]"}


@pytest_asyncio.fixture
async def sensor(broker: Mosquitto) -> AsyncIterator[Peer]:
    async with peer(broker.port) as one:
        yield one


@asynccontextmanager
async def serving(way: Relay | Mosquitto, route: MqttRoute, folder: Path) -> AsyncIterator[MqttFrontend]:
    """Run a frontend with a journal; windows of its model have ten samples."""
    inference = simulated(*simulated().manifests.values(), motion(size_rows=10, hop_rows=10))
    async with frontend(inference, way.url, route, folder=folder) as gateway:
        yield gateway


async def send(sensor: Peer, route: MqttRoute, count: int, **properties: Any) -> None:
    """Send equal readings."""
    for _ in range(count):
        await sensor.publish("s/a", CONSTANT[route.model], **properties)


async def counted(gateway: MqttFrontend, route: MqttRoute, count: int) -> None:
    """Wait until readings are acknowledged, and check that each one counts."""
    await until(lambda: gateway.counters().get("acknowledged", 0) >= count)
    name = "answered" if route is SINGLE else "samples"
    await until(lambda: gateway.counters().get(name, 0) >= count)
    assert (gateway.counters()[name], gateway.counters().get("duplicates", 0)) == (count, 0)


@pytest.mark.parametrize("properties", [{"UserProperty": ("id", "wrist")}, {"CorrelationData": b"7"}])
@pytest.mark.parametrize("route", [SINGLE, WINDOWS], ids=["single", "windows"])
async def test_equal_readings_count_whatever_names_they_carry(
    broker: Mosquitto, sensor: Peer, tmp_path: Path, route: MqttRoute, properties: dict[str, Any]
) -> None:
    async with serving(broker, route, tmp_path / "journal") as gateway:
        await send(sensor, route, 30, **properties)
        await counted(gateway, route, 30)
        results = 30 if route is SINGLE else 3
        await until(lambda: gateway.counters().get("answered") == results)


@pytest.mark.parametrize("rule", ["property.m", "payload.m"])
@pytest.mark.parametrize("model", ["identity_fp32", "motion"])
async def test_a_route_may_say_what_identifies_its_messages(
    broker: Mosquitto, sensor: Peer, tmp_path: Path, model: str, rule: str
) -> None:
    count = 10 if model == "motion" else 1
    route = MqttRoute("r", ("s/+",), model, sensor="topic[1]", message_id=rule, rows="v")
    async with serving(broker, route, tmp_path / "journal") as gateway:
        for name in [*range(count), *range(count), ""]:
            document = {"v": json.loads(CONSTANT[model])} | ({"m": name} if rule == "payload.m" else {})
            await sensor.publish("s/a", json.dumps(document), UserProperty=("m", str(name)))
        await until(lambda: gateway.counters().get("acknowledged") == 2 * count + 1)
        assert gateway.counters()["duplicates"] == count
        assert gateway.counters().get("samples", count + 1) == count + 1
        await until(lambda: gateway.counters().get("answered") == (1 if model == "motion" else 2))


async def test_a_named_message_that_comes_while_its_first_copy_is_under_way_shares_its_result(
    broker: Mosquitto, sensor: Peer, tmp_path: Path
) -> None:
    inference, route = simulated(), dataclasses.replace(SINGLE, message_id="property.m")
    inference.gate.clear()
    async with frontend(inference, broker.url, route) as gateway:
        await send(sensor, route, 2, UserProperty=("m", "1"))
        await until(lambda: gateway.counters().get("duplicates") == 1)
        assert "acknowledged" not in gateway.counters()
        inference.gate.set()
        await until(lambda: gateway.counters().get("acknowledged") == 2)
        assert gateway.counters()["answered"] == len(inference.requests) == 1


async def test_results_of_equal_packets_of_two_sessions_have_different_ids(broker: Mosquitto, tmp_path: Path) -> None:
    ids: list[str] = []
    for _ in range(2):
        async with serving(broker, SINGLE, tmp_path / "journal"), peer(broker.port) as sensor:
            await sensor.subscribe(RESULT)
            await send(sensor, SINGLE, 1)
            ids.append((await sensor.next_json(RESULT))["id"])
        await broker.forget()
    assert len(set(ids)) == 2


async def undelivered(way: Relay, sensor: Peer, route: MqttRoute, count: int) -> None:
    """Send readings that the broker puts on the wire and that do not arrive: it sends them again, with DUP."""
    way.stall()
    await send(sensor, route, count)
    await way.cut()


@pytest.mark.parametrize("route", [SINGLE, WINDOWS], ids=["single", "windows"])
async def test_packet_ids_of_a_session_that_the_broker_forgot_mean_nothing(
    broker: Mosquitto, tmp_path: Path, route: MqttRoute
) -> None:
    async with relay(broker) as way, serving(way, route, tmp_path / "journal") as gateway:
        async with peer(broker.port) as sensor:
            await send(sensor, route, 40)
        await counted(gateway, route, 40)
        await broker.forget()
        await until(lambda: gateway.counters().get("connections") == 4 and gateway.online.is_set())
        async with peer(broker.port) as sensor:
            await undelivered(way, sensor, route, 40)
            await counted(gateway, route, 80)


async def test_packet_ids_of_a_session_that_the_broker_forgot_mean_nothing_after_a_restart(
    broker: Mosquitto, tmp_path: Path
) -> None:
    async with serving(broker, WINDOWS, tmp_path / "journal") as gateway:
        async with peer(broker.port) as sensor:
            await send(sensor, WINDOWS, 20)
        await counted(gateway, WINDOWS, 20)
    await broker.forget()
    async with serving(broker, WINDOWS, tmp_path / "journal"):
        pass  # it has a new session now
    async with peer(broker.port) as sensor, relay(broker) as way:
        async with serving(way, WINDOWS, tmp_path / "journal"):
            way.stall()
            await send(sensor, WINDOWS, 20)
        async with serving(broker, WINDOWS, tmp_path / "journal") as gateway:
            await counted(gateway, WINDOWS, 20)
