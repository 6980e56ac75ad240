"""Joined rows in a pipeline: messages of three topics, and a journal of another configuration."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path

import pytest

from gateway.serving.frontends.mqtt.messages import Message
from gateway.serving.frontends.mqtt.settings.route import MqttChannel, MqttRoute
from gateway.serving.frontends.mqtt.settings.samples import MqttTime
from tests.simulators.mqtt_windows import JournaledPipeline, model, until

pytestmark = pytest.mark.asyncio
CHANNELS = tuple(MqttChannel(f"{axis}.v", missing="last") for axis in "xyz")
APART = MqttRoute("r", ("s/+/+",), "m", sensor="topic[1]", key="topic[2]", size_rows=1, channel=CHANNELS)
JOINED = dataclasses.replace(APART, time=MqttTime("*.t | [0]", lateness_s=0.1, join="linear", join_tolerance_s=0.05))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def send(gateway: JournaledPipeline, mid: int, axis: str, at_s: float, value: float) -> None:
    payload = json.dumps({"t": at_s, "v": value}).encode()
    gateway.pipeline.receive(Message(f"s/a/{axis}", payload, 1, mid=mid))


async def test_three_topics_are_joined_by_their_times(folder) -> None:
    gateway = JournaledPipeline(folder, JOINED, manifest=model(3))
    stream = [("y", 9.99, 2.0), ("z", 9.98, 5.0), ("x", 10.0, 1.0), ("z", 10.04, 8.0), ("y", 10.01, 4.0)]
    for mid, (axis, at_s, value) in enumerate(stream, 1):
        send(gateway, mid, axis, at_s, value)
    await until(lambda: len(gateway.outlet.values) == 1)
    assert gateway.outlet.values == [pytest.approx([1.0, 3.0, 6.0], abs=1e-3)]


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize(("before", "after"), [(JOINED, APART), (APART, JOINED)])
async def test_a_journal_of_other_rows_is_discarded(folder, before, after, *, compacted: bool) -> None:
    is_other = before is JOINED or compacted
    before = dataclasses.replace(before, size_rows=2, time=dataclasses.replace(before.time, lateness_s=60.0))
    after = dataclasses.replace(after, size_rows=2)
    first = JournaledPipeline(folder, before, manifest=model(3))
    for mid, axis in enumerate("xyz", 1):
        send(first, mid, axis, 10.0, float(mid))
    await first.durable()
    if compacted:
        first.journal.renew()
        await asyncio.sleep(0)
        await first.durable()
    second = JournaledPipeline(first.killed(), after, manifest=model(3))
    assert bool(second.counters["windows_discarded"]) == is_other
    for mid, axis in enumerate("xyzx", 11):
        send(second, mid, axis, 11.0 if mid < 14 else 12.0, float(mid))
    await second.committed(4)
    assert all(isinstance(value, float) for values in second.outlet.values for value in values)  # NaN is a text
