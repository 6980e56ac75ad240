"""Windows over a kill: another process goes on with the journal's file as it was at any moment."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import resource
import time
from pathlib import Path
from typing import Any

import pytest

from gateway.serving.frontends.mqtt.journal import journal as journals
from gateway.serving.frontends.mqtt.journal.journal import FILE, recover
from gateway.serving.frontends.mqtt.journal.records import SampleRecord
from gateway.serving.frontends.mqtt.journal.writer import JournalWriter
from gateway.serving.frontends.mqtt.messages import Message
from gateway.serving.frontends.mqtt.pipeline import recovery
from gateway.serving.frontends.mqtt.pipeline.windows import WINDOWS_LIMIT
from gateway.serving.frontends.mqtt.settings.results import ResultSettings
from gateway.serving.frontends.mqtt.settings.route import MqttChannel, MqttRoute
from tests.simulators.mqtt_windows import (
    CHANNEL,
    NUMBERED,
    PLAIN,
    JournaledPipeline,
    model,
    numbered,
    replayed,
    until,
    value,
)

S = 1_000_000_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.mark.asyncio
async def test_time_without_a_process_is_no_silence_of_a_sensor(folder, monkeypatch) -> None:
    first = JournaledPipeline(folder, PLAIN)
    first.send(1, value(1))
    await first.committed(1)
    for name in ("monotonic_ns", "time_ns"):
        clock = getattr(time, name)
        monkeypatch.setattr(time, name, lambda clock=clock: clock() + 1_000_000 * S)
    second = JournaledPipeline(first.killed(), PLAIN)
    second.send(2, value(2))
    await until(lambda: second.outlet.values == [[1, 2]])
    assert not second.counters["windows_restarted"]


@pytest.mark.asyncio
async def test_samples_wait_for_the_missing_one_again_after_a_restart(folder) -> None:
    first = JournaledPipeline(folder, NUMBERED)
    for mid in (1, 3):
        first.send(mid, numbered(mid))
    await first.committed(2)
    await asyncio.sleep(0)
    after = first.killed()
    await asyncio.sleep(0.2)
    second = JournaledPipeline(after, NUMBERED)
    await asyncio.sleep(0.05)
    second.send(2, numbered(2))
    second.send(4, numbered(4))
    await until(lambda: second.outlet.values == [[1, 2], [3, 4]])


@pytest.mark.asyncio
async def test_an_expired_window_with_a_result_does_not_run_again(folder) -> None:
    first = JournaledPipeline(folder, NUMBERED)
    for mid in (1, 3):
        first.send(mid, numbered(mid))
    await until(lambda: first.outlet.values == [[1, 3]])
    await first.durable()
    second = JournaledPipeline(first.killed(), NUMBERED)
    second.send(2, numbered(2))
    for mid in (4, 5):
        second.send(mid, numbered(mid))
    await until(lambda: second.outlet.values == [[4, 5]])
    assert second.counters["samples_late"] == 1
    await asyncio.sleep(0.15)
    assert second.outlet.values == [[4, 5]]


@pytest.mark.asyncio
async def test_a_stop_keeps_samples_that_wait(folder) -> None:
    first = JournaledPipeline(folder, NUMBERED)
    for mid in (1, 3):
        first.send(mid, numbered(mid))
    assert await first.pipeline.drain(1.0)
    first.journal.close()
    assert first.outlet.values == []
    await asyncio.sleep(0.2)
    assert first.outlet.values == []
    second = JournaledPipeline(first.killed(), NUMBERED)
    second.send(2, numbered(2))
    await until(lambda: second.outlet.values == [[1, 2]])


@pytest.mark.asyncio
async def test_a_message_that_is_half_in_its_windows_is_there_once(folder) -> None:
    other = MqttRoute("o", ("t/+",), "m", sensor="topic[1]", size_rows=2, channel=CHANNEL)
    first = JournaledPipeline(folder, PLAIN, other, max_queued=2, max_running=1, journal_snapshot_bytes=65_536)
    first.inference.gate.clear()
    first.send(1, *map(value, range(20)))
    first.journal.renew()
    first.pipeline.receive(Message("t/b", b'{"v": 7}', 1, mid=2))
    await first.committed(2)
    await first.durable()
    after = first.killed()
    second = JournaledPipeline(after, PLAIN, other)
    second.send(1, *map(value, range(20)), dup=True)
    await until(lambda: len(second.outlet.values) >= 10)
    await second.committed(1)
    assert second.outlet.values == [[n, n + 1] for n in range(0, 20, 2)]
    first.inference.gate.set()
    await until(lambda: len(first.outlet.values) == 10)
    await first.durable()
    assert not any(isinstance(one, SampleRecord) for one in replayed(recover((folder / FILE).read_bytes())))
    assert first.outlet.results == second.outlet.results


@pytest.mark.asyncio
async def test_nothing_expires_while_a_message_is_half_in_its_windows(folder) -> None:
    gateway = JournaledPipeline(folder, NUMBERED, max_queued=2, max_running=1)
    gateway.inference.gate.clear()
    gateway.send(1, numbered(0))
    gateway.send(2, *map(numbered, (40, 41)))
    gateway.send(3, *map(numbered, range(1, 40)), *map(numbered, (45, 46)))
    await asyncio.sleep(0.2)
    gateway.inference.gate.set()
    expected = [[n, n + 1] for n in range(0, 42, 2)] + [[45, 46]]
    await until(lambda: len(gateway.outlet.values) == len(expected))
    assert gateway.outlet.values == expected


@pytest.mark.asyncio
async def test_a_repetition_is_acknowledged_once_its_first_copy_is_on_the_disk(folder, monkeypatch) -> None:
    gateway = JournaledPipeline(folder, PLAIN, dedup_ttl_s=0.001)
    fail = [True]
    write = JournalWriter._write

    def full_disk(self: JournalWriter, batch: Any) -> None:
        if fail:
            raise OSError(28, "No space left on device")
        write(self, batch)

    monkeypatch.setattr(JournalWriter, "_write", full_disk)
    gateway.send(1, value(1))
    await asyncio.sleep(0.05)
    gateway.send(1, value(1), dup=True, epoch=2)
    await asyncio.sleep(0.05)
    assert gateway.counters["duplicates"] == 1
    assert (gateway.outlet.acknowledged, "No space" in gateway.journal.problem) == ([], True)
    fail.clear()
    await gateway.committed(2)
    assert len(replayed(recover((folder / FILE).read_bytes()))) == 1


@pytest.mark.asyncio
async def test_a_full_disk_leaves_the_socket_unread(folder, monkeypatch) -> None:
    monkeypatch.setattr(journals, "WAITING_LIMIT_BYTES", 5_000)
    gateway = JournaledPipeline(folder, PLAIN)
    await gateway.durable()
    gate = asyncio.Event()
    write = JournalWriter._write

    def slow_disk(self: JournalWriter, batch: Any) -> None:
        if not gate.is_set():
            raise OSError(28, "No space left on device")
        write(self, batch)

    monkeypatch.setattr(JournalWriter, "_write", slow_disk)
    sent = 0
    while not gateway.outlet.paused:
        sent += 1
        gateway.send(sent, value(sent))
    assert sent < 10
    gate.set()
    await until(lambda: not gateway.outlet.paused)
    await gateway.committed(sent)


@pytest.mark.asyncio
async def test_a_full_disk_holds_few_windows_of_a_new_sensor(folder, monkeypatch) -> None:
    gateway, write, is_full = JournaledPipeline(folder, PLAIN), JournalWriter._write, asyncio.Event()

    def full_disk(self: JournalWriter, batch: Any) -> None:
        if is_full.is_set():
            raise OSError(28, "No space left on device")
        write(self, batch)

    monkeypatch.setattr(JournalWriter, "_write", full_disk)
    is_full.set()
    gateway.send(1, *map(value, range(20 * WINDOWS_LIMIT)))
    await until(lambda: gateway.counters["windows"] > 0)
    for _ in range(1_000):
        await asyncio.sleep(0)
    assert gateway.counters["windows"] <= WINDOWS_LIMIT
    is_full.clear()
    await until(lambda: gateway.counters["windows"] == 10 * WINDOWS_LIMIT)
    await until(lambda: gateway.counters["answered"] == 10 * WINDOWS_LIMIT)


@pytest.mark.asyncio
async def test_what_waits_for_the_disk_counts_with_its_memory(folder) -> None:
    gateway = JournaledPipeline(folder, PLAIN)
    gateway.journal.after(lambda: None, journals.WAITING_LIMIT_BYTES)
    assert gateway.journal.full
    await gateway.durable()
    assert not gateway.journal.full


@pytest.mark.asyncio
async def test_a_result_at_qos_0_that_is_dropped_leaves_nothing_in_the_journal(folder) -> None:
    route = MqttRoute("r", ("s/+",), "m", size_rows=2, channel=CHANNEL, result=ResultSettings(max_qos=0))
    gateway = JournaledPipeline(folder, route)
    gateway.outlet.away = True
    for mid in range(6):
        gateway.send(mid, value(mid))
    await gateway.durable()  # the first windows of a sensor run then
    await until(lambda: gateway.counters["windows"] == 3 and not gateway.pipeline.gauges["running"])
    await until(lambda: not gateway.journal._open)


@pytest.mark.asyncio
async def test_messages_at_qos_0_leave_nothing_in_the_journal(folder) -> None:
    gateway = JournaledPipeline(folder, PLAIN)
    await gateway.durable()
    size = (folder / FILE).stat().st_size
    for number in range(10):
        gateway.pipeline.receive(Message("s/a", json.dumps(value(number)).encode(), 0))
    await until(lambda: len(gateway.outlet.values) == 5)
    await gateway.durable()
    assert (folder / FILE).stat().st_size == size


@pytest.mark.asyncio
async def test_a_window_that_is_not_on_the_disk_has_the_same_id_when_its_messages_come_again(folder) -> None:
    first = JournaledPipeline(folder, PLAIN)
    first.send(1, value(1))
    await first.committed(1)
    after = first.killed()
    first.send(2, value(2))
    await until(lambda: len(first.outlet.values) == 1)
    await asyncio.sleep(0.01)
    second = JournaledPipeline(after, PLAIN)
    second.send(2, value(2), dup=True)
    await until(lambda: len(second.outlet.values) == 1)
    assert first.outlet.results == second.outlet.results


@pytest.mark.asyncio
async def test_windows_of_a_model_that_is_loaded_later_run_then(folder) -> None:
    first = JournaledPipeline(folder, PLAIN)
    first.inference.gate.clear()
    for mid in (1, 2, 3):
        first.send(mid, value(mid))
    await first.committed(3)
    second = JournaledPipeline(first.killed(), PLAIN, is_loaded=False)
    await second.durable()
    third = JournaledPipeline(second.killed(), PLAIN, is_loaded=False)
    third.pipeline.readiness_changed()
    third.inference.manifests["m"] = model()
    third.pipeline.readiness_changed()
    await until(lambda: third.outlet.values == [[1, 2]])
    third.send(4, value(4))
    await until(lambda: third.outlet.values == [[1, 2], [3, 4]])


@pytest.mark.parametrize("size", [3, 5, 9])
@pytest.mark.asyncio
async def test_samples_of_windows_of_another_size_join_new_windows(folder, size: int) -> None:
    first = JournaledPipeline(folder, PLAIN)
    for mid in range(7):
        first.send(mid, value(mid))
    await first.committed(7)
    await until(lambda: len(first.outlet.values) == 3)
    first.journal.compact()
    await first.durable()
    second = JournaledPipeline(first.killed(), dataclasses.replace(PLAIN, size_rows=size))
    for mid in range(7, 7 + size):
        second.send(mid, value(mid))
    await until(lambda: len(second.outlet.values) == 1)
    (found,) = second.outlet.values
    assert found == [found[0] + index for index in range(size)]
    assert found[0] >= 5


@pytest.mark.asyncio
async def test_samples_of_other_channels_are_dropped_and_counted(folder) -> None:
    first = JournaledPipeline(folder, PLAIN)
    first.send(1, value(1))
    await first.committed(1)
    channels = (*CHANNEL, MqttChannel("w"))
    route = MqttRoute("r", ("s/+",), "m", sensor="topic[1]", size_rows=2, channel=channels)
    second = JournaledPipeline(first.killed(), route, manifest=model(2))
    for mid in (2, 3):
        second.send(mid, {"v": mid, "w": mid})
    await until(lambda: second.outlet.values == [[2, 2, 3, 3]])
    assert second.counters["windows_discarded"] == 1


@pytest.mark.asyncio
async def test_records_of_a_route_that_is_gone_are_counted(folder) -> None:
    first = JournaledPipeline(folder, PLAIN)
    first.send(1, value(1))
    await first.committed(1)
    second = JournaledPipeline(first.killed(), MqttRoute("other", ("s/+",), "m", size_rows=2, channel=CHANNEL))
    assert second.counters["windows_discarded"] == 1


@pytest.mark.asyncio
async def test_a_record_that_causes_a_defect_does_not_prevent_the_start(folder, monkeypatch) -> None:
    first = JournaledPipeline(folder, NUMBERED)
    first.send(1, numbered(1))
    await first.committed(1)
    with monkeypatch.context() as patch:
        patch.setattr(recovery, "samples_of", lambda record: 1 // 0)
        second = JournaledPipeline(first.killed(), NUMBERED)
    assert second.counters["windows_discarded"] == 1
    for mid in (7, 8):
        second.send(mid, numbered(mid))
    await until(lambda: second.outlet.values == [[7, 8]])


@pytest.mark.asyncio
async def test_a_write_that_the_disk_cuts_is_written_again(folder) -> None:
    gateway = JournaledPipeline(folder, PLAIN)
    await gateway.durable()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (folder / FILE).stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, before[1]))
    try:
        for mid in range(1, 9):
            gateway.send(mid, value(mid))
        await until(lambda: bool(gateway.journal.problem))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    torn = recover((gateway.killed() / FILE).read_bytes())
    assert (len(replayed(torn)) < 8, torn.lost_bytes > 0) == (True, True)
    assert gateway.outlet.acknowledged == []
    await gateway.committed(8)
    assert len(replayed(recover((folder / FILE).read_bytes()))) == 8
