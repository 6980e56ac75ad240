"""Journal of the windows of QoS 1 routes: what a killed process needs to go on where it was (decision 0047)."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from pathlib import Path

from gateway.files import durable
from gateway.frontends.mqtt.journal.records import (
    DoneRecord,
    ExpiredRecord,
    KeysRecord,
    Record,
    SampleRecord,
    SensorRecord,
    WindowRecord,
    framed,
    read_frames,
    window_record,
)
from gateway.frontends.mqtt.journal.writer import CommitRhythm, JournalWriter
from gateway.frontends.mqtt.messages import Message
from gateway.frontends.mqtt.windows.rings import Complete

_LOG = logging.getLogger(__name__)
FILE = "mqtt-journal"
KEYS_REMEMBERED = 4_096
"""Messages whose repetition after a restart is recognised: more than brokers leave unacknowledged."""
SNAPSHOT_FACTOR = 4
"""Growth of the file, in sizes of its last snapshot, after which another snapshot replaces it."""
KEY_BYTES = 8
WAITING_LIMIT_BYTES = 8 * 2**20
"""Bytes that wait for the disk at which no more messages are read."""
FRAME_BYTES = 1_024
"""Memory of a frame that waits and of its message, without their contents."""
MakeRecord = Callable[[], Record]
"""Function that makes a record, on any thread."""
Window = tuple[str, str, int]
"""Route, sensor and number of a window."""


@dataclass(slots=True)
class Recovered:
    """Content of a journal when it was opened.

    `frames`: samples, windows and expiries of each route, in order; as records they would take five times the memory.
    `windows`: complete windows without a delivered result. `done`: windows of the samples in `frames` that have one.
    """

    frames: defaultdict[str, bytearray] = field(default_factory=lambda: defaultdict(bytearray))
    windows: list[WindowRecord] = field(default_factory=list)
    done: set[Window] = field(default_factory=set)
    keys: list[bytes] = field(default_factory=list)
    lost_bytes: int = 0


def recover(content: bytes) -> Recovered:
    """Return what a journal's file holds."""
    found = Recovered(lost_bytes=len(content))
    for record, frame in read_frames(content):
        found.lost_bytes -= len(frame)
        match record:
            case KeysRecord(keys):
                found.keys += keys
            case DoneRecord(route, sensor, number):
                found.done.add((route, sensor, number))
            case WindowRecord():
                found.windows.append(record)
            case SampleRecord() | SensorRecord() | ExpiredRecord():
                found.frames[record.route] += frame
                if isinstance(record, SampleRecord):
                    found.keys.append(record.key)
    found.windows = [one for one in found.windows if (one.route, one.sensor, one.number) not in found.done]
    return found


def message_key(message: Message) -> bytes:
    """Return what a broker's repetition of a message has in common with it: packet id, topic and payload."""
    digest = blake2b(message.mid.to_bytes(2, "little"), digest_size=KEY_BYTES)
    digest.update(message.topic.encode(errors="replace") + b"\0")
    digest.update(message.payload)
    return digest.digest()


