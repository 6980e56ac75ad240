"""Samples of windows survive the process: the journal, replayed by another frontend on the same broker."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.serving.frontends.mqtt.frontend import MqttFrontend
from gateway.serving.frontends.mqtt.journal.journal import FILE, recover
from gateway.serving.frontends.mqtt.journal.records import SampleRecord
from gateway.serving.frontends.mqtt.settings.route import MqttChannel, MqttRoute
from gateway.serving.frontends.mqtt.settings.samples import MqttTime
from tests.simulators import mqtt_gateway
from tests.simulators.broker import Mosquitto, Relay, relay
from tests.simulators.mqtt_gateway import frontend, simulated, until
from tests.simulators.mqtt_peer import Peer, peer
from tests.simulators.mqtt_windows import replayed

pytestmark = pytest.mark.asyncio
ARRAYS = MqttRoute("wave", ("wave/+",), "motion", sensor="topic[1]", hop_rows=4)
STAMPED = MqttRoute(
    "wave",
    ("wave/+",),
    "motion",
    sensor="topic[1]",
    hop_rows=4,
    time=MqttTime("t", sequence="n", lateness_s=60.0),
    channel=tuple(MqttChannel(name, name=name) for name in "xyz"),
)
RESULT = "edge/gw/results/wave/a"


def array(number: int) -> str:
    return f"[{number}, {number}, {number}]"


def stamped(number: int, at_s: float | None = None) -> str:
    line = {"t": 1_700_000_000 + (number if at_s is None else at_s), "n": number}
    return json.dumps(line | dict.fromkeys("xyz", number))


def samples(result: Any) -> list[float]:
    """Return the first channel of the window that the model returned."""
    return [float(value) for value in result["outputs"][0]["data"][::3]]


@asynccontextmanager
async def journaled(
    broker: Mosquitto | Relay, folder: Path, route: MqttRoute, **settings: Any
) -> AsyncIterator[MqttFrontend]:
    async with frontend(simulated(), broker.url, route, folder=folder, **settings) as gateway:
        yield gateway


async def watching(broker: Mosquitto, home: Peer) -> None:
    await home.subscribe("edge/gw/results/#", "edge/gw/errors")


@asynccontextmanager
async def killed(broker: Mosquitto | Relay, folder: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a frontend with a journal in a process of its own; kill it at the end."""
    command = (sys.executable, "-m", mqtt_gateway.__name__, broker.url, str(folder))
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    try:
        assert process.stdout
        assert await process.stdout.readline() == b"online\n"
        yield process
    finally:
        process.kill()
        await process.wait()


async def test_a_window_continues_in_the_next_process(broker: Mosquitto, tmp_path: Path) -> None:
    async with peer(broker.port) as home:
        await watching(broker, home)
        async with killed(broker, tmp_path):
            for number in range(6):
                await home.publish("wave/a", array(number))
            first = await home.next_json(RESULT)
            await until(lambda: len(kept(tmp_path)) == 6)
        async with journaled(broker, tmp_path, ARRAYS):
            for number in (6, 7):
                await home.publish("wave/a", array(number))
            # The kill may come before the record of the delivery is on the disk: then the first one comes again.
            second = await home.next_json(lambda message: samples(json.loads(message.payload)) != samples(first))
        assert (samples(first), samples(second)) == ([0, 1, 2, 3], [4, 5, 6, 7])


def kept(folder: Path) -> list[SampleRecord]:
    """Return the samples in the journal."""
    return [one for one in replayed(recover((folder / FILE).read_bytes())) if isinstance(one, SampleRecord)]


async def test_a_message_is_acknowledged_once_its_samples_are_on_the_disk(broker: Mosquitto, tmp_path: Path) -> None:
    async with peer(broker.port) as home, journaled(broker, tmp_path, ARRAYS) as gateway:
        for number in range(5):
            await home.publish("wave/a", array(number))
        await until(lambda: gateway.counters().get("acknowledged") == 5)
        assert [one.array()[0, 0] for one in kept(tmp_path)] == [0, 1, 2, 3, 4]


