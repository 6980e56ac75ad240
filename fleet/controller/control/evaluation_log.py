"""Evaluation log: when the leader last evaluated each rollout.

Silence of a device while no controller evaluated rollouts is not counted.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from fleet.controller.database import leader
from fleet.controller.database.engine import Database

KEPT_PER_GAP = 4
"""Number of times within `gap_s` that the last evaluation is stored for the next leader."""


class EvaluationLog:
    """Evaluation log of one replica, used by its scheduler's thread.

    What it holds in memory is forgotten when the replica loses its leadership.
    """

    def __init__(self, database: Database, gap_s: float) -> None:
        self._database, self._every = database, timedelta(seconds=gap_s / KEPT_PER_GAP)
        self._last: datetime | None = None
        self._kept: datetime | None = None
        self._missed: dict[str, datetime] = {}

    def last(self, now: datetime, rollout: str = "") -> datetime:
        """Return when this or an earlier leader last evaluated `rollout` ("": any rollout).

        Return `now` if no rollout was ever evaluated. Raise AwayError.
        """
        if self._last is None:
            with self._database.glance() as connection:
                self._last = leader.last_look(connection)
        return self._missed.get(rollout) or self._last or now

    def note(self, at: datetime, fence: int, missed: Collection[str]) -> None:
        """Note that every rollout was evaluated at `at`, except those in `missed`.

        `at` is the time at which the evaluation began. Its own duration thus counts to the next gap, because it may
        have been blocked together with the database. While a rollout is missed nothing is stored: the next leader must
        not believe that it was evaluated. Raise AwayError, FencedError.
        """
        self._missed = {rollout: self.last(at, rollout) for rollout in missed}
        self._last = at
        if not missed and (self._kept is None or abs(at - self._kept) >= self._every):
            with self._database.write() as connection:
                leader.guard(connection, fence)
                leader.keep_look(connection, at)
            self._kept = at

    def forget(self) -> None:
        """Forget what is in memory: another leader may have evaluated rollouts since."""
        self._last = self._kept = None
        self._missed = {}
