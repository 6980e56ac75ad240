"""The journal: what was committed is there after any end, a cut or damaged rest is not; it stays small."""

from __future__ import annotations

import asyncio
import errno
import time
import zlib
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.serving.frontends.mqtt.journal import writer
from gateway.serving.frontends.mqtt.journal.journal import FILE, SampleJournal, message_key, recover
from gateway.serving.frontends.mqtt.journal.records import (
    HEADER,
    DoneRecord,
    KeysRecord,
    SampleRecord,
    WindowRecord,
    complete_window,
    framed,
    lost_sensors,
    read_frames,
    ring_state,
    samples_of,
    sensor_record,
    sensor_state,
    window_record,
)
from gateway.serving.frontends.mqtt.journal.writer import CommitRhythm, JournalWriter
from gateway.serving.frontends.mqtt.messages import Message
from gateway.serving.frontends.mqtt.windows.rings import Complete, Ring, WindowShape
from gateway.serving.frontends.mqtt.windows.samples import Sample, SampleTiming, SensorState
from gateway.serving.frontends.mqtt.windows.sensors import Windows
from tests.simulators.mqtt_windows import replayed

S = 1_000_000_000


def sample(number: int, key: bytes = b"") -> SampleRecord:
    rows = np.full((2, 3), number, np.float32)
    return SampleRecord("wrists", "w-1", key or number.to_bytes(8, "big"), number, number, 3, rows.tobytes())


def packet(mid: int, **more: Any) -> Message:
    return Message("wave/a", b"1", qos=1, mid=mid, **more)


def window(number: int) -> Complete:
    return Complete(np.full((4, 3), number, np.float32), 1, 2, 3, 0, number)


records = st.one_of(
    st.builds(sample, st.integers(0, 1_000)),
    st.builds(DoneRecord, st.text(max_size=9), st.text(max_size=9), st.integers(0, 2**62)),
    st.builds(lambda number: window_record("wrists", "w-1", window(number)), st.integers(0, 9)),
    st.builds(KeysRecord, st.lists(st.binary(min_size=8, max_size=8), max_size=4).map(tuple), st.text(max_size=9)),
)


def whole_frames(content: bytes) -> tuple[list[object], int]:
    found = list(read_frames(content))
    return [record for record, _ in found], sum(len(frame) for _, frame in found)


@given(st.lists(records, max_size=6), st.integers(0, 400), st.integers(0, 255))
def test_frames_before_a_cut_or_damage_are_whole(written, position: int, damage: int) -> None:
    frames = [framed(record) for record in written]
    content = bytearray(b"".join(frames))
    assert whole_frames(bytes(content)) == (written, len(content))
    found, whole = whole_frames(bytes(content[:position]))
    assert found == written[: len(found)]
    assert whole == sum(map(len, frames[: len(found)])) <= position
    if position < len(content):
        content[position] ^= damage or 1
        found, whole = whole_frames(bytes(content))
        assert found == written[: len(found)]
        assert whole <= position


def test_windows_that_have_a_result_are_not_recovered() -> None:
    parts = [sample(1), window_record("wrists", "w-1", window(4)), window_record("wrists", "w-1", window(5))]
    found = recover(b"".join(map(framed, [*parts, DoneRecord("wrists", "w-1", 4)])) + b"torn")
    assert [one.number for one in found.windows] == [5]
    assert (found.done, len(replayed(found)), found.lost_bytes) == ({("wrists", "w-1", 4)}, 1, 4)
    assert complete_window(found.windows[0]).rows.tolist() == window(5).rows.tolist()


@pytest.mark.asyncio
@pytest.mark.parametrize("damage", ["cut", "flipped", "names"])
async def test_a_damaged_journal_names_the_sensors_whose_samples_are_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    whole = framed(sample(1))
    frames = [framed(window_record("wrists", "w-1", window(4))), framed(DoneRecord("gates", "g 7", 4))] * 2
    rest = bytearray(b"".join(frames))
    if damage == "flipped":
        rest[len(frames[0]) - 1] ^= 1
    elif damage == "cut":
        del rest[:4]
    else:
        rest = bytearray(b"\xff" * 40)
    (tmp_path / FILE).write_bytes(whole + rest)
    journal = opened(tmp_path)
    assert len(replayed(journal.recovered)) == 1
    journal.close()
    (line,) = (record.getMessage() for record in caplog.records if record.levelname == "ERROR")
    assert f"{tmp_path / FILE}: the last {len(rest)} bytes are cut or damaged and were dropped: " in line
    named = "route 'wrists', sensor 'w-1': 2 records; route 'gates', sensor 'g 7': 2 records; "
    assert (named if damage != "names" else "no sensor can be told; ") in line


