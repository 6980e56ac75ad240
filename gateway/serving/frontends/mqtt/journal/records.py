"""Records of the journal, and their frames: length and CRC-32 (little-endian), then MessagePack. Pure.

A frame that is cut or damaged ends the journal: all frames before it are whole, because they were synced in order.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import numpy as np

from gateway.serving.frontends.mqtt.messages import Message
from gateway.serving.frontends.mqtt.windows.rings import Complete, Ring, RingState
from gateway.serving.frontends.mqtt.windows.samples import Rows, Sample, SensorState

HEADER = struct.Struct("<II")
_NAMED = re.compile(rb"[\x94-\x9f]\xa1[srwd]")
"""Beginning of a record with a route and a sensor in MessagePack: the size of the array and the tag."""


class SampleRecord(msgspec.Struct, frozen=True, array_like=True, tag="s"):
    """Samples of one message, in the order in which they came.

    `key` identifies the message if the broker repeats it. `rows`: float32 [n, channels]. `times_ns`, `sequences`: of
    each row; empty if samples have the time of their arrival, and no sequence number. `wall_ns`: arrival since the
    epoch, `arrived_ns` on the monotonic clock. `lost`: samples that were refused before them.
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
    lost: int = 0

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
    """Keys of the newest messages, the oldest one first.

    `session`: session of the broker to which they and those that follow belong; keys of another one before are void.
    """

    keys: tuple[bytes, ...]
    session: str = ""


class HeldRecord(msgspec.Struct, frozen=True, array_like=True, tag="h"):
    """Message of a route that waits for its model, acknowledged and not decoded.

    `name` is unique. It becomes the key of the message's samples, so that a record of them takes the place of this one.
    `key` identifies the message if the broker repeats it. `wall_ns`: arrival since the epoch.
    """

    route: str
    name: bytes
    key: bytes
    topic: str
    payload: bytes
    mid: int
    wall_ns: int
    content_type: str
    correlation: bytes | None
    expiry_s: int | None
    user: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, route: str, name: bytes, key: bytes, message: Message) -> HeldRecord:
        """Return the record of a message."""
        copied = {field: getattr(message, field) for field in cls.__struct_fields__[3:]}
        return cls(route, name, key, **copied)

    def message(self, wall_ns: int, now_ns: int) -> Message:
        """Return the message as if it arrived at `now_ns` (`wall_ns` since the epoch), with the rest of its expiry."""
        copied = {field: getattr(self, field) for field in self.__struct_fields__[3:]}
        if self.expiry_s is not None:
            copied["expiry_s"] = max(0, self.expiry_s - (wall_ns - self.wall_ns) // 1_000_000_000)
        return Message(**copied, qos=1, arrived_ns=now_ns, route=self.route)


class DroppedRecord(msgspec.Struct, frozen=True, array_like=True, tag="x"):
    """Name of a held message that was answered or refused."""

    name: bytes


Record = (
    HeldRecord | DroppedRecord | SampleRecord | ExpiredRecord | DoneRecord | WindowRecord | SensorRecord | KeysRecord
)
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


def lost_sensors(content: bytes) -> Counter[str]:
    """Return how many records of each route and sensor can still be seen in bytes that are cut or damaged."""
    found = Counter[str]()
    for match in _NAMED.finditer(content):
        route, at = _text(content, match.end())
        sensor, _ = _text(content, at)
        if route and sensor:
            found[f"route {route!r}, sensor {sensor!r}"] += 1
    return found


def _text(content: bytes, at: int) -> tuple[str, int]:
    """Return the MessagePack string of at most 255 bytes at a position, and its end; "" if there is none."""
    head = (*content[at : at + 2], 0, 0)
    start, size = (at + 2, head[1]) if head[0] == 0xD9 else (at + 1, head[0] - 0xA0)  # str 8, fixstr
    if not 0 < size < (256 if head[0] == 0xD9 else 32):
        return "", at
    text = content[start : start + size].decode(errors="replace")
    return text if text.isprintable() else "", start + size


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
