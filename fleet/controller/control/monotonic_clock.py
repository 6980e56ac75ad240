"""Clock for deletion by age: a wall clock that leaps far ahead for a while must delete nothing.

A wall clock that advances as the machine's uptime does is believed. A clock that leapt ahead is believed after it
advanced evenly for `clock_steady_s`; until then the time from before the leap goes on. A clock that was set back is
believed at once, because it makes everything younger.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from fleet import events
from fleet.controller.control.settings import MaintenanceSettings

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClockReading:
    """Reading of both clocks at one time.

    `believed`: the time to delete by. `since_s`: uptime since which the wall clock has advanced evenly.
    """

    wall: datetime
    uptime_s: float
    believed: datetime
    since_s: float

    @property
    def leap(self) -> timedelta:
        """Return how far the wall clock is ahead of the believed time."""
        return self.wall - self.believed


def first_reading(
    wall: datetime, uptime_s: float, latest: datetime | None, settings: MaintenanceSettings
) -> ClockReading:
    """Return the first reading. `latest`: the newest recorded time, or None if nothing is recorded.

    A wall clock that is more than `clock_ahead_d` ahead of `latest` is not believed yet.
    """
    far = latest is not None and wall - latest > timedelta(days=settings.clock_ahead_d)
    return ClockReading(wall, uptime_s, latest if latest and far else wall, uptime_s)


def next_reading(before: ClockReading, wall: datetime, uptime_s: float, settings: MaintenanceSettings) -> ClockReading:
    """Return the reading that follows `before`."""
    passed, tolerance = timedelta(seconds=uptime_s - before.uptime_s), timedelta(seconds=settings.clock_leap_s)
    even = abs(wall - before.wall - passed) <= tolerance
    since_s = before.since_s if even else uptime_s
    believed = before.believed + passed
    if wall - believed <= tolerance or uptime_s - since_s >= settings.clock_steady_s:
        believed = wall
    return ClockReading(wall, uptime_s, believed, since_s)


class MonotonicClock:
    """Believed time of this process. `uptime_s`: a monotonic clock, which is never set."""

    def __init__(
        self,
        settings: MaintenanceSettings,
        now: datetime,
        latest: datetime | None,
        uptime_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._uptime_s = settings, uptime_s
        self._reading = first_reading(now, uptime_s(), latest, settings)
        self._logged = False
        self._tell()

    def read(self, now: datetime) -> datetime:
        """Read both clocks and return the time to delete by, never later than `now` (the system's clock).

        One thread calls it, regularly.
        """
        self._reading = next_reading(self._reading, now, self._uptime_s(), self._settings)
        self._tell()
        return self._reading.believed

    def believed(self, now: datetime) -> datetime:
        """Return the time to delete by, as of the last `read`. Any thread may call it."""
        reading = self._reading
        return min(now, reading.believed + timedelta(seconds=self._uptime_s() - reading.uptime_s))

    def _tell(self) -> None:
        """Log once when the wall clock is doubted, and once when it is believed again."""
        reading, doubted = self._reading, self._reading.leap > timedelta()
        if doubted and not self._logged:
            steady_s = self._settings.clock_steady_s
            _log.warning(events.CLOCK_DOUBTED, reading.wall, reading.leap, reading.believed, steady_s)
        elif self._logged and not doubted:
            _log.warning(events.CLOCK_TRUSTED, reading.wall)
        self._logged = doubted
