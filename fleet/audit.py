"""The audit log's chain: each entry's digest covers the one before, so that none can be changed or taken out unseen.

Who can write to the database can also compute a new chain: note the head's digest elsewhere (`edge-fleet audit verify`
prints it) to tell. Pure; `fleet.database.audit` stores it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

FIRST = "0" * 64
"""What stands for the digest of the entry before the first one."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Deed:
    """What was done: `actor` did `action` to `subject`; `details` are plain JSON values."""

    actor: str
    action: str
    subject: str
    details: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the log. `sequence` counts from 1; `at` is UTC; `previous` and `digest` are SHA-256, as hex."""

    sequence: int
    at: datetime
    deed: Deed
    previous: str
    digest: str


@dataclass(frozen=True, slots=True)
class Head:
    """Where a log ends: 0 and `FIRST` of an empty one."""

    sequence: int = 0
    digest: str = FIRST


@dataclass(frozen=True, slots=True)
class Break:
    """The first entry that is not as it was written, and how that shows."""

    sequence: int
    problem: str


def chained(head: Head, deed: Deed, at: datetime) -> Entry:
    """The entry that follows `head`."""
    sequence = head.sequence + 1
    return Entry(sequence, at, deed, head.digest, _digest(sequence, at, deed, head.digest))


def head_of(entry: Entry) -> Head:
    """Where a log ends whose last entry this is."""
    return Head(entry.sequence, entry.digest)


def follow(head: Head, entries: Iterable[Entry]) -> Head | Break:
    """Hold entries that come after `head`, in order, against their digests; where they end, or the first break."""
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
    """Microseconds as an integer: a text of the time would leave open how it is written."""
    age = at.astimezone(UTC) - _EPOCH
    at_us = (age.days * 86_400 + age.seconds) * 1_000_000 + age.microseconds
    fields = [previous, sequence, at_us, deed.actor, deed.action, deed.subject, dict(deed.details)]
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
