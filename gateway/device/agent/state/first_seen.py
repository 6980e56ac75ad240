"""First-seen times of changes, and how long they count. Pure: the time is passed in.

The first-seen time of a release counts while the release is assigned and `SIGHT_LASTS_H` after that. For a release that
ran here, it counts for the same time after another one was begun in its place. An attacker who controls the controller
can thus hurry what was assigned within the last day, and nothing older (decision 0021). A withdrawal that is taken back
is forgotten at once.

A time that was noted while the clock was not trusted is noted again once the clock is trusted. A time in the future is
discarded. A wait may thus begin again, but a corrected clock never ends it early.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone

from gateway.common.domain.assignment import Target
from gateway.common.domain.python310 import from_iso

INSTALL, WITHDRAW = "install", "withdraw"
SIGHT_LASTS_H = 24
"""Hours. A roll-back on the next morning need not wait. An attacker can hurry what counts within this time."""
SIGHTS_LIMIT = 1000
"""Entries that are kept. The oldest are dropped; a release that comes back after so many others waits again."""
LONG_AGO = datetime.min.replace(tzinfo=timezone.utc)
"""First-seen time of releases that ran here."""


@dataclass(frozen=True, slots=True)
class Present:
    """Time by which a device waits, and whether its clock is trusted."""

    now: datetime
    trusted: bool


@dataclass(frozen=True, slots=True)
class Sight:
    """Time at which a verified change was first seen here.

    `trusted`: the clock was trusted then. `left`: since when the change is no longer assigned, or another one was begun
    in its place; None while it is assigned.
    """

    at: datetime
    trusted: bool
    left: datetime | None = None


class FirstSeen:
    """First-seen times of one poll: call `see` for each change, `leave` for replaced releases, then `text`."""

    def __init__(self, text: str, now: Present) -> None:
        """Read the `text` of the previous poll. If it is not readable, all waits begin again."""
        self._now = now
        self._known = _read(text, now.now)
        self._seen: set[str] = set()

    def see(self, change: str, slot: str, release: str) -> datetime:
        """Return when this change, which is to be made now, was first seen."""
        key = _key(change, slot, release)
        self._seen.add(key)
        self._known[key] = sight = seen(self._known.get(key), self._now)
        return sight.at

    def leave(self, slot: str, release: str) -> None:
        """Record that the running release is being replaced: it may come back at once."""
        self._known[_key(INSTALL, slot, release)] = Sight(LONG_AGO, self._now.trusted, self._now.now)

    def text(self, assigned: Mapping[str, Target]) -> str:
        """Return the text for the next poll; the same text if nothing changed. `assigned`: targets by slot."""
        wanted = self._seen | {_key(INSTALL, slot, target.sha256) for slot, target in assigned.items()}
        kept = {
            key: replace(sight, left=None) if key in wanted else self._unwanted(sight)
            for key, sight in self._known.items()
            if key in wanted or key.startswith(f"{INSTALL} ")
        }
        entries = {
            key: (sight.at.isoformat(), sight.trusted, sight.left.isoformat() if sight.left else None)
            for key, sight in list(kept.items())[-SIGHTS_LIMIT:]
        }
        return json.dumps(entries)

    def _unwanted(self, sight: Sight) -> Sight:
        if sight.left is not None:
            return sight
        return Sight(sight.at, sight.trusted and self._now.trusted, self._now.now)


def seen(known: Sight | None, now: Present) -> Sight:
    """Return the valid first-seen time. A time later than now was noted by a wrong clock."""
    if known is None or known.at > now.now or (now.trusted and not known.trusted):
        return Sight(now.now, now.trusted)
    return known


def lasts(sight: Sight, now: datetime) -> bool:
    """Return True if the first-seen time still counts."""
    return sight.left is None or timedelta() <= now - sight.left < timedelta(hours=SIGHT_LASTS_H)


def _key(change: str, slot: str, release: str) -> str:
    return f"{change} {slot} {release}"


def _read(text: str, now: datetime) -> dict[str, Sight]:
    try:
        found = {
            key: Sight(from_iso(at), bool(trusted), from_iso(left) if left else None)
            for key, (at, trusted, left) in json.loads(text).items()
        }
        return {key: sight for key, sight in found.items() if lasts(sight, now)}
    except (ValueError, TypeError, AttributeError):
        return {}
