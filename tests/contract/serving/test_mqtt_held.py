"""Messages of routes whose model is away: they wait, none is lost, and no other route waits with them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.common.domain.tensor import Datatype
from gateway.serving.frontends.mqtt.settings.route import MqttRoute
from tests.simulators.broker import Mosquitto
from tests.simulators.inference import SimulatedInference, identity
from tests.simulators.mqtt_gateway import frontend, motion, simulated, until
from tests.simulators.mqtt_peer import Peer, peer

pytestmark = pytest.mark.asyncio
SLOW = MqttRoute("slow", ("slow/+",), "slow", sensor="topic[1]")
WAVE = MqttRoute("wave", ("wave/+",), "motion", sensor="topic[1]", hop_rows=4)
OTHERS = tuple(MqttRoute(f"r{n}", (f"r{n}/+",), "identity_fp32", sensor="topic[1]") for n in range(9))
COUNT = 100
"""Several times what mosquitto has in flight at once."""


def loading(*names: str) -> SimulatedInference:
    """Return inference whose models `names` load."""
    inference = simulated(identity(Datatype.FP32), identity(Datatype.FP32, name="slow"), motion())
    inference.loading |= {*names}
    return inference


def loaded(inference: SimulatedInference, gateway: Any) -> None:
    inference.loading.clear()
    gateway.readiness_changed()


async def values(home: Peer, topic: str, count: int) -> list[float]:
    return [float((await home.next_json(topic))["outputs"][0]["data"][0]) for _ in range(count)]


async def sent(home: Peer, topic: str, count: int = COUNT, **more: Any) -> list[float]:
    for number in range(count):
        await home.publish(topic, f"[{number}]", **more)
    return [float(number) for number in range(count)]


@pytest.mark.parametrize("qos", [0, 1])
async def test_a_route_whose_model_loads_keeps_all_and_stops_no_other(
    broker: Mosquitto, tmp_path: Path, qos: int
) -> None:
    inference = loading("slow")
    async with peer(broker.port) as home:
        await home.subscribe("edge/gw/results/#", "edge/gw/errors")
        async with frontend(inference, broker.url, SLOW, *OTHERS, folder=tmp_path) as gateway:
            numbers = await sent(home, "slow/a", qos=qos)
            for route in OTHERS:
                assert await sent(home, f"{route.name}/a", 10) == await values(
                    home, f"edge/gw/results/{route.name}/a", 10
                )
            await until(lambda: gateway.counters().get("acknowledged", 0) == 90 + COUNT * qos)
            assert not home.received
            loaded(inference, gateway)
            assert await values(home, "edge/gw/results/slow/a", COUNT) == numbers


async def test_what_waited_at_the_broker_and_over_a_restart_is_answered_in_order(
    broker: Mosquitto, tmp_path: Path
) -> None:
    inference = loading("slow")
    async with peer(broker.port) as home:
        await home.subscribe("edge/gw/results/#", "edge/gw/errors")
        async with frontend(inference, broker.url, SLOW, folder=tmp_path):
            """Subscribe."""
        numbers = await sent(home, "slow/a")
        for _ in range(2):
            async with frontend(inference, broker.url, SLOW, folder=tmp_path) as gateway:
                await until(lambda: gateway.counters()["queued"] >= COUNT - 1)
        async with frontend(inference, broker.url, SLOW, folder=tmp_path) as gateway:
            more = await sent(home, "slow/a", 3)
            await until(lambda: gateway.counters()["queued"] >= COUNT + 2)
            loaded(inference, gateway)
            assert await values(home, "edge/gw/results/slow/a", COUNT + 3) == numbers + more
        async with frontend(loading("slow"), broker.url, SLOW, folder=tmp_path) as gateway:
            assert gateway.counters()["queued"] == 0
        assert not home.received


async def test_samples_of_windows_wait_for_their_model(broker: Mosquitto, tmp_path: Path) -> None:
    inference = loading("motion")
    async with peer(broker.port) as home:
        await home.subscribe("edge/gw/results/#", "edge/gw/errors")
        async with frontend(inference, broker.url, WAVE, folder=tmp_path) as gateway:
            for number in range(6):
                await home.publish("wave/a", f"[{number}, 0, 0]")
            await until(lambda: gateway.counters().get("acknowledged") == 6)
        async with frontend(inference, broker.url, WAVE, folder=tmp_path) as gateway:
            loaded(inference, gateway)
            for number in range(6, 8):
                await home.publish("wave/a", f"[{number}, 0, 0]")
            windows = [(await home.next_json("edge/gw/results/wave/a"))["outputs"][0]["data"][::3] for _ in range(2)]
        assert windows == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert not home.received


async def test_a_model_that_is_refused_after_it_loaded_refuses_what_waited(broker: Mosquitto, tmp_path: Path) -> None:
    inference = loading("slow")
    async with peer(broker.port) as home:
        await home.subscribe("edge/gw/results/#", "edge/gw/errors")
        async with frontend(inference, broker.url, SLOW, folder=tmp_path) as gateway:
            await sent(home, "slow/a", 3)
            await until(lambda: gateway.counters()["queued"] == 2)
            inference.unready.add("slow")
            loaded(inference, gateway)
            assert [(await home.next_json("edge/gw/errors"))["fault"] for _ in range(3)] == ["UNAVAILABLE"] * 3


async def test_messages_wait_for_a_loading_model_no_longer_than_allowed(broker: Mosquitto, tmp_path: Path) -> None:
    async with peer(broker.port) as home:
        await home.subscribe("edge/gw/results/#", "edge/gw/errors")
        async with frontend(loading("slow"), broker.url, SLOW, folder=tmp_path, hold_s=0.2):
            await sent(home, "slow/a", 2)
            refused = [await home.next_json("edge/gw/errors") for _ in range(2)]
    assert [one["message"] for one in refused] == ["model 'slow' is loading: its trial runs; try again"] * 2


async def test_messages_beyond_the_bound_are_refused_with_its_name(broker: Mosquitto, tmp_path: Path) -> None:
    inference = loading("slow")
    async with peer(broker.port) as home:
        await home.subscribe("edge/gw/results/#", "edge/gw/errors")
        async with frontend(inference, broker.url, SLOW, folder=tmp_path, max_held_bytes=3_000) as gateway:
            await sent(home, "slow/a", 6)
            refused = [await home.next_json("edge/gw/errors") for _ in range(2)]
            assert all("mqtt.max_held_bytes" in one["message"] for one in refused)
            loaded(inference, gateway)
            assert await values(home, "edge/gw/results/slow/a", 4) == [0, 1, 2, 3]


async def test_held_messages_of_a_route_that_is_gone_are_told(
    broker: Mosquitto, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with peer(broker.port) as home:
        async with frontend(loading("slow"), broker.url, SLOW, folder=tmp_path) as gateway:
            await sent(home, "slow/a", 3)
            await until(lambda: gateway.counters()["queued"] == 2)
        async with frontend(simulated(), broker.url, WAVE, folder=tmp_path) as gateway:
            assert gateway.counters()["windows_discarded"] == 3
    assert "3 records of route 'slow', which is not configured" in caplog.text


async def test_without_a_journal_a_message_stays_at_the_broker(broker: Mosquitto) -> None:
    inference = loading("slow")
    async with peer(broker.port) as home:
        await home.subscribe("edge/gw/results/#", "edge/gw/errors")
        async with frontend(inference, broker.url, SLOW) as gateway:
            numbers = await sent(home, "slow/a", 5)
            await until(lambda: gateway.counters()["queued"] == 4)
            assert not gateway.counters().get("acknowledged")
        async with frontend(inference, broker.url, SLOW) as gateway:
            await until(lambda: gateway.counters()["queued"] == 4)
            loaded(inference, gateway)
            assert await values(home, "edge/gw/results/slow/a", 5) == numbers
            await asyncio.sleep(0)
        assert not home.received