class SampleJournal:
    """Journal in `folder`. `states` yields the windows that are not complete; `changed`: `full` has changed.

    Close it after use; all methods belong to the event loop.
    """

    def __init__(self, folder: Path, rhythm: CommitRhythm, *, snapshot_bytes: int, counters: Counter[str]) -> None:
        """Open the journal, and read what is in it into `recovered`. Raises OSError."""
        durable.make_folder(folder)
        durable.sweep(folder)
        file = folder / FILE
        self.recovered = recover(file.read_bytes() if file.exists() else b"")
        if self.recovered.lost_bytes:
            _LOG.warning("the MQTT journal ends with %d bytes that are cut or damaged", self.recovered.lost_bytes)
            os.truncate(file, file.stat().st_size - self.recovered.lost_bytes)  # new records follow the whole ones
        self.states: Callable[[], Iterable[MakeRecord]] = tuple
        self.changed: Callable[[], None] = lambda: None
        self._counters, self._least_bytes = counters, snapshot_bytes
        self._keys = OrderedDict.fromkeys(self.recovered.keys[-KEYS_REMEMBERED:])
        self._open: dict[Window, Complete] = {}
        self._grown = self._snapshot_bytes = self._waiting_bytes = self._held = 0
        self._scheduled = False
        self.problem = ""
        """Error of the last write ("": none)."""
        self._loop = asyncio.get_running_loop()
        self._writer = JournalWriter(file, rhythm, self._loop, self._report)

    @property
    def full(self) -> bool:
        """Return True if no more messages should be read: too much waits for the disk, or for a snapshot."""
        return self._waiting_bytes > WAITING_LIMIT_BYTES or self._grown > 2 * self._limit_bytes

    def take_recovered(self) -> Recovered:
        """Return what the journal held, and keep it no longer."""
        found, self.recovered = self.recovered, Recovered()
        return found

    def repeats(self, key: bytes) -> bool:
        """Return True if samples of this message are in the journal."""
        return key in self._keys

    def add(self, record: SampleRecord, committed: Callable[[], object]) -> None:
        """Add the samples of a message, before they are in a window. `committed` is called once they are on the disk.

        Call `hold` unless they are in their window before the event loop goes on.
        """
        frame = framed(record)
        self._keys[record.key] = None
        if len(self._keys) > KEYS_REMEMBERED:
            self._keys.popitem(last=False)
        self._append(frame, committed)

    def expired(self, route: str, now_ns: int) -> None:
        """Note that samples of a route stopped to wait at `now_ns`, before they are in a window."""
        self._append(framed(ExpiredRecord(route, now_ns)))

    def after(self, committed: Callable[[], object]) -> None:
        """Call `committed` once everything that was added before is on the disk."""
        self._append(b"", committed)

    def hold(self) -> None:
        """Take no snapshot until `release`: samples that were added are not all in their window."""
        self._held += 1

    def release(self) -> None:
        """Take back a `hold`."""
        self._held -= 1
        self._schedule()

    def begin(self, route: str, sensor: str, window: Complete) -> Window:
        """Note a complete window, whose result follows. Return its name."""
        name = (route, sensor, window.number)
        self._open[name] = window
        return name

    def done(self, name: Window) -> None:
        """Note that the result of a window was delivered, or refused for good."""
        if self._open.pop(name, None) is not None:
            self._append(framed(DoneRecord(*name)))

    def renew(self) -> None:
        """Take a snapshot soon: the records are of an earlier process."""
        self._grown = max(self._grown, self._limit_bytes + 1)
        self._schedule()

    def compact(self) -> None:
        """Replace the file by what is still needed: windows that are not complete, or have no result yet."""
        self._grown = 0
        self._writer.replace(partial(self._snapshot, list(self._needed())), self._replaced)

    def close(self) -> None:
        """Write what waits, and close the file. Blocks for the last sync."""
        self._writer.close()

    @property
    def _limit_bytes(self) -> int:
        return max(self._least_bytes, SNAPSHOT_FACTOR * self._snapshot_bytes)

    def _needed(self) -> Iterator[MakeRecord]:
        yield partial(KeysRecord, tuple(self._keys))
        yield from self.states()
        for (route, sensor, _), window in self._open.items():
            yield partial(window_record, route, sensor, window)

    def _snapshot(self, needed: Iterable[MakeRecord]) -> bytes:
        """Return the content of the new file. It is made on the writer's thread."""
        content = b"".join(framed(make()) for make in needed)
        self._snapshot_bytes = len(content)
        return content

    def _replaced(self) -> None:
        self._counters["journal_bytes"] += self._snapshot_bytes

    def _schedule(self) -> None:
        """Take a snapshot once the callbacks in progress have ended, if one is due."""
        if self._grown > self._limit_bytes and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.compact_if_due)

    def compact_if_due(self) -> None:
        """Take a snapshot if one is due, and all samples that were added are in their window."""
        self._scheduled = False
        if self._grown > self._limit_bytes and not self._held:
            self.compact()
            self.changed()

    def _append(self, frame: bytes, committed: Callable[[], object] | None = None) -> None:
        was_full = self.full
        self._grown += len(frame)
        self._waiting_bytes += len(frame) + FRAME_BYTES
        self._counters["journal_bytes"] += len(frame)
        self._writer.append(frame, partial(self._committed, len(frame) + FRAME_BYTES, committed))
        self._schedule()
        if self.full != was_full:
            self.changed()

    def _committed(self, count: int, committed: Callable[[], object] | None) -> None:
        was_full = self.full
        self._waiting_bytes -= count
        if committed is not None:
            committed()
        if was_full and not self.full:
            self.changed()

    def _report(self, error: OSError | None) -> None:
        if error is None:
            _LOG.info("the MQTT journal is written again")
        elif not self.problem:
            _LOG.error("the MQTT journal cannot be written, so samples stay at the broker: %s; free space", error)
        self.problem = "" if error is None else str(error)
