"""Sessions and joins by time, through a broker: three topics become rows, and silence ends a window."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from gateway.serving.frontends.mqtt.settings.route import MqttChannel, MqttRoute
from gateway.serving.frontends.mqtt.settings.samples import MqttTime, MqttWindow
from tests.simulators.broker import Mosquitto
from tests.simulators.mqtt_gateway import frontend, motion, simulated, until
from tests.simulators.mqtt_peer import peer

pytestmark = pytest.mark.asyncio
SESSION = MqttRoute("strokes", ("strokes/+",), "motion", sensor="topic[1]", window=MqttWindow(0.2, pad="last"))
JOINED = MqttRoute(
    "imu",
    ("imu/+/+",),
    "motion",
    sensor="topic[1]",
    key="topic[2]",
    hop_rows=4,
    time=MqttTime("*.t | [0]", lateness_s=60.0, join="nearest", join_tolerance_s=0.02),
    channel=tuple(MqttChannel(f"{axis}.v", name=axis) for axis in "xyz"),
)
LATER_S = 100


async def test_silence_ends_a_session_which_is_padded(broker: Mosquitto, tmp_path: Path) -> None:
    async with peer(broker.port) as home, frontend(simulated(), broker.url, SESSION, folder=tmp_path):
        await home.subscribe("edge/gw/results/#")
        await home.publish("strokes/a", "[[1, 1, 1], [2, 2, 2]]")
        result = await home.next_json("edge/gw/results/strokes/a")
    assert result["outputs"][0]["data"][::3] == [1, 2, 2, 2]
    assert (result["rows"], result["padded_samples"]) == (2, 2)


async def test_a_session_goes_on_after_a_stop(broker: Mosquitto, tmp_path: Path) -> None:
    lasting = dataclasses.replace(SESSION, window=MqttWindow(3_600.0))
    async with peer(broker.port) as home:
        await home.subscribe("edge/gw/results/#")
        async with frontend(simulated(), broker.url, lasting, folder=tmp_path) as gateway:
            await home.publish("strokes/a", "[[1, 1, 1], [2, 2, 2]]")
            await until(lambda: gateway.counters().get("acknowledged") == 1)
        async with frontend(simulated(), broker.url, lasting, folder=tmp_path):
            await home.publish("strokes/a", "[[3, 3, 3], [4, 4, 4]]")
            result = await home.next_json("edge/gw/results/strokes/a")
    assert (result["outputs"][0]["data"][::3], result["rows"]) == ([1, 2, 3, 4], 4)


async def test_three_topics_become_rows_by_their_times(broker: Mosquitto, tmp_path: Path) -> None:
    async with peer(broker.port) as home, frontend(simulated(motion()), broker.url, JOINED, folder=tmp_path):
        await home.subscribe("edge/gw/results/#")
        for axis, shift_s in (("z", 0.01), ("x", 0.0), ("y", -0.01)):  # one channel after the other
            for number in range(4):
                at_s = 1_700_000_000 + number / 10 + shift_s
                await home.publish(f"imu/left/{axis}", json.dumps({"t": at_s, "v": number + ord(axis)}))
        await home.publish("imu/left/x", json.dumps({"t": 1_700_000_000 + LATER_S, "v": 0}))
        result = await home.next_json("edge/gw/results/imu/left")
    expected = [number + ord(axis) for number in range(4) for axis in "xyz"]
    assert result["outputs"][0]["data"] == expected
    assert "rows" not in result
