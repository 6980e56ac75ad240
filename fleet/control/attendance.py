"""When rollouts were looked at last: who was not heard while nobody listened was not silent."""

from __future__ import annotations

from datetime import datetime, timedelta

from fleet.database import leader
from fleet.database.engine import Database

KEPT_PER_GAP = 4
"""How many times within `gap_s` the last look is written down for whoever leads next."""


class Attendance:
    """Of one replica, used by its scheduler's thread. What it remembers ends with its office."""

    def __init__(self, database: Database, gap_s: float) -> None:
        self._database, self._every = database, timedelta(seconds=gap_s / KEPT_PER_GAP)
        self._last: datetime | None = None
        self._kept: datetime | None = None

    def last(self, now: datetime) -> datetime:
        """By this leader, or those before it; `now` where nobody ever looked. Raises AwayError."""
        if self._last is None:
            with self._database.glance() as connection:
                self._last = leader.last_look(connection)
        return self._last or now

    def note(self, at: datetime, fence: int) -> None:
        """Everything was looked at, from then on: what the look itself took is part of the next gap, for it may have
        stood still with the database. Raises AwayError, FencedError."""
        self._last = at
        if self._kept is None or abs(at - self._kept) >= self._every:
            with self._database.write() as connection:
                leader.guard(connection, fence)
                leader.keep_look(connection, at)
            self._kept = at

    def forget(self) -> None:
        """Another leader may have looked since."""
        self._last = self._kept = None
