"""Telemetry spool of a simulated device: numbered records, kept until the controller acknowledges them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

TIME_FORM = "%Y-%m-%dT%H:%M:%S.%fZ"


@dataclass(frozen=True, slots=True)
class TelemetryLine:
    """A numbered line of telemetry."""

    stream: str
    seq: int
    line: str


@dataclass(frozen=True, slots=True)
class ReportedRows:
    """State of a stream: records 1 to `made` exist; the controller acknowledged all up to `acknowledged`."""

    stream: str
    boot_epoch: int
    made: int
    acknowledged: int


class SimulatedSpool:
    """Records of one boot of one device (gateway/device/agent/README.md, "Telemetry")."""

    def __init__(self, boot_epoch: int) -> None:
        self.boot_epoch = boot_epoch
        self._last: dict[str, int] = {}
        self._had: dict[str, int] = {}
        self._waiting: dict[tuple[str, int], TelemetryLine] = {}

    def __len__(self) -> int:
        """Return how many records wait."""
        return len(self._waiting)

    def keep(self, stream: str, kind: str, priority: str, now: datetime, document: Mapping[str, Any]) -> None:
        """Append a record to its stream, with the next number. `priority`: the telemetry class."""
        seq = self._last.get(stream, 0) + 1
        self._last[stream] = seq
        entry = {
            "stream": stream,
            "boot_epoch": self.boot_epoch,
            "seq": seq,
            "at": now.strftime(TIME_FORM),
            "kind": kind,
            "class": priority,
            "document": document,
        }
        self._waiting[stream, seq] = TelemetryLine(stream, seq, json.dumps(entry, separators=(",", ":")))

    def batch(self, rows: int) -> Sequence[TelemetryLine]:
        """Return the records to send next, the oldest first."""
        return tuple(islice(self._waiting.values(), rows))

    def acknowledged(self, answer: Mapping[str, Any]) -> int:
        """Delete the acknowledged records and return how many. Acknowledgements of other boots are ignored."""
        for source in answer.get("acknowledged", ()):
            if source["boot_epoch"] == self.boot_epoch:
                self._had[source["stream"]] = max(self._had.get(source["stream"], 0), source["seq"])
        gone = [key for key in self._waiting if key[1] <= self._had.get(key[0], 0)]
        for key in gone:
            del self._waiting[key]
        return len(gone)

    def reported(self) -> Iterator[ReportedRows]:
        """Yield the state of each stream."""
        for stream, made in self._last.items():
            yield ReportedRows(stream, self.boot_epoch, made, self._had.get(stream, 0))

    def drop(self, records: Sequence[TelemetryLine]) -> None:
        """Delete records that the controller will never accept."""
        for record in records:
            self._waiting.pop((record.stream, record.seq), None)


def body(records: Sequence[TelemetryLine]) -> bytes:
    """Return the request's body: JSON lines, compressed."""
    text = "".join(f"{record.line}\n" for record in records)
    return gzip.compress(text.encode(), compresslevel=1, mtime=0)