async def test_samples_whose_acknowledgement_was_lost_in_a_kill_are_added_once(
    broker: Mosquitto, tmp_path: Path
) -> None:
    async with relay(broker) as way, peer(broker.port) as home:
        await watching(broker, home)
        async with killed(way, tmp_path):
            way.hold()
            for _ in range(6):
                await home.publish("wave/a", array(1))
            await until(lambda: len(kept(tmp_path)) == 6)
        await way.cut()
        async with journaled(way, tmp_path, ARRAYS) as gateway:
            await until(lambda: gateway.counters().get("acknowledged") == 6)
            assert gateway.counters()["duplicates"] == 6
            for _ in range(2):
                await home.publish("wave/a", array(1))
            for _ in range(2):
                await home.next_json(RESULT)
            await until(lambda: gateway.counters().get("acknowledged") == 8)
            assert gateway.counters()["samples"] == 2


async def test_a_window_without_a_delivered_result_runs_again_under_the_same_id(
    broker: Mosquitto, tmp_path: Path
) -> None:
    async with peer(broker.port) as home:
        await watching(broker, home)
        inference = simulated()
        inference.gate.clear()
        async with frontend(inference, broker.url, ARRAYS, folder=tmp_path, grace_s=0.1) as gateway:
            for number in range(4):
                await home.publish("wave/a", array(number))
            await until(lambda: gateway.counters().get("acknowledged") == 4)
        ids = []
        for _ in range(2):  # the second start finds a journal whose result was delivered
            async with journaled(broker, tmp_path, ARRAYS) as gateway:
                if not ids:
                    result = await home.next_json(RESULT)
                    ids.append(result["id"])
                    await until(lambda: gateway.counters().get("answered") == 1)
                else:
                    assert gateway.counters().get("windows", 0) == 0
        assert samples(result) == [0, 1, 2, 3]


