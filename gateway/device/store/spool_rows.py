"""Records of the spool, as values and as rows of its tables."""

from __future__ import annotations

import enum
import json
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

OVERHEAD_BYTES = 128
"""Size of a record or gap in addition to the document: its row and index entries take less (measured)."""
COLUMNS = "source, seq, priority, at_us, kind, payload, bytes"
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)


class Priority(enum.IntEnum):
    """Importance of a record. If there is no space, the least important ones are dropped first."""

    VITALS = 0
    STATISTICS = 1
    STATE = 2
    EVENT = 3
    EVIDENCE = 4


@dataclass(frozen=True, slots=True)
class SpoolRecord:
    """Record to send. `document`: a JSON object; `at`: the time of the fact, by this device's clock."""

    stream: str
    priority: Priority
    kind: str
    at: datetime
    document: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SpooledRecord:
    """Record in the spool, with its number; `payload` is the JSON of its document."""

    stream: str
    boot_epoch: int
    seq: int
    priority: Priority
    kind: str
    at: datetime
    payload: str

    @property
    def size_bytes(self) -> int:
        """Return the size that counts against the limit."""
        return OVERHEAD_BYTES + len(self.payload.encode())


@dataclass(frozen=True, slots=True)
class Gap:
    """Range of dropped numbers, `seq` to `last`, with the number of dropped records by priority."""

    stream: str
    boot_epoch: int
    seq: int
    last: int
    dropped: Mapping[Priority, int]

    @property
    def size_bytes(self) -> int:
        """Return the size that counts against the limit."""
        return OVERHEAD_BYTES


@dataclass(frozen=True, slots=True)
class Usage:
    """Usage of a spool; `size_bytes` counts against the limit."""

    records: int
    gaps: int
    size_bytes: int


def kept(source: sqlite3.Row, row: sqlite3.Row) -> SpooledRecord:
    """Convert a row of `record`."""
    at = _EPOCH + row["at_us"] * _MICROSECOND
    priority = Priority(row["priority"])
    return SpooledRecord(source["stream"], source["boot_epoch"], row["seq"], priority, row["kind"], at, row["payload"])


def gap(source: sqlite3.Row, row: sqlite3.Row) -> Gap:
    """Convert a row of `gap`."""
    return Gap(source["stream"], source["boot_epoch"], row["first"], row["last"], gap_counts(row))


def gap_counts(row: sqlite3.Row) -> dict[Priority, int]:
    """Return the counts in a row of `gap`."""
    return {Priority(int(name)): count for name, count in json.loads(row["dropped"]).items()}


def counts_text(counts: Mapping[Priority, int]) -> str:
    """Return the inverse of `gap_counts`."""
    return json.dumps({str(int(priority)): count for priority, count in sorted(counts.items())})


def added(*counts: Mapping[Priority, int]) -> Mapping[Priority, int]:
    """Return the sum of all counts."""
    total: Counter[Priority] = Counter()
    for one in counts:
        total.update(one)
    return total


def end_of_gaps(entries: Sequence[SpooledRecord | Gap], limit: int) -> int:
    """Return the number of entries from the beginning that contain at most `limit` gaps."""
    found = 0
    for place, entry in enumerate(entries):
        found += isinstance(entry, Gap)
        if found > limit:
            return place
    return len(entries)


def time_us(moment: datetime) -> int:
    """Return microseconds since 1970."""
    return (moment - _EPOCH) // _MICROSECOND
