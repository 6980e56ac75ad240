"""Windows over a kill: another process goes on with the journal's file as it was at any moment."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.domain.manifest import ModelManifest, TensorSpec
from gateway.domain.tensor import Datatype
from gateway.frontends.mqtt import recovery
from gateway.frontends.mqtt.journal import journal as journals
from gateway.frontends.mqtt.journal.journal import FILE, SampleJournal, recover
from gateway.frontends.mqtt.journal.writer import JournalWriter
from gateway.frontends.mqtt.messages import Message, OutgoingPublish
from gateway.frontends.mqtt.pipeline import Pipeline
from gateway.frontends.mqtt.results.settings import ResultSettings
from gateway.frontends.mqtt.route_settings import MqttChannel, MqttRoute
from gateway.frontends.mqtt.routes.routing import Router
from gateway.frontends.mqtt.settings import MqttSettings
from gateway.frontends.mqtt.time_settings import MqttTime
from tests.simulators.inference import VARIANT, SimulatedInference
from tests.simulators.mqtt_gateway import FAST

pytestmark = pytest.mark.asyncio
S = 1_000_000_000
CHANNEL = (MqttChannel("v"),)
PLAIN = MqttRoute("r", ("s/+",), "m", sensor="topic[1]", size_rows=2, channel=CHANNEL)
NUMBERED = MqttRoute(
    *("r", ("s/+",), "m"),
    sensor="topic[1]",
    size_rows=2,
    channel=CHANNEL,
    time=MqttTime(sequence="n", lateness_s=0.1),
)


def model(channels: int = 1) -> ModelManifest:
    x, y = (TensorSpec(name, Datatype.FP32, (-1, -1, channels)) for name in "xy")
    return ModelManifest("m", "1", (x,), (y,), (VARIANT,))


class Outlet:
    """Broker that takes everything at once, unless it is `away`."""

    full = False

    def __init__(self) -> None:
        self.sent: list[OutgoingPublish] = []
        self.acknowledged: list[int] = []
        self.away = False
        self.paused = False

    def publish(self, publication: OutgoingPublish) -> bool:
        if self.away:
            return bool(publication.qos)
        self.sent.append(publication)
        if publication.taken:
            publication.taken(0)
        return True

    def acknowledge(self, message: Message) -> None:
        if message.qos:
            self.acknowledged.append(message.mid)

    def pause(self, *, on: bool) -> None:
        self.paused = on

    @property
    def results(self) -> list[tuple[str, list[float]]]:
        """Return id and values of each result."""
        found = (json.loads(one.payload) for one in self.sent)
        return [(one["id"], one["outputs"][0]["data"]) for one in found if "outputs" in one]

    @property
    def values(self) -> list[list[float]]:
        return [values for _, values in self.results]


class Gateway:
    """A process: pipeline and journal in `folder`. A kill leaves the file as it is."""

    def __init__(
        self,
        folder: Path,
        *routes: MqttRoute,
        manifest: ModelManifest | None = None,
        is_loaded: bool = True,
        **more: Any,
    ) -> None:
        self.folder = folder
        self.counters = Counter[str]()
        settings = MqttSettings(url="mqtt://x", route=routes, **(FAST | more))
        self.journal = SampleJournal(
            folder, commit_s=0.001, retry_s=0.01, snapshot_bytes=settings.journal_snapshot_bytes, counters=self.counters
        )
        self.inference = SimulatedInference([manifest or model()])
        if not is_loaded:
            self.inference.manifests.clear()
        self.outlet = Outlet()
        self.pipeline = Pipeline(
            self.inference,
            settings,
            "gw",
            router=Router(routes, "gw"),
            outlet=self.outlet,
            counters=self.counters,
            journal=self.journal,
        )
        self.pipeline.recover()

    def send(self, mid: int, *rows: dict[str, float], sensor: str = "a", dup: bool = False, epoch: int = 1) -> None:
        payload = json.dumps(rows[0] if len(rows) == 1 else rows).encode()
        times = {"arrived_ns": time.monotonic_ns(), "wall_ns": time.time_ns()}
        self.pipeline.receive(Message(f"s/{sensor}", payload, 1, mid=mid, dup=dup, epoch=epoch, **times))

    async def committed(self, count: int) -> None:
        await until(lambda: len(self.outlet.acknowledged) >= count)

    async def durable(self) -> None:
        """Wait until everything is on the disk."""
        done = asyncio.Event()
        self.journal.after(done.set)
        await done.wait()

    def killed(self) -> Path:
        """Return a folder with the file as a kill leaves it now."""
        after = self.folder.with_name(f"{self.folder.name}+")
        shutil.copytree(self.folder, after)
        return after


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.002)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def value(number: float) -> dict[str, float]:
    return {"v": number}


def numbered(number: int) -> dict[str, float]:
    return {"v": number, "n": number}


async def test_time_without_a_process_is_no_silence_of_a_sensor(folder, monkeypatch) -> None:
    first = Gateway(folder, PLAIN)
    first.send(1, value(1))
    await first.committed(1)
    for name in ("monotonic_ns", "time_ns"):
        clock = getattr(time, name)
        monkeypatch.setattr(time, name, lambda clock=clock: clock() + 1_000_000 * S)
    second = Gateway(first.killed(), PLAIN)
    second.send(2, value(2))
    await until(lambda: second.outlet.values == [[1, 2]])
    assert not second.counters["windows_restarted"]


async def test_samples_wait_for_the_missing_one_again_after_a_restart(folder) -> None:
    first = Gateway(folder, NUMBERED)
    for mid in (1, 3):
        first.send(mid, numbered(mid))
    await first.committed(2)
    await asyncio.sleep(0)
    after = first.killed()
    await asyncio.sleep(0.2)
    second = Gateway(after, NUMBERED)
    await asyncio.sleep(0.05)
    second.send(2, numbered(2))
    second.send(4, numbered(4))
    await until(lambda: second.outlet.values == [[1, 2], [3, 4]])


async def test_an_expired_window_with_a_result_does_not_run_again(folder) -> None:
    first = Gateway(folder, NUMBERED)
    for mid in (1, 3):
        first.send(mid, numbered(mid))
    await until(lambda: first.outlet.values == [[1, 3]])
    await first.durable()
    second = Gateway(first.killed(), NUMBERED)
    second.send(2, numbered(2))
    for mid in (4, 5):
        second.send(mid, numbered(mid))
    await until(lambda: second.outlet.values == [[4, 5]])
    assert second.counters["samples_late"] == 1
    await asyncio.sleep(0.15)
    assert second.outlet.values == [[4, 5]]


async def test_a_stop_keeps_samples_that_wait(folder) -> None:
    first = Gateway(folder, NUMBERED)
    for mid in (1, 3):
        first.send(mid, numbered(mid))
    assert await first.pipeline.drain(1.0)
    first.journal.close()
    assert first.outlet.values == []
    await asyncio.sleep(0.2)
    assert first.outlet.values == []
    second = Gateway(first.killed(), NUMBERED)
    second.send(2, numbered(2))
    await until(lambda: second.outlet.values == [[1, 2]])


async def test_a_message_that_is_half_in_its_windows_is_there_once(folder, monkeypatch) -> None:
    other = MqttRoute("o", ("t/+",), "m", sensor="topic[1]", size_rows=2, channel=CHANNEL)
    first = Gateway(folder, PLAIN, other, max_queued=2, max_running=1, journal_snapshot_bytes=65_536)
    first.inference.gate.clear()
    first.send(1, *map(value, range(20)))
    monkeypatch.setattr(first.journal, "_least_bytes", 1)
    first.pipeline.receive(Message("t/b", b'{"v": 7}', 1, mid=2))
    await first.committed(2)
    await first.durable()
    after = first.killed()
    second = Gateway(after, PLAIN, other)
    second.send(1, *map(value, range(20)), dup=True)
    await until(lambda: len(second.outlet.values) >= 10)
    await second.committed(1)
    assert second.outlet.values == [[n, n + 1] for n in range(0, 20, 2)]
    first.inference.gate.set()
    await until(lambda: len(first.outlet.values) == 10)
    await until(lambda: (first.folder / FILE).stat().st_size < 300)
    assert first.outlet.results == second.outlet.results


async def test_nothing_expires_while_a_message_is_half_in_its_windows(folder) -> None:
    gateway = Gateway(folder, NUMBERED, max_queued=2, max_running=1)
    gateway.inference.gate.clear()
    gateway.send(1, numbered(0))
    gateway.send(2, *map(numbered, (40, 41)))
    gateway.send(3, *map(numbered, range(1, 40)), *map(numbered, (45, 46)))
    await asyncio.sleep(0.2)
    gateway.inference.gate.set()
    expected = [[n, n + 1] for n in range(0, 42, 2)] + [[45, 46]]
    await until(lambda: len(gateway.outlet.values) == len(expected))
    assert gateway.outlet.values == expected


async def test_a_repetition_is_acknowledged_once_its_first_copy_is_on_the_disk(folder, monkeypatch) -> None:
    gateway = Gateway(folder, PLAIN, dedup_ttl_s=0.001)
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
    assert len(recover((folder / FILE).read_bytes()).records) == 1


async def test_a_full_disk_leaves_the_socket_unread(folder, monkeypatch) -> None:
    monkeypatch.setattr(journals, "WAITING_LIMIT_BYTES", 5_000)
    gateway = Gateway(folder, PLAIN)
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


async def test_a_result_at_qos_0_that_is_dropped_leaves_nothing_in_the_journal(folder) -> None:
    route = MqttRoute("r", ("s/+",), "m", size_rows=2, channel=CHANNEL, result=ResultSettings(max_qos=0))
    gateway = Gateway(folder, route)
    gateway.outlet.away = True
    for mid in range(6):
        gateway.send(mid, value(mid))
    await until(lambda: gateway.counters["windows"] == 3 and not gateway.pipeline.gauges["running"])
    assert not gateway.journal._open


async def test_messages_at_qos_0_leave_nothing_in_the_journal(folder) -> None:
    gateway = Gateway(folder, PLAIN)
    await gateway.durable()
    size = (folder / FILE).stat().st_size
    for number in range(10):
        gateway.pipeline.receive(Message("s/a", json.dumps(value(number)).encode(), 0))
    await until(lambda: len(gateway.outlet.values) == 5)
    await gateway.durable()
    assert (folder / FILE).stat().st_size == size


async def test_a_window_that_is_not_on_the_disk_has_the_same_id_when_its_messages_come_again(folder) -> None:
    first = Gateway(folder, PLAIN)
    first.send(1, value(1))
    await first.committed(1)
    after = first.killed()
    first.send(2, value(2))
    await until(lambda: len(first.outlet.values) == 1)
    await asyncio.sleep(0.01)
    second = Gateway(after, PLAIN)
    second.send(2, value(2), dup=True)
    await until(lambda: len(second.outlet.values) == 1)
    assert first.outlet.results == second.outlet.results


async def test_windows_of_a_model_that_is_loaded_later_run_then(folder) -> None:
    first = Gateway(folder, PLAIN)
    first.inference.gate.clear()
    for mid in (1, 2, 3):
        first.send(mid, value(mid))
    await first.committed(3)
    second = Gateway(first.killed(), PLAIN, is_loaded=False)
    await second.durable()
    third = Gateway(second.killed(), PLAIN, is_loaded=False)
    third.pipeline.readiness_changed()
    third.inference.manifests["m"] = model()
    third.pipeline.readiness_changed()
    await until(lambda: third.outlet.values == [[1, 2]])
    third.send(4, value(4))
    await until(lambda: third.outlet.values == [[1, 2], [3, 4]])


@pytest.mark.parametrize("size", [3, 5, 9])
async def test_samples_of_windows_of_another_size_join_new_windows(folder, size: int) -> None:
    first = Gateway(folder, PLAIN)
    for mid in range(7):
        first.send(mid, value(mid))
    await first.committed(7)
    await until(lambda: len(first.outlet.values) == 3)
    first.journal.compact()
    await first.durable()
    second = Gateway(first.killed(), MqttRoute("r", ("s/+",), "m", sensor="topic[1]", size_rows=size, channel=CHANNEL))
    for mid in range(7, 7 + size):
        second.send(mid, value(mid))
    await until(lambda: len(second.outlet.values) == 1)
    (found,) = second.outlet.values
    assert found == [found[0] + index for index in range(size)]
    assert found[0] >= 5


async def test_samples_of_other_channels_are_dropped_and_counted(folder) -> None:
    first = Gateway(folder, PLAIN)
    first.send(1, value(1))
    await first.committed(1)
    channels = (*CHANNEL, MqttChannel("w"))
    route = MqttRoute("r", ("s/+",), "m", sensor="topic[1]", size_rows=2, channel=channels)
    second = Gateway(first.killed(), route, manifest=model(2))
    for mid in (2, 3):
        second.send(mid, {"v": mid, "w": mid})
    await until(lambda: second.outlet.values == [[2, 2, 3, 3]])
    assert second.counters["windows_discarded"] == 1


async def test_records_of_a_route_that_is_gone_are_counted(folder) -> None:
    first = Gateway(folder, PLAIN)
    first.send(1, value(1))
    await first.committed(1)
    second = Gateway(first.killed(), MqttRoute("other", ("s/+",), "m", size_rows=2, channel=CHANNEL))
    assert second.counters["windows_discarded"] == 1


async def test_a_record_that_causes_a_defect_does_not_prevent_the_start(folder, monkeypatch) -> None:
    first = Gateway(folder, NUMBERED)
    first.send(1, numbered(1))
    await first.committed(1)
    with monkeypatch.context() as patch:
        patch.setattr(recovery, "samples_of", lambda record: 1 // 0)
        second = Gateway(first.killed(), NUMBERED)
    assert second.counters["windows_discarded"] == 1
    for mid in (7, 8):
        second.send(mid, numbered(mid))
    await until(lambda: second.outlet.values == [[7, 8]])
