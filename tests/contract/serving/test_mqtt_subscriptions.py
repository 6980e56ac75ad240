"""Subscriptions against a real broker: none outlives the configuration, and several routes share a topic."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from gateway.serving.frontends.mqtt.session import subscriptions
from gateway.serving.frontends.mqtt.session.subscriptions import FILE
from gateway.serving.frontends.mqtt.settings.route import MqttRoute
from tests.simulators import mqtt_gateway
from tests.simulators.broker import Mosquitto
from tests.simulators.mqtt_gateway import echoed, frontend, simulated, until
from tests.simulators.mqtt_peer import Peer, peer

pytestmark = [pytest.mark.asyncio, pytest.mark.parametrize("protocol", ["5", "3.1.1"])]
RESULTS = "edge/gw/results/#"


def single(*topics: str, name: str = "single") -> MqttRoute:
    return MqttRoute(name, topics, "identity_fp32", sensor="topic")


def motion(*topics: str) -> MqttRoute:
    return MqttRoute("wave", topics, "motion", sensor="topic[1]", hop_rows=4)


async def publish(client: Peer, topic: str, *numbers: int) -> None:
    for number in numbers:
        await client.publish(topic, f"[{number}, {number}, {number}]")


async def test_a_changed_filter_replaces_the_earlier_one(broker: Mosquitto, tmp_path: Path, protocol: str) -> None:
    async with peer(broker.port) as client:
        await client.subscribe(RESULTS)
        async with frontend(simulated(), broker.url, motion("s/+/imu"), folder=tmp_path, protocol=protocol):
            pass
        await publish(client, "s/a/imu", 0, 1)
        async with frontend(simulated(), broker.url, motion("s/#"), folder=tmp_path, protocol=protocol) as gateway:
            await publish(client, "s/a/imu", *range(2, 20))
            windows = [(await client.next_json(lambda _: True))["outputs"][0]["data"][::3] for _ in range(5)]
            await until(lambda: gateway.counters().get("acknowledged") == 20)
            assert gateway.counters()["received"] == 20
    assert windows == [list(range(start, start + 4)) for start in range(0, 20, 4)]
    assert client.received == []


async def test_a_removed_route_receives_nothing_and_leaves_no_queue(
    broker: Mosquitto, tmp_path: Path, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    both, one = (single("a/+"), single("b/+", name="other")), single("a/+")
    async with peer(broker.port) as client:
        await client.subscribe(RESULTS)
        async with frontend(simulated(), broker.url, *both, folder=tmp_path, protocol=protocol):
            pass
        await publish(client, "b/1", 1)
        async with frontend(simulated(), broker.url, one, folder=tmp_path, protocol=protocol) as gateway:
            await until(lambda: gateway.counters().get("dropped_unrouted") == 1)  # it waited for the route
            await publish(client, "b/1", 2)
        await publish(client, "b/1", 3)
        await publish(client, "a/1", 4)
        async with frontend(simulated(), broker.url, one, folder=tmp_path, protocol=protocol) as gateway:
            await publish(client, "b/1", 5)
            await publish(client, "a/1", 6)
            assert [echoed(await client.next_json(lambda _: True)) for _ in range(2)] == [4, 6]
            assert gateway.counters()["received"] == 2
    messages = [record.getMessage() for record in caplog.records]
    assert [one for one in messages if one.startswith("subscriptions ended")] == [
        "subscriptions ended: b/+; the configuration has them no more"
    ]
    assert len([one for one in messages if one.startswith("message unrouted: no route takes topic 'b/1'")]) == 1


@pytest.mark.parametrize("lost", ["file", "damaged", "copied"])
async def test_a_session_without_a_record_is_reset_once(
    broker: Mosquitto, tmp_path: Path, protocol: str, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with peer(broker.port) as client:
        await client.subscribe(RESULTS)
        with monkeypatch.context() as patched:
            patched.setattr(subscriptions.time, "time", lambda: 1e9)  # an old backup
            async with frontend(simulated(), broker.url, single("s/+"), folder=tmp_path, protocol=protocol):
                pass
        if lost == "file":
            (tmp_path / FILE).unlink()
        elif lost == "damaged":
            (tmp_path / FILE).write_bytes(b"{")
        else:
            shutil.copy2(tmp_path / FILE, tmp_path / "backup")
            (tmp_path / "backup").rename(tmp_path / FILE)
        async with frontend(simulated(), broker.url, single("s/#"), folder=tmp_path, protocol=protocol) as gateway:
            await publish(client, "s/a", 1)
            assert echoed(await client.next_json(lambda _: True)) == 1
            await until(lambda: gateway.counters().get("acknowledged") == 1)
            assert (gateway.counters()["received"], gateway.counters()["sessions_reset"]) == (1, 1)
            assert gateway.counters().get("connect_failures", 0) == 0
        await publish(client, "s/a", 2)  # the session persists again
        async with frontend(simulated(), broker.url, single("s/#"), folder=tmp_path, protocol=protocol) as gateway:
            assert echoed(await client.next_json(lambda _: True)) == 2
            assert "sessions_reset" not in gateway.counters()


async def test_a_first_start_resets_nothing(broker: Mosquitto, tmp_path: Path, protocol: str) -> None:
    async with frontend(simulated(), broker.url, single("s/+"), folder=tmp_path, protocol=protocol) as gateway:
        assert (gateway.counters()["connections"], "sessions_reset" in gateway.counters()) == (2, False)


def results(client: Peer) -> dict[str, list[float]]:
    """Return the values of all results by route."""
    found: dict[str, list[float]] = {}
    for message in client.received:
        found.setdefault(message.topic.split("/")[3], []).append(echoed(json.loads(message.payload)))
    return found


async def test_one_sensor_feeds_three_routes(broker: Mosquitto, protocol: str) -> None:
    """The broker delivers s/a/imu once at QoS 1; what no route wants is acknowledged without an event."""
    routes = (
        single("s/+/imu", name="one"),
        MqttRoute("two", ("s/a/+", "s/a/imu"), "identity_fp32", sensor="topic", qos=0),
        MqttRoute("three", ("s/a/imu",), "identity_fp32", sensor="topic", at_most_once=True),
    )
    async with frontend(simulated(), broker.url, *routes, protocol=protocol) as gateway, peer(broker.port) as client:
        await client.subscribe(RESULTS, "edge/gw/errors")
        await publish(client, "s/a/imu", *range(20))
        await publish(client, "s/b/other", 1)
        await until(lambda: len(client.received) == 60 and gateway.counters().get("acknowledged") == 21)
        assert results(client) == {name: [float(number) for number in range(20)] for name in ("one", "two", "three")}
        assert len({json.loads(message.payload)["id"] for message in client.received}) == 60
        assert (gateway.counters()["received"], gateway.counters()["unwanted"]) == (21, 1)
        assert "dropped_unrouted" not in gateway.counters()
        assert "duplicates" not in gateway.counters()


async def test_a_message_is_acknowledged_after_its_last_route(broker: Mosquitto, protocol: str) -> None:
    inference = simulated()
    absent = inference.manifests.pop("moves")
    held = MqttRoute("held", ("s/+",), "moves", sensor="topic", model_away="hold")
    routes = (single("s/#"), held, MqttRoute("once", ("s/1",), "identity_fp32", sensor="topic", at_most_once=True))
    async with frontend(inference, broker.url, *routes, protocol=protocol) as gateway, peer(broker.port) as client:
        await client.subscribe(RESULTS)
        await client.publish("s/1", "[0.25, 0.75]")
        await until(lambda: gateway.counters().get("answered") == 2)
        assert "acknowledged" not in gateway.counters()
        inference.manifests["moves"] = absent
        await until(lambda: gateway.counters().get("acknowledged") == 1)
        assert gateway.counters()["answered"] == 3


async def test_a_kill_loses_and_doubles_no_sample_of_three_routes(
    broker: Mosquitto, tmp_path: Path, protocol: str
) -> None:
    filters = ("wave/+", "wave/a", "wave/#")
    async with peer(broker.port) as client:
        await client.subscribe(RESULTS)
        command = (sys.executable, "-m", mqtt_gateway.__name__, broker.url, str(tmp_path), protocol, *filters)
        for kill in range(4):
            process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
            try:
                assert process.stdout
                assert await process.stdout.readline() == b"online\n"
                await publish(client, "wave/a", *range(25 * kill, 25 * kill + 25))  # not all are answered by now
            finally:
                process.kill()
                await process.wait()
        routes = [
            MqttRoute(f"wave{index or ''}", (one,), "motion", sensor="topic[1]", hop_rows=4)
            for index, one in enumerate(filters)
        ]
        async with frontend(simulated(), broker.url, *routes, folder=tmp_path, protocol=protocol):
            await until(lambda: len({json.loads(message.payload)["id"] for message in client.received}) == 75)
    windows = Counter(
        (message.topic.split("/")[3], tuple(json.loads(message.payload)["outputs"][0]["data"][::3]))
        for message in client.received
    )
    expected = {tuple(range(start, start + 4)) for start in range(0, 100, 4)}
    assert set(windows) == {(name, window) for name in ("wave", "wave1", "wave2") for window in expected}
