"""What time it is for whatever is destroyed by its age: a clock that is far ahead for a moment must cost nothing.

A wall clock that goes on as the machine's uptime does is believed. One that leaps ahead is believed once it went on
evenly for `clock_steady_s`; until then the time before the leap goes on. A clock that is set back is believed at once:
less is old by it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from fleet.control.settings import ChoresSettings

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Look:
    """One look at both clocks. `believed`: the time that things are destroyed by; `since_s`: uptime from which the wall
    clock has gone on evenly."""

    wall: datetime
    uptime_s: float
    believed: datetime
    since_s: float

    @property
    def leap(self) -> timedelta:
        """How far the wall clock is ahead of what is believed."""
        return self.wall - self.believed


def first_look(wall: datetime, uptime_s: float, latest: datetime | None, settings: ChoresSettings) -> Look:
    """`latest`: the newest time that is recorded; a clock far ahead of that is not believed yet. None: nothing is."""
    far = latest is not None and wall - latest > timedelta(days=settings.clock_ahead_d)
    return Look(wall, uptime_s, latest if latest and far else wall, uptime_s)


def next_look(before: Look, wall: datetime, uptime_s: float, settings: ChoresSettings) -> Look:
    """Some time after `before`."""
    passed, tolerance = timedelta(seconds=uptime_s - before.uptime_s), timedelta(seconds=settings.clock_leap_s)
    even = abs(wall - before.wall - passed) <= tolerance
    since_s = before.since_s if even else uptime_s
    believed = before.believed + passed
    if wall - believed <= tolerance or uptime_s - since_s >= settings.clock_steady_s:
        believed = wall
    return Look(wall, uptime_s, believed, since_s)


class CarefulClock:
    """One per process. `uptime_s`: a clock that nobody sets."""

    def __init__(
        self,
        settings: ChoresSettings,
        now: datetime,
        latest: datetime | None,
        uptime_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._uptime_s = settings, uptime_s
        self._look = first_look(now, uptime_s(), latest, settings)
        self._told = False
        self._tell()

    def read(self, now: datetime) -> datetime:
        """The time to destroy by, where the system's clock says `now`; never later than that. For one thread, which
        looks again and again."""
        self._look = next_look(self._look, now, self._uptime_s(), self._settings)
        self._tell()
        return self._look.believed

    def believed(self, now: datetime) -> datetime:
        """The same for any thread, by what was believed at the last look."""
        look = self._look
        return min(now, look.believed + timedelta(seconds=self._uptime_s() - look.uptime_s))

    def _tell(self) -> None:
        """Once when it is not believed any more, and once when it is again."""
        look, doubted = self._look, self._look.leap > timedelta()
        if doubted and not self._told:
            steady_s = self._settings.clock_steady_s
            problem = (
                "the clock says %s, %s later than expected; what is old is judged as of %s until it went on evenly"
            )
            _log.warning(f"{problem} for %g s: set it if it is wrong", look.wall, look.leap, look.believed, steady_s)
        elif self._told and not doubted:
            _log.warning("the clock is believed: %s", look.wall)
        self._told = doubted
