"""Sessions in a pipeline: silence ends them, the journal keeps them over a kill, and results say what they hold."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import pytest

from gateway.common.domain.manifest import ModelManifest, TensorSpec
from gateway.common.domain.tensor import Datatype
from gateway.serving.frontends.mqtt.settings.route import MqttRoute
from gateway.serving.frontends.mqtt.settings.samples import MqttWindow
from tests.simulators.inference import VARIANT
from tests.simulators.mqtt_windows import CHANNEL, PLAIN, JournaledPipeline, model, until, value

pytestmark = pytest.mark.asyncio
S = 1_000_000_000
SHORT_S, LONG_S = 0.1, 3_600.0
LASTING = MqttRoute("r", ("s/+",), "m", sensor="topic[1]", size_rows=4, channel=CHANNEL, window=MqttWindow(LONG_S))
ENDING = dataclasses.replace(LASTING, window=MqttWindow(SHORT_S))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def fixed() -> ModelManifest:
    x, y = (TensorSpec(name, Datatype.FP32, (-1, 4, 1)) for name in "xy")
    return ModelManifest("m", "1", (x,), (y,), (VARIANT,))


def results(gateway: JournaledPipeline) -> list[dict[str, Any]]:
    return [json.loads(one.payload) for one in gateway.outlet.sent]


async def test_silence_ends_a_session_and_its_result_says_what_it_holds(folder) -> None:
    gateway = JournaledPipeline(folder, ENDING, manifest=fixed())
    gateway.send(1, value(1), value(2), value(3))
    await until(lambda: gateway.outlet.values == [[0, 1, 2, 3]])
    (result,) = results(gateway)
    assert (result["rows"], result["padded_samples"]) == (3, 1)


async def test_a_model_of_any_length_gets_a_session_as_it_is(folder) -> None:
    gateway = JournaledPipeline(folder, ENDING, manifest=model())
    gateway.send(1, *map(value, range(6)))
    await until(lambda: gateway.outlet.values == [[0, 1, 2, 3], [4, 5]])
    assert [(one["rows"], "padded_samples" in one) for one in results(gateway)] == [(4, False), (2, False)]


async def test_a_result_of_a_window_of_fixed_size_does_not_tell_its_rows(folder) -> None:
    gateway = JournaledPipeline(folder, PLAIN)
    gateway.send(1, value(1), value(2))
    await until(lambda: gateway.outlet.values == [[1, 2]])
    assert "rows" not in results(gateway)[0]


async def test_a_session_that_ended_by_silence_is_not_run_again(folder) -> None:
    first = JournaledPipeline(folder, ENDING)
    first.send(1, value(1), value(2))
    await until(lambda: first.outlet.values == [[1, 2]])
    await first.durable()
    second = JournaledPipeline(first.killed(), ENDING)
    second.send(2, value(3))
    await until(lambda: second.outlet.values == [[3]])


@pytest.mark.parametrize("compacted", [False, True])
async def test_a_session_without_a_delivered_result_is_run_again_under_its_id(folder, *, compacted: bool) -> None:
    first = JournaledPipeline(folder, ENDING)
    first.inference.gate.clear()
    first.send(1, value(1), value(2))
    await until(lambda: first.counters["windows"] == 1)
    if compacted:
        first.journal.renew()
        await asyncio.sleep(0)
    await first.durable()
    second = JournaledPipeline(first.killed(), ENDING)
    await until(lambda: second.outlet.values == [[1, 2]])
    first.inference.gate.set()
    await until(lambda: first.outlet.values == [[1, 2]])
    assert first.outlet.results == second.outlet.results


async def test_time_without_a_process_does_not_end_a_session(folder, monkeypatch) -> None:
    first = JournaledPipeline(folder, LASTING)
    first.send(1, value(1))
    await first.committed(1)
    for name in ("monotonic_ns", "time_ns"):
        clock = getattr(time, name)
        monkeypatch.setattr(time, name, lambda clock=clock: clock() + 1_000_000 * S)
    second = JournaledPipeline(first.killed(), LASTING)
    second.send(2, *map(value, (2, 3, 4)))
    await until(lambda: second.outlet.values == [[1, 2, 3, 4]])


async def test_a_session_that_was_open_ends_by_silence_in_the_next_process(folder) -> None:
    first = JournaledPipeline(folder, LASTING)
    first.send(1, value(1), value(2))
    await first.committed(1)
    second = JournaledPipeline(first.killed(), ENDING)
    await until(lambda: second.outlet.values == [[1, 2]])


@pytest.mark.parametrize(("route", "expected"), [(LASTING, []), (dataclasses.replace(LASTING, qos=0), [[1, 2]])])
async def test_a_stop_ends_sessions_that_no_journal_keeps(folder, route: MqttRoute, expected) -> None:
    gateway = JournaledPipeline(folder, route)
    gateway.send(1, value(1), value(2))
    await gateway.durable()
    assert await gateway.pipeline.drain(1.0)
    assert gateway.outlet.values == expected


async def test_short_sessions_are_dropped_and_counted(folder) -> None:
    route = dataclasses.replace(ENDING, window=MqttWindow(SHORT_S, least_rows=2))
    gateway = JournaledPipeline(folder, route)
    gateway.send(1, value(1))
    await until(lambda: gateway.counters["sessions_short"] == 1)
    gateway.send(2, *map(value, range(5)))
    await until(lambda: gateway.counters["sessions_short"] == 2)
    assert gateway.outlet.values == [[0, 1, 2, 3]]


async def test_a_session_in_the_journal_does_not_fit_windows_of_a_fixed_size(folder) -> None:
    first = JournaledPipeline(folder, ENDING)
    first.outlet.away = True
    first.send(1, value(1), value(2))
    await until(lambda: first.counters["windows"] == 1)
    first.journal.renew()
    await asyncio.sleep(0)
    await first.durable()
    second = JournaledPipeline(first.killed(), dataclasses.replace(LASTING, window=MqttWindow()))
    assert (second.counters["windows_discarded"], second.outlet.values) == (1, [])
