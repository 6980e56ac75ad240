"""Journal of the windows of QoS 1 routes: what a killed process needs to go on where it was (decision 0047)."""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from pathlib import Path

import msgspec

from gateway.common.files import durable
from gateway.serving.frontends.mqtt.journal.records import (
    DoneRecord,
    DroppedRecord,
    ExpiredRecord,
    HeldRecord,
    KeysRecord,
    Record,
    SampleRecord,
    SensorRecord,
    WindowRecord,
    framed,
    lost_sensors,
    read_frames,
    window_record,
)
from gateway.serving.frontends.mqtt.journal.writer import CommitRhythm, JournalWriter
from gateway.serving.frontends.mqtt.messages import Message
from gateway.serving.frontends.mqtt.windows.rings import Complete

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
LOSS_READ_BYTES = 2**20
"""Bytes of a damaged end that are searched for the sensors whose samples are lost."""
LOST_SHOWN = 10
"""Most sensors that are named."""
MakeRecord = Callable[[], Record]
"""Function that makes a record, on any thread."""
Window = tuple[str, str, int]
"""Route, sensor and number of a window."""


@dataclass(slots=True)
class Recovered:
    """Content of a journal when it was opened.

    `frames`: samples, windows and expiries of each route, in order; as records they would take five times the memory.
    `windows`: complete windows without a delivered result. `done`: windows of the samples in `frames` that have one.
    `held`: messages that wait for their model, by name.
    """

    frames: defaultdict[str, bytearray] = field(default_factory=lambda: defaultdict(bytearray))
    windows: list[WindowRecord] = field(default_factory=list)
    done: set[Window] = field(default_factory=set)
    keys: list[bytes] = field(default_factory=list)
    held: dict[bytes, HeldRecord] = field(default_factory=dict)
    session: str = ""
    lost_bytes: int = 0


def recover(content: bytes) -> Recovered:
    """Return what a journal's file holds."""
    found = Recovered(lost_bytes=len(content))
    for record, frame in read_frames(content):
        found.lost_bytes -= len(frame)
        match record:
            case KeysRecord(keys, session):
                found.keys = [*(found.keys if session == found.session else ()), *keys]
                found.session = session
            case DoneRecord(route, sensor, number):
                found.done.add((route, sensor, number))
            case WindowRecord():
                found.windows.append(record)
            case SampleRecord() | SensorRecord() | ExpiredRecord():
                found.frames[record.route] += frame
                if isinstance(record, SampleRecord) and found.held.pop(record.key, None) is None:
                    found.keys.append(record.key)
            case HeldRecord(name=name, key=key):
                found.held[name] = record
                found.keys.append(key)
            case DroppedRecord(name):
                found.held.pop(name, None)
    found.windows = [one for one in found.windows if (one.route, one.sensor, one.number) not in found.done]
    return found


def message_key(message: Message) -> bytes:
    """Return what a broker's repetition of a message has in common with it: packet id, route, topic and payload.

    Nothing repeats a kept message.
    """
    if message.key:
        return message.key
    digest = blake2b(message.mid.to_bytes(2, "little"), digest_size=KEY_BYTES)
    digest.update(f"{message.route}\0{message.topic}\0".encode(errors="replace"))
    digest.update(message.payload)
    return digest.digest()