@pytest.mark.asyncio
async def test_what_is_written_after_a_damaged_end_is_there_at_the_next_start(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(framed(sample(1)) + framed(sample(2))[:-1])
    journal = opened(tmp_path)
    await committed(journal, sample(3))
    journal.close()
    assert [one.wall_ns for one in replayed(recover((tmp_path / FILE).read_bytes()))] == [1, 3]


@given(st.binary(max_size=200))
def test_any_bytes_are_searched_for_sensors(content: bytes) -> None:
    lost_sensors(content)
    lost_sensors(b"\x9a\xa1s" + content)


def opened(folder: Path, snapshot_bytes: int = 2**20) -> SampleJournal:
    return SampleJournal(folder, CommitRhythm(0.0, 1, 0.01), snapshot_bytes=snapshot_bytes, counters=Counter())


async def committed(journal: SampleJournal, record: SampleRecord) -> None:
    done = asyncio.Event()
    journal.add(record, 1, done.set)
    await done.wait()


@pytest.mark.asyncio
async def test_what_was_committed_is_there_without_a_close(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    for number in range(5):
        await committed(journal, sample(number))
    assert [one.wall_ns for one in replayed(recover((tmp_path / FILE).read_bytes()))] == [0, 1, 2, 3, 4]
    journal.close()


@pytest.mark.asyncio
async def test_a_snapshot_keeps_what_has_no_result_and_the_keys(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    await committed(journal, sample(1, message_key(packet(1))))
    names = [journal.begin("wrists", "w-1", window(number)) for number in (7, 8)]
    journal.done(names[0])
    journal.compact()
    await committed(journal, sample(2))
    journal.close()
    again = opened(tmp_path)
    assert [one.number for one in again.recovered.windows] == [8]
    assert [one.wall_ns for one in replayed(again.recovered) if isinstance(one, SampleRecord)] == [2]
    assert again.repeats(packet(1, epoch=1, dup=True))
    again.close()


@pytest.mark.asyncio
async def test_keys_are_those_of_the_session_that_the_broker_resumes(tmp_path: Path) -> None:
    """Connections over processes: broker, whether it resumed the session, and the packets that it repeats then."""
    known: set[int] = set()
    for number, (home, resumed, repeated) in enumerate(
        [
            ("a", False, []),
            ("a", True, [0]),
            ("a", True, [0, 1]),
            ("a", False, []),
            ("a", True, [3]),
            ("b", True, []),
            ("b", True, [5]),
            ("a", True, []),
            ("a", True, [7]),
        ]
    ):
        journal = opened(tmp_path)
        assert journal.connected(f"gw@{home}:1883", 1, resumed=resumed) == (not repeated)
        found = [one for one in range(number) if journal.repeats(packet(one, epoch=1, dup=True))]
        assert found == repeated
        if number % 2:
            journal.compact()
        await committed(journal, sample(number, message_key(packet(number))))
        assert not journal.repeats(packet(number, epoch=1, dup=True)), "it came by this connection"
        assert journal.repeats(packet(number, epoch=2, dup=True))
        assert not journal.repeats(packet(number, epoch=2))
        journal.close()
        known.add(hash(journal.session))
    assert len(known) == 4


@pytest.mark.asyncio
async def test_a_message_of_a_session_before_has_no_key_in_the_next(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.connected("gw@a:1883", 1, resumed=False)
    journal.connected("gw@a:1883", 2, resumed=False)
    await committed(journal, sample(1, message_key(packet(1))))
    assert not journal.repeats(packet(1, epoch=3, dup=True))
    journal.close()
    again = opened(tmp_path)
    assert not again.connected("gw@a:1883", 1, resumed=True)
    assert not again.repeats(packet(1, epoch=1, dup=True))
    assert len(replayed(again.recovered)) == 1
    again.close()


@pytest.mark.asyncio
async def test_keys_of_a_journal_from_before_sessions_are_those_of_the_resumed_one(tmp_path: Path) -> None:
    old = [KeysRecord((message_key(packet(1)),)), sample(2, message_key(packet(2)))]
    (tmp_path / FILE).write_bytes(b"".join(map(framed, old)))
    for _ in range(2):
        journal = opened(tmp_path)
        assert not journal.connected("gw@a:1883", 1, resumed=True)
        assert all(journal.repeats(packet(one, epoch=1, dup=True)) for one in (1, 2))
        journal.close()


@pytest.mark.asyncio
async def test_the_file_does_not_grow_with_the_samples(tmp_path: Path) -> None:
    journal = opened(tmp_path, snapshot_bytes=4_096)
    sizes = []
    for number in range(1_000):
        await committed(journal, sample(number, key=(number % 9).to_bytes(8, "big")))
        sizes.append((tmp_path / FILE).stat().st_size)
    assert max(sizes) < 4_096 + 4 * len(framed(sample(999)))
    journal.close()


@pytest.mark.asyncio
async def test_a_group_is_written_when_enough_callers_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a machine that has just started, whose monotonic clock begins near 0."""
    started_s = time.monotonic()
    monkeypatch.setattr(writer, "time", SimpleNamespace(monotonic=lambda: time.monotonic() - started_s))
    counters, done = Counter[str](), asyncio.Event()
    journal = SampleJournal(tmp_path, CommitRhythm(3_600.0, 3, 0.01), snapshot_bytes=2**20, counters=counters)
    await committed(journal, sample(0))  # the first one is written at once
    for number in (1, 2):
        journal.add(sample(number), 1, done.set)
    await asyncio.sleep(0.05)
    assert not done.is_set()
    await committed(journal, sample(3))
    assert done.is_set()
    journal.close()


@pytest.mark.asyncio
async def test_a_full_disk_is_told_once_and_commits_nothing() -> None:
    told: list[OSError | None] = []
    writer = JournalWriter(Path("/dev/full"), CommitRhythm(0.0, 1, 0.001), asyncio.get_running_loop(), told.append)
    writer.append(b"x", lambda: told.append(None))
    while len(told) < 3:
        await asyncio.sleep(0)
    await asyncio.get_running_loop().run_in_executor(None, writer.close)
    assert {error.errno for error in told if error} == {errno.ENOSPC}
    assert None not in told


def test_a_repetition_has_the_key_of_its_message() -> None:
    one = Message("a", b"1", qos=1, mid=7)
    assert message_key(one) == message_key(Message("a", b"1", qos=1, mid=7, dup=True))
    for other in (Message("b", b"1", mid=7), Message("a", b"2", mid=7), Message("a", b"1", mid=8)):
        assert message_key(one) != message_key(other)


@given(st.permutations(range(14)), st.integers(0, 14), st.booleans())
def test_windows_go_on_in_another_process_as_if_there_were_one(order: list[int], end: int, by_sequence) -> None:
    def fresh() -> Windows:
        timing = SampleTiming(S, lateness_ns=100 * S)
        return Windows(WindowShape(3, 1, 2), 9, 10**15, timing=timing, by_sequence=by_sequence)

    def put(target: Windows, numbers: list[int]) -> list[list[float]]:
        samples = [Sample(np.array([one], np.float32), one * S, one, one if by_sequence else None) for one in numbers]
        return [one.rows[:, 0].tolist() for one in target.put("a", samples, now_ns=1, wall_ns=5)]

    whole, first, second = fresh(), fresh(), fresh()
    head, tail = [-1, *order[:end]], order[end:]
    expected = put(whole, head) + put(whole, tail)
    found = put(first, head)
    for sensor, ring, state in first.states():
        record = sensor_record("r", sensor, ring, state)
        second.restore(sensor, record.seen_ns, ring_state(record), sensor_state(record))
        waiting = sensor_state(record).waiting
        found += [one.rows[:, 0].tolist() for one in second.put(sensor, waiting, now_ns=1, wall_ns=5)]
    found += put(second, tail)
    assert found == expected
    assert [one.rows.tolist() for _, one in whole.expire()] == [one.rows.tolist() for _, one in second.expire()]


def test_a_record_whose_parts_do_not_fit_is_refused() -> None:
    ring = Ring(WindowShape(3, 1, 1), 5)
    assert not list(ring.append(np.zeros((2, 1), np.float32), 1))
    record = sensor_record("r", "a", ring, SensorState())
    assert ring_state(record).number == 7
    with pytest.raises(ValueError, match="as many times"):
        ring_state(msgspec.structs.replace(record, times_ns=b""))


def test_a_window_of_a_journal_from_before_joins_is_read() -> None:
    ring = Ring(WindowShape(3, 1, 1), 5)
    assert not list(ring.append(np.zeros((2, 1), np.float32), 1))
    record = sensor_record("r", "a", ring, SensorState(joined=((1, 2.0), None)))
    ((found, _),) = read_frames(framed(record))
    assert found == record
    content = msgspec.msgpack.encode(msgspec.msgpack.decode(msgspec.msgpack.encode(record))[:-1])
    ((old, _),) = read_frames(HEADER.pack(len(content), zlib.crc32(content)) + content)
    assert old == msgspec.structs.replace(record, joined=())


def test_samples_have_the_times_of_their_record() -> None:
    record = SampleRecord("r", "a", b"", 0, 9, 1, np.arange(2, dtype=np.float32).tobytes(), (3, 4), (7, 8))
    assert [(one.time_ns, one.sequence, one.arrived_ns, one.row.tolist()) for one in samples_of(record)] == [
        (3, 7, 9, [0.0]),
        (4, 8, 9, [1.0]),
    ]
    assert isinstance(window_record("r", "a", window(1)), WindowRecord)
