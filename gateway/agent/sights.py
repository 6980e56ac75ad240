"""When this device first saw a change that it was to make, and for how long that counts. Pure: the time comes in.

The sight of a release counts for as long as that is assigned, and `SIGHT_LASTS_H` beyond; of what ran here, as long
beyond the time when something else was begun in its place. So who steals the controller can hurry what was assigned
within the last day, and nothing older (decision 0021). A withdrawal that is taken back is over at once.

A sight that was noted while the clock was not to be trusted is noted anew once it is, and one of the future is none:
the wait may begin again, it never ends early by a clock that is set right.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from gateway.domain.assignment import Target

INSTALL, WITHDRAW = "install", "withdraw"
SIGHT_LASTS_H = 24
"""Hours: a roll-back that is forced the next morning need not wait. What counts so long is what a thief can hurry."""
SIGHTS_LIMIT = 1000
"""The oldest go: a release that comes back after so many others waits anew."""
LONG_AGO = datetime.min.replace(tzinfo=UTC)
"""What ran here counts as seen then."""


@dataclass(frozen=True, slots=True)
class Present:
    """The time by which a device waits, and whether something keeps its clock right."""

    now: datetime
    trusted: bool


@dataclass(frozen=True, slots=True)
class Sight:
    """When a change was first seen here, verified; `trusted`: by a clock that was. `left`: since when it is not
    assigned any more, or something else was begun in its place; None: it is assigned."""

    at: datetime
    trusted: bool
    left: datetime | None = None


class Sights:
    """Of one question: `see` each change, `leave` what something else takes the place of, then `text`."""

    def __init__(self, text: str, now: Present) -> None:
        """`text`: of the question before. Where it cannot be read all waits begin anew."""
        self._now = now
        self._known = _read(text, now.now)
        self._seen: set[str] = set()

    def see(self, change: str, slot: str, release: str) -> datetime:
        """When this change, which is to be made now, was seen first."""
        key = _key(change, slot, release)
        self._seen.add(key)
        self._known[key] = sight = seen(self._known.get(key), self._now)
        return sight.at

    def leave(self, slot: str, release: str) -> None:
        """Something else is begun where this release runs: it may come back, at once."""
        self._known[_key(INSTALL, slot, release)] = Sight(LONG_AGO, self._now.trusted, self._now.now)

    def text(self, assigned: Mapping[str, Target]) -> str:
        """For the next question: the same again where nothing changed. `assigned`: by slot."""
        wanted = self._seen | {_key(INSTALL, slot, target.sha256) for slot, target in assigned.items()}
        kept = {
            key: replace(sight, left=None) if key in wanted else self._unwanted(sight)
            for key, sight in self._known.items()
            if key in wanted or key.startswith(f"{INSTALL} ")
        }
        return json.dumps({key: _entry(sight) for key, sight in list(kept.items())[-SIGHTS_LIMIT:]})

    def _unwanted(self, sight: Sight) -> Sight:
        if sight.left is not None:
            return sight
        return Sight(sight.at, sight.trusted and self._now.trusted, self._now.now)


def seen(known: Sight | None, now: Present) -> Sight:
    """The sight that counts from now on. A later one than the present was noted by a clock that went wrong."""
    if known is None or known.at > now.now or (now.trusted and not known.trusted):
        return Sight(now.now, now.trusted)
    return known


def lasts(sight: Sight, now: datetime) -> bool:
    """Whether it still counts."""
    return sight.left is None or timedelta() <= now - sight.left < timedelta(hours=SIGHT_LASTS_H)


def _key(change: str, slot: str, release: str) -> str:
    return f"{change} {slot} {release}"


def _entry(sight: Sight) -> tuple[str, bool, str | None]:
    return sight.at.isoformat(), sight.trusted, sight.left.isoformat() if sight.left else None


def _read(text: str, now: datetime) -> dict[str, Sight]:
    try:
        found = {key: _sight(*entry) for key, entry in json.loads(text).items()}
        return {key: sight for key, sight in found.items() if lasts(sight, now)}
    except (ValueError, TypeError, AttributeError):
        return {}


def _sight(at: str, trusted: object, *left: str | None) -> Sight:
    """Without `left` it was written before sights lapsed: until when that was assigned nobody knows."""
    since = left[0] if left else at
    return Sight(datetime.fromisoformat(at), bool(trusted), datetime.fromisoformat(since) if since else None)
