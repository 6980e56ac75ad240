"""Hash chain of the audit log: each digest covers the previous entry, so that changes and deletions are detectable.

An attacker with write access to the database can compute a new chain. To detect that, keep the head's digest elsewhere
(`edge-fleet audit verify` prints it). Pure; `fleet.controller.database.audit` stores it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone

FIRST = "0" * 64
"""Previous digest of the first entry."""
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True, slots=True)
class Deed:
    """An action to record: `actor` did `action` to `subject`; `details` are plain JSON values."""

    actor: str
    action: str
    subject: str
    details: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LogEntry:
    """An entry of the log. `sequence` counts from 1; `at` is UTC; `previous` and `digest` are SHA-256, as hex."""

    sequence: int
    at: datetime
    deed: Deed
    previous: str
    digest: str


@dataclass(frozen=True, slots=True)
class Head:
    """End of a log; 0 and `FIRST` for an empty one."""

    sequence: int = 0
    digest: str = FIRST


@dataclass(frozen=True, slots=True)
class Break:
    """The first entry that differs from what was written, and how."""

    sequence: int
    problem: str


def chained(head: Head, deed: Deed, at: datetime) -> LogEntry:
    """Return the entry that follows `head`."""
    sequence = head.sequence + 1
    return LogEntry(sequence, at, deed, head.digest, _digest(sequence, at, deed, head.digest))


def head_of(entry: LogEntry) -> Head:
    """Return the end of a log with this last entry."""
    return Head(entry.sequence, entry.digest)


def follow(head: Head, entries: Iterable[LogEntry]) -> Head | Break:
    """Verify the entries after `head`, in order. Return the end of the log, or the first break."""
    for entry in entries:
        if entry.sequence != head.sequence + 1:
            return Break(head.sequence + 1, f"is missing; {entry.sequence} follows {head.sequence}")
        if entry.previous != head.digest:
            return Break(entry.sequence, "does not follow the entry before it")
        if entry.digest != _digest(entry.sequence, entry.at, entry.deed, entry.previous):
            return Break(entry.sequence, "was changed after it was written")
        head = head_of(entry)
    return head


def _digest(sequence: int, at: datetime, deed: Deed, previous: str) -> str:
    """Return an entry's digest. The time is an integer in microseconds, since text has several representations."""
    age = at.astimezone(timezone.utc) - _EPOCH
    at_us = (age.days * 86_400 + age.seconds) * 1_000_000 + age.microseconds
    fields = [previous, sequence, at_us, deed.actor, deed.action, deed.subject, dict(deed.details)]
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