async def test_the_first_window_of_a_sensor_waits_until_its_number_is_on_the_disk(
    broker: Mosquitto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill before that, the samples would come again, and their window under another id."""
    synced, sync = threading.Event(), os.fdatasync
    inference, single = simulated(), MqttRoute("single", ("single",), "identity_fp32")
    async with peer(broker.port) as home, frontend(inference, broker.url, ARRAYS, single, folder=tmp_path) as gateway:
        await watching(broker, home)
        monkeypatch.setattr(os, "fdatasync", lambda file: (synced.wait(), sync(file)))
        for number in range(12):
            await home.publish("wave/a", array(number))
        await until(lambda: gateway.counters().get("windows") == 3)
        await home.publish("single", "1", qos=0)
        try:
            await until(lambda: bool(inference.requests))
            assert [request.model for request in inference.requests] == ["identity_fp32"]
        finally:
            synced.set()
        results = [samples(await home.next_json(RESULT))[0] for _ in range(3)]
        assert results == [0, 4, 8]
        for number in range(12, 16):
            await home.publish("wave/a", array(number))
        assert samples(await home.next_json(RESULT))[0] == 12


async def test_samples_are_put_in_order_across_a_restart(broker: Mosquitto, tmp_path: Path) -> None:
    async with peer(broker.port) as home:
        await watching(broker, home)
        async with journaled(broker, tmp_path, STAMPED) as gateway:
            for number in (0, 2, 3):
                await home.publish("wave/a", stamped(number))
            await until(lambda: gateway.counters().get("acknowledged") == 3)
        async with journaled(broker, tmp_path, STAMPED):
            await home.publish("wave/a", stamped(1))
            result = await home.next_json(RESULT)
        assert samples(result) == [0, 1, 2, 3]
        assert (result["started_at"], result["ended_at"]) == ("2023-11-14T22:13:20.000Z", "2023-11-14T22:13:23.000Z")
        assert "missing_samples" not in result


async def test_without_a_journal_a_stop_gives_up_what_samples_wait_for(broker: Mosquitto) -> None:
    async with peer(broker.port) as home:
        await watching(broker, home)
        async with frontend(simulated(), broker.url, STAMPED) as gateway:
            for number in (0, 2, 3, 4):
                await home.publish("wave/a", stamped(number))
            await until(lambda: gateway.counters().get("acknowledged") == 4)
        result = await home.next_json(RESULT)
    assert (samples(result), result["missing_samples"]) == ([0, 2, 3, 4], 1)


async def test_a_result_tells_what_is_missing(broker: Mosquitto) -> None:
    route = MqttRoute(
        "wave",
        ("wave/+",),
        "motion",
        sensor="topic[1]",
        hop_rows=4,
        time=MqttTime("t", sequence="n"),
        channel=STAMPED.channel,
    )
    async with peer(broker.port) as home, frontend(simulated(), broker.url, route):
        await watching(broker, home)
        for number in (0, 1, 4, 5):
            await home.publish("wave/a", stamped(number))
        result = await home.next_json(RESULT)
    assert (samples(result), result["missing_samples"], result["longest_gap_s"]) == ([0, 1, 4, 5], 2, 3.0)


async def test_a_clock_that_is_ahead_is_refused(broker: Mosquitto) -> None:
    async with peer(broker.port) as home, frontend(simulated(), broker.url, STAMPED):
        await watching(broker, home)
        await home.publish("wave/a", stamped(0, at_s=1e9))
        refused = await home.next_json("edge/gw/errors")
    assert "in the future; correct the sensor's clock or unit" in refused["message"]


async def test_messages_wait_for_their_model(broker: Mosquitto) -> None:
    inference = simulated()
    absent = inference.manifests.pop("moves")
    route = MqttRoute("moves", ("moves/+",), "moves", sensor="topic[1]", model_away="hold")
    async with peer(broker.port) as home, frontend(inference, broker.url, route) as gateway:
        await watching(broker, home)
        for score in (0.25, 0.75):
            await home.publish("moves/a", f"[{score}, {1 - score}]")
        await until(lambda: gateway.counters().get("held_model_away") == 1)
        assert gateway.counters().get("acknowledged", 0) == 0
        inference.manifests["moves"] = absent
        results = [await home.next_json("edge/gw/results/moves/a") for _ in range(2)]
    assert [one["label"] for one in results] == ["walk", "still"]


@pytest.mark.parametrize(("gap", "windows"), [("mark", [[0, 1, 3, 4], [5, 6, 7, 8]]), ("reset", [[3, 4, 5, 6]])])
async def test_a_window_tells_a_message_that_was_refused_inside_it(
    broker: Mosquitto, tmp_path: Path, gap: str, windows: list[list[float]]
) -> None:
    route = MqttRoute("wave", ("wave/+",), "motion", sensor="topic[1]", hop_rows=4, time=MqttTime(gap=gap))
    async with peer(broker.port) as home:
        async with journaled(broker, tmp_path, route) as gateway:
            await watching(broker, home)
            for number in range(2):
                await home.publish("wave/a", array(number))
                await home.publish("wave/b", array(number))
            await home.publish("wave/a", "[2, 2")
            await home.next_json("edge/gw/errors")
            await home.publish("wave/a", array(3))
            await until(lambda: gateway.counters().get("acknowledged") == 6)
        async with journaled(broker, tmp_path, route) as gateway:
            for number in range(4, 9):
                await home.publish("wave/a", array(number))
            for number in range(2, 4):
                await home.publish("wave/b", array(number))
            results = [await home.next_json(RESULT) for _ in windows]
            other = await home.next_json("edge/gw/results/wave/b")
    assert [samples(one) for one in results] == windows
    assert [one.get("missing_samples", 0) for one in results] == [int(len(windows) == 2), 0][: len(windows)]
    assert "missing_samples" not in other