def _loss(file: Path, lost_bytes: int) -> str:
    """Return what the end of a journal that is cut or damaged held, as far as it can be told. Raises OSError."""
    with file.open("rb") as content:
        content.seek(-lost_bytes, os.SEEK_END)
        found = lost_sensors(content.read(LOSS_READ_BYTES))
    named = "; ".join(f"{name}: {count} records" for name, count in found.most_common(LOST_SHOWN))
    more = f"; and {len(found) - LOST_SHOWN} more sensors" if len(found) > LOST_SHOWN else ""
    problem = f"{file}: the last {lost_bytes} bytes are cut or damaged and were dropped"
    return f"{problem}: {named or 'no sensor can be told'}{more}; samples whose message was not acknowledged come again"


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
            _LOG.error("%s", _loss(file, self.recovered.lost_bytes))
            os.truncate(file, file.stat().st_size - self.recovered.lost_bytes)  # new records follow the whole ones
        self.states: Callable[[], Iterable[MakeRecord]] = tuple
        self.changed: Callable[[], None] = lambda: None
        self._counters, self._least_bytes = counters, snapshot_bytes
        self._keys = OrderedDict.fromkeys(self.recovered.keys[-KEYS_REMEMBERED:], 0)
        """Connections of the newest messages, by key; 0: of an earlier process."""
        self.session, self._session_epoch = self.recovered.session, 0
        """Name of the broker's session: client id, broker, and a random part. First connection of it."""
        self._open: dict[Window, Complete] = {}
        self._kept = dict(self.recovered.held)
        self._grown = self._snapshot_bytes = self._waiting_bytes = self._held = 0
        self._limit_bytes = snapshot_bytes
        """Growth of the file after which it is replaced."""
        self._scheduled = self._noted_full = False
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

    def connected(self, home: str, epoch: int, *, resumed: bool) -> bool:
        """Note a connection by client id and broker (`home`). Return True if it begins another session.

        Keys of the session before are then forgotten. A journal without the name of a session is of an older version.
        """
        is_known = self.session.startswith(f"{home}#")
        if resumed and is_known:
            return False
        if is_new := not resumed or bool(self.session):
            self._keys.clear()
            self._session_epoch = epoch
        self.session = f"{home}#{uuid.uuid4().hex}"
        self._append(framed(KeysRecord(tuple(self._keys), self.session)))
        return is_new

    def repeats(self, message: Message) -> bool:
        """Return True if the broker sends a message again that was in the journal, or its samples."""
        return message.dup and self._keys.get(message_key(message), message.epoch) < message.epoch

    def add(self, record: SampleRecord, epoch: int, committed: Callable[[], object]) -> None:
        """Add the samples of a message of connection `epoch`, before they are in a window.

        `committed` is called once they are on the disk. Call `hold` unless they are in their window before the event
        loop goes on.
        """
        if self._kept.pop(record.key, None) is None:
            if epoch < self._session_epoch:
                record = msgspec.structs.replace(record, key=b"")  # its packet id means another message now
            self._remember(record.key, epoch)
        self._append(framed(record), committed)

    def keep(self, route: str, message: Message, committed: Callable[[], object]) -> None:
        """Keep a message that waits for its model, until its `kept` is called. `committed`: it is on the disk."""
        key = b"" if message.epoch < self._session_epoch else message_key(message)
        record = HeldRecord.of(route, uuid.uuid4().bytes, key, message)
        self._kept[record.name] = record
        self.claim(message, record)
        self._remember(record.key, message.epoch)
        self._append(framed(record), committed)

    def claim(self, message: Message, record: HeldRecord) -> None:
        """Let `message` be the one of `record`, which its acknowledgement removes."""
        message.key, message.kept = record.name, partial(self._drop, record.name)

    def expired(self, route: str, now_ns: int) -> None:
        """Note that samples of a route stopped to wait at `now_ns`, before they are in a window."""
        self._append(framed(ExpiredRecord(route, now_ns)))

    def after(self, committed: Callable[[], object], held_bytes: int = 0) -> None:
        """Call `committed`, which holds so much memory, once everything that was added before is on the disk."""
        self._append(b"", committed, held_bytes)

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
        needed: list[MakeRecord] = [
            partial(KeysRecord, tuple(self._keys), self.session),
            *self.states(),
            *(partial(window_record, route, sensor, window) for (route, sensor, _), window in self._open.items()),
            *(partial(unchanged, record) for record in self._kept.values()),
        ]
        self._writer.replace(partial(self._snapshot, needed), self._replaced)

    def close(self) -> None:
        """Write what waits, and close the file. Blocks for the last sync."""
        self._writer.close()

    def _snapshot(self, needed: Iterable[MakeRecord]) -> bytes:
        """Return the content of the new file. It is made on the writer's thread."""
        content = b"".join(framed(make()) for make in needed)
        self._snapshot_bytes = len(content)
        self._limit_bytes = max(self._least_bytes, SNAPSHOT_FACTOR * len(content))
        return content

    def _replaced(self) -> None:
        self._counters["journal_bytes"] += self._snapshot_bytes

    def _remember(self, key: bytes, epoch: int) -> None:
        self._keys[key] = epoch
        self._keys.move_to_end(key)
        if len(self._keys) > KEYS_REMEMBERED:
            self._keys.popitem(last=False)

    def _drop(self, name: bytes) -> None:
        if self._kept.pop(name, None) is not None:
            self._append(framed(DroppedRecord(name)))

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
            self._noted_full = self.full
            self.changed()

    def _append(self, frame: bytes, committed: Callable[[], object] | None = None, held_bytes: int = 0) -> None:
        waiting_bytes = len(frame) + FRAME_BYTES + held_bytes
        self._grown += len(frame)
        self._waiting_bytes += waiting_bytes
        self._counters["journal_bytes"] += len(frame)
        self._writer.append(frame, partial(self._committed, waiting_bytes, committed))
        if self._grown > self._limit_bytes:
            self._schedule()
        if not self._noted_full and self.full:
            self._noted_full = True
            self.changed()

    def _committed(self, count: int, committed: Callable[[], object] | None) -> None:
        self._waiting_bytes -= count
        if committed is not None:
            committed()
        if self._noted_full and not self.full:
            self._noted_full = False
            self.changed()

    def _report(self, error: OSError | None) -> None:
        if error is None:
            _LOG.info("the MQTT journal is written again")
        elif not self.problem:
            _LOG.error("the MQTT journal cannot be written, so samples stay at the broker: %s; free space", error)
        self.problem = "" if error is None else str(error)


def unchanged(record: Record) -> Record:
    """Return a record that a snapshot takes over."""
    return record
