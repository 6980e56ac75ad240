"""When rollouts were looked at last: who was not heard while nobody listened was not silent."""

from __future__ import annotations

from collections.abc import Collection
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
        self._missed: dict[str, datetime] = {}

    def last(self, now: datetime, rollout: str = "") -> datetime:
        """By this leader, or those before it, at this rollout ("": at any); `now` where nobody ever looked. Raises
        AwayError."""
        if self._last is None:
            with self._database.glance() as connection:
                self._last = leader.last_look(connection)
        return self._missed.get(rollout) or self._last or now

    def note(self, at: datetime, fence: int, missed: Collection[str]) -> None:
        """Every rollout was looked at but those that were `missed`, from then on: what the look itself took is part of
        the next gap, for it may have stood still with the database. While one is missed nothing is written down:
        whoever leads next must not believe that it was looked at. Raises AwayError, FencedError."""
        self._missed = {rollout: self.last(at, rollout) for rollout in missed}
        self._last = at
        if not missed and (self._kept is None or abs(at - self._kept) >= self._every):
            with self._database.write() as connection:
                leader.guard(connection, fence)
                leader.keep_look(connection, at)
            self._kept = at

    def forget(self) -> None:
        """Another leader may have looked since."""
        self._last = self._kept = None
        self._missed = {}
