"""Journal of the windows of QoS 1 routes: what a killed process needs to go on where it was (decision 0047)."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from gateway.files import durable
from gateway.frontends.mqtt.journal.records import (
    DoneRecord,
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
Window = tuple[str, str, int]
"""Route, sensor and number of a window."""


@dataclass(slots=True)
class Recovered:
    """What a journal held when it was opened.

    `records`: samples and windows, in order. `windows`: complete windows without a delivered result. `done`: windows of
    the samples in `records` that have one.
    """

    records: list[SampleRecord | SensorRecord] = field(default_factory=list)
    windows: list[WindowRecord] = field(default_factory=list)
    done: set[Window] = field(default_factory=set)
    keys: list[bytes] = field(default_factory=list)
    lost_bytes: int = 0


def recover(content: bytes) -> Recovered:
    """Return what a journal's file holds."""
    records, whole = read_frames(content)
    found = Recovered(lost_bytes=len(content) - whole)
    for record in records:
        _add(found, record)
    found.windows = [one for one in found.windows if (one.route, one.sensor, one.number) not in found.done]
    return found


def _add(found: Recovered, record: Record) -> None:
    match record:
        case KeysRecord(keys):
            found.keys += keys
        case DoneRecord(route, sensor, number):
            found.done.add((route, sensor, number))
        case WindowRecord():
            found.windows.append(record)
        case SampleRecord():
            found.records.append(record)
            found.keys.append(record.key)
        case SensorRecord():
            found.records.append(record)


def message_key(message: Message) -> bytes:
    """Return what a broker's repetition of a message has in common with it: packet id, topic and payload."""
    digest = blake2b(message.payload, digest_size=KEY_BYTES, key=message.topic.encode(errors="replace")[:64])
    digest.update(message.mid.to_bytes(2, "little"))
    return digest.digest()


class SampleJournal:
    """Journal in `folder`. `states` yields the records of the windows that are not complete.

    Close it after use; all methods belong to the event loop.
    """

    def __init__(self, folder: Path, rhythm: CommitRhythm, *, snapshot_bytes: int, counters: Counter[str]) -> None:
        """Open the journal, and read what is in it into `recovered`. Raises OSError."""
        durable.make_folder(folder)
        durable.sweep(folder)
        file = folder / FILE
        self.recovered = recover(file.read_bytes() if file.exists() else b"")
        self.states: Callable[[], Iterable[Record]] = tuple
        self._counters, self._least_bytes = counters, snapshot_bytes
        self._keys = OrderedDict.fromkeys(self.recovered.keys[-KEYS_REMEMBERED:])
        self._open: dict[Window, Complete] = {}
        self._grown = self._snapshot_size = 0
        self.problem = ""
        """Error of the last write ("": none)."""
        loop = asyncio.get_running_loop()
        self._writer = JournalWriter(file, rhythm, loop, self._report)

    def repeats(self, key: bytes) -> bool:
        """Return True if samples of this message are in the journal."""
        return key in self._keys

    def add(self, record: SampleRecord, committed: Callable[[], None]) -> None:
        """Add the samples of a message; `committed` is called once they are on the disk."""
        self._keys[record.key] = None
        if len(self._keys) > KEYS_REMEMBERED:
            self._keys.popitem(last=False)
        self._append(framed(record), committed)
        if self._grown > max(self._least_bytes, SNAPSHOT_FACTOR * self._snapshot_size):
            self.compact()

    def begin(self, route: str, sensor: str, window: Complete) -> Window:
        """Note a complete window, whose result follows. Return its name."""
        name = (route, sensor, window.number)
        self._open[name] = window
        return name

    def done(self, name: Window) -> None:
        """Note that the result of a window was delivered, or refused for good."""
        if self._open.pop(name, None) is not None:
            self._append(framed(DoneRecord(*name)), None)

    def compact(self) -> None:
        """Replace the file by what is still needed: windows that are not complete, or have no result yet."""
        content = b"".join(framed(record) for record in self._needed())
        self._snapshot_size, self._grown = len(content), 0
        self._counters["journal_bytes"] += len(content)
        self._writer.replace(content)

    def close(self) -> None:
        """Write what waits, and close the file. Blocks for the last sync."""
        self._writer.close()

    def _needed(self) -> Iterator[Record]:
        yield KeysRecord(tuple(self._keys))
        yield from self.states()
        for (route, sensor, _), window in self._open.items():
            yield window_record(route, sensor, window)

    def _append(self, frame: bytes, committed: Callable[[], None] | None) -> None:
        self._grown += len(frame)
        self._counters["journal_bytes"] += len(frame)
        self._writer.append(frame, committed)

    def _report(self, error: OSError | None) -> None:
        if error is None:
            _LOG.info("the MQTT journal is written again")
        elif not self.problem:
            _LOG.error("the MQTT journal cannot be written, so samples stay at the broker: %s; free space", error)
        self.problem = "" if error is None else str(error)
