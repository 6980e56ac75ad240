"""Records of the journal, and their frames: length and CRC-32 (little-endian), then MessagePack. Pure.

A frame that is cut or damaged ends the journal: all frames before it are whole, because they were synced in order.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import numpy as np

from gateway.frontends.mqtt.windows.rings import Complete, Ring, RingState
from gateway.frontends.mqtt.windows.samples import Rows, Sample, SensorState

HEADER = struct.Struct("<II")


class SampleRecord(msgspec.Struct, frozen=True, array_like=True, tag="s"):
    """Samples of one message, in the order in which they came.

    `key` identifies the message if the broker repeats it. `rows`: float32 [n, channels]. `times_ns`, `sequences`: of
    each row; empty if samples have the time of their arrival, and no sequence number. `wall_ns`: arrival since the
    epoch, `arrived_ns` on the monotonic clock.
    """

    route: str
    sensor: str
    key: bytes
    wall_ns: int
    arrived_ns: int
    channels: int
    rows: bytes
    times_ns: tuple[int, ...] = ()
    sequences: tuple[int, ...] = ()

    def array(self) -> Rows:
        """Return the rows."""
        return np.frombuffer(self.rows, np.float32).reshape(-1, self.channels)


class ExpiredRecord(msgspec.Struct, frozen=True, array_like=True, tag="e"):
    """Monotonic time at which samples of a route stopped to wait for earlier ones."""

    route: str
    now_ns: int


class DoneRecord(msgspec.Struct, frozen=True, array_like=True, tag="d"):
    """Window whose result was delivered, or refused for good."""

    route: str
    sensor: str
    number: int


class WindowRecord(msgspec.Struct, frozen=True, array_like=True, tag="w"):
    """Complete window whose result is not delivered yet."""

    route: str
    sensor: str
    channels: int
    rows: bytes
    started_ns: int
    ended_ns: int
    gap_ns: int
    missing_rows: int
    number: int


class WaitingSample(msgspec.Struct, frozen=True, array_like=True):
    """Sample outside the ring. `arrived_ns`: on the monotonic clock."""

    row: bytes
    time_ns: int
    arrived_ns: int
    sequence: int | None


class SensorRecord(msgspec.Struct, frozen=True, array_like=True, tag="r"):
    """Window of one sensor that is not complete. `seen_ns`: arrival of its last sample, on the monotonic clock.

    `joined`: time and value of each channel's last sample, if rows are joined by time.
    """

    route: str
    sensor: str
    seen_ns: int
    channels: int
    rows: bytes
    times_ns: bytes
    marks: bytes
    due: int
    number: int
    next_ns: int
    previous: WaitingSample | None
    waiting: tuple[WaitingSample, ...]
    joined: tuple[tuple[int, float] | None, ...] = ()


class KeysRecord(msgspec.Struct, frozen=True, array_like=True, tag="k"):
    """Keys of the newest messages, the oldest one first."""

    keys: tuple[bytes, ...]


Record = SampleRecord | ExpiredRecord | DoneRecord | WindowRecord | SensorRecord | KeysRecord
_DECODER: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)
_ENCODER = msgspec.msgpack.Encoder()


def framed(record: Record) -> bytes:
    """Return the frame of a record."""
    content = _ENCODER.encode(record)
    return HEADER.pack(len(content), zlib.crc32(content)) + content


def read_frames(content: bytes | bytearray) -> Iterator[tuple[Record, memoryview]]:
    """Yield each record and its frame, up to the first frame that is cut or damaged."""
    start = 0
    while (found := _frame(content, start)) is not None:
        try:
            record = _DECODER.decode(found)
        except msgspec.MsgspecError:
            return
        begin, start = start, start + HEADER.size + len(found)
        yield record, memoryview(content)[begin:start]


def _frame(content: bytes | bytearray, start: int) -> memoryview | None:
    if len(content) - start < HEADER.size:
        return None
    length, checksum = HEADER.unpack_from(content, start)
    begin = start + HEADER.size
    if len(content) - begin < length:
        return None
    found = memoryview(content)[begin : begin + length]
    return found if zlib.crc32(found) == checksum else None


def window_record(route: str, sensor: str, window: Complete) -> WindowRecord:
    """Return the record of a complete window."""
    return WindowRecord(
        route,
        sensor,
        window.rows.shape[1],
        window.rows.tobytes(),
        window.started_ns,
        window.ended_ns,
        window.gap_ns,
        window.missing_rows,
        window.number,
    )


def complete_window(record: WindowRecord) -> Complete:
    """Return the window of a record."""
    rows = np.frombuffer(record.rows, np.float32).reshape(-1, record.channels)
    return Complete(rows, record.started_ns, record.ended_ns, record.gap_ns, record.missing_rows, record.number)


def sensor_record(route: str, sensor: str, window: Ring, state: SensorState) -> SensorRecord:
    """Return the record of a window that is not complete."""
    ring = window.state()
    return SensorRecord(
        route,
        sensor,
        window.seen_ns,
        ring.rows.shape[1],
        ring.rows.tobytes(),
        ring.times_ns.tobytes(),
        ring.marks.tobytes(),
        ring.due,
        ring.number,
        state.next_ns,
        None if state.previous is None else _waiting(state.previous),
        tuple(map(_waiting, state.waiting)),
        state.joined,
    )


def ring_state(record: SensorRecord) -> RingState:
    """Return the content of the ring. Raises ValueError if its parts do not fit together."""
    rows = np.frombuffer(record.rows, np.float32).reshape(-1, record.channels)
    times, marks = np.frombuffer(record.times_ns, np.int64), np.frombuffer(record.marks, np.int32)
    if not len(rows) == len(times) == len(marks):
        raise ValueError("a ring has as many times and marks as rows")
    return RingState(rows, times, marks, record.due, record.number)


def sensor_state(record: SensorRecord) -> SensorState:
    """Return the content outside the ring."""
    previous = None if record.previous is None else _sample(record.previous)
    return SensorState(previous, record.next_ns, tuple(map(_sample, record.waiting)), record.joined)


def samples_of(record: SampleRecord) -> Iterable[Sample]:
    """Yield the samples of a message that have times or sequence numbers of their own."""
    for index, row in enumerate(record.array()):
        time_ns = record.times_ns[index] if record.times_ns else record.wall_ns
        yield Sample(row, time_ns, record.arrived_ns, record.sequences[index] if record.sequences else None)


def _waiting(sample: Sample) -> WaitingSample:
    return WaitingSample(sample.row.tobytes(), sample.time_ns, sample.arrived_ns, sample.sequence)


def _sample(found: Any) -> Sample:
    return Sample(np.frombuffer(found.row, np.float32), found.time_ns, found.arrived_ns, found.sequence)
