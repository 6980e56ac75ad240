"""The journal: what was committed is there after any end, a cut or damaged rest is not; it stays small."""

from __future__ import annotations

import asyncio
import errno
import zlib
from collections import Counter
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.frontends.mqtt.journal.journal import FILE, SampleJournal, message_key, recover
from gateway.frontends.mqtt.journal.records import (
    HEADER,
    DoneRecord,
    KeysRecord,
    SampleRecord,
    WindowRecord,
    complete_window,
    framed,
    read_frames,
    ring_state,
    samples_of,
    sensor_record,
    sensor_state,
    window_record,
)
from gateway.frontends.mqtt.journal.writer import CommitRhythm, JournalWriter
from gateway.frontends.mqtt.messages import Message
from gateway.frontends.mqtt.windows.rings import Complete, Ring, WindowShape
from gateway.frontends.mqtt.windows.samples import Sample, SensorState
from gateway.frontends.mqtt.windows.sensors import Windows
from gateway.frontends.mqtt.windows.timing import SampleTiming
from tests.simulators.mqtt_windows import replayed

S = 1_000_000_000


def sample(number: int, key: bytes = b"") -> SampleRecord:
    rows = np.full((2, 3), number, np.float32)
    return SampleRecord("wrists", "w-1", key or number.to_bytes(8, "big"), number, number, 3, rows.tobytes())


def window(number: int) -> Complete:
    return Complete(np.full((4, 3), number, np.float32), 1, 2, 3, 0, number)


records = st.one_of(
    st.builds(sample, st.integers(0, 1_000)),
    st.builds(DoneRecord, st.text(max_size=9), st.text(max_size=9), st.integers(0, 2**62)),
    st.builds(lambda number: window_record("wrists", "w-1", window(number)), st.integers(0, 9)),
    st.builds(KeysRecord, st.lists(st.binary(min_size=8, max_size=8), max_size=4).map(tuple)),
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


def opened(folder: Path, snapshot_bytes: int = 2**20) -> SampleJournal:
    return SampleJournal(folder, CommitRhythm(0.0, 1, 0.01), snapshot_bytes=snapshot_bytes, counters=Counter())


async def committed(journal: SampleJournal, record: SampleRecord) -> None:
    done = asyncio.Event()
    journal.add(record, done.set)
    await done.wait()


@pytest.mark.asyncio
async def test_what_was_committed_is_there_without_a_close(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    for number in range(5):
        await committed(journal, sample(number))
    assert [one.wall_ns for one in replayed(recover((tmp_path / FILE).read_bytes()))] == [0, 1, 2, 3, 4]
    assert journal.repeats(sample(3).key)
    assert not journal.repeats(b"elsewhere")
    journal.close()


@pytest.mark.asyncio
async def test_a_snapshot_keeps_what_has_no_result_and_the_keys(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    await committed(journal, sample(1))
    names = [journal.begin("wrists", "w-1", window(number)) for number in (7, 8)]
    journal.done(names[0])
    journal.compact()
    await committed(journal, sample(2))
    journal.close()
    again = opened(tmp_path)
    assert [one.number for one in again.recovered.windows] == [8]
    assert [one.wall_ns for one in replayed(again.recovered) if isinstance(one, SampleRecord)] == [2]
    assert again.repeats(sample(1).key)
    again.close()


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
async def test_a_group_is_written_when_enough_callers_wait(tmp_path: Path) -> None:
    counters, done = Counter[str](), asyncio.Event()
    journal = SampleJournal(tmp_path, CommitRhythm(3_600.0, 3, 0.01), snapshot_bytes=2**20, counters=counters)
    await committed(journal, sample(0))  # the first one is written at once
    for number in (1, 2):
        journal.add(sample(number), done.set)
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
