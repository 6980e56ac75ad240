"""Scheduler: the leader among the replicas evaluates every rollout that is not over, once per tick."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta

from fleet import events
from fleet.controller.control.catalogue import Catalogue
from fleet.controller.control.evaluation import EvaluationContext
from fleet.controller.control.membership import pages, read_page
from fleet.controller.control.rollouts import Rollouts
from fleet.controller.control.rollouts_record import LIVE, RETURNING, RecordedRollout, live_rollouts
from fleet.controller.control.settings import SchedulerSettings
from fleet.controller.database import leader
from fleet.controller.database.devices import Device
from fleet.controller.database.engine import Database
from fleet.controller.database.errors import AwayError, FencedError
from fleet.controller.database.rollouts import StoredRollout
from fleet.controller.rollouts.schedule import known_zone
from gateway.common.domain.errors import ConfigurationError

KEPT_PER_GAP = 4
"""Number of times within `gap_s` that the last evaluation is stored for the next leader."""


LEASE_SHARE = 3
"""Number of times within a lease that the leadership is renewed."""


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

    def set_back(self, at: datetime, fence: int) -> None:
        """Note that the clock was set back to `at`, before anything is decided. Raise AwayError, FencedError.

        When the clock is right again, that is a gap for any leader.
        """
        with self._database.write() as connection:
            leader.guard(connection, fence)
            leader.keep_look(connection, at)
        self._last = self._kept = at
        self._missed = {rollout: min(last, at) for rollout, last in self._missed.items()}

    def forget(self) -> None:
        """Forget what is in memory: another leader may have evaluated rollouts since."""
        self._last = self._kept = None
        self._missed = {}


_log = logging.getLogger(__name__)


class Scheduler:
    """Scheduler of one replica, used by one thread. What it holds in memory is forgotten with the leadership."""

    def __init__(self, rolling: Rollouts, holder: str, clock: Callable[[], datetime]) -> None:
        """Create the scheduler. `holder`: name of this replica. Raise ConfigurationError for unknown zones."""
        self._rolling, self._holder, self._clock = rolling, holder, clock
        self._candidate = leader.candidate(rolling.database, holder)
        self._catalogue = Catalogue(rolling.database, rolling.workspace)
        self._evaluations = EvaluationLog(rolling.database, rolling.settings.gap_s)
        self._zones = zones_of(rolling.settings)
        self._fence: int | None = None
        self._stood_s = float("-inf")
        self._swept: set[str] = set()
        self._after = ""

    @property
    def leads(self) -> bool:
        """Return whether this replica led at its last check."""
        return self._fence is not None

    @property
    def fence(self) -> int | None:
        """Return the fencing token as of the last check; None if this replica does not lead.

        Callers that decide by it guard what they write. Any thread may call it.
        """
        return self._fence

    def tick(self, now: datetime) -> None:
        """Evaluate all rollouts once, if this replica leads.

        Raise AwayError, FencedError; the next tick goes on.
        """
        try:
            self._stand(now)
            if self._fence is not None:
                self._catalogue.refresh(now, self._fence)
                missed = self._evaluate(now)
                self._evaluations.note(now, self._fence, missed)
        except (AwayError, FencedError):
            self._forget(None)
            raise

    def resign(self) -> None:
        """Hand the leadership to another replica. A second call has no effect."""
        self._forget(None)
        self._candidate.resign()

    def _stand(self, now: datetime) -> None:
        every_s = self._rolling.database.settings.lease_s / LEASE_SHARE
        if time.monotonic() - self._stood_s < every_s:
            return
        fence = self._candidate.stand(now)
        self._stood_s = time.monotonic()
        if fence != self._fence:
            self._forget(fence)

    def _forget(self, fence: int | None) -> None:
        """Forget what was known, and set the fencing token: a new leader begins with what the database holds."""
        if fence is not None:
            _log.info(events.LEADERSHIP_ACQUIRED, self._holder, fence)
        self._fence, self._after = fence, ""
        self._stood_s = self._stood_s if fence is not None else float("-inf")
        self._swept.clear()
        self._catalogue.forget()
        self._evaluations.forget()
        self._rolling.states.forget()

    def _evaluate(self, now: datetime) -> Collection[str]:
        """Evaluate the live rollouts. Return those that were skipped."""
        live = self._live()
        self._swept &= {rollout.id for rollout in live}
        if not live:
            return ()
        evaluated_at = self._evaluations.last(now)
        if evaluated_at > now and self._fence is not None:
            self._evaluations.set_back(now, self._fence)
        if now - evaluated_at > timedelta(seconds=self._rolling.settings.gap_s):
            _log.warning(events.ROLLOUTS_NOT_EVALUATED, evaluated_at, now)
        limit_rows = self._rolling.settings.devices_per_tick
        found = read_page(self._rolling.database, self._after, limit_rows)
        self._after = found[-1].id if len(found) == limit_rows else ""
        # One rollout that the database keeps waiting is skipped while the leadership is kept. A second one is taken for
        # a problem of the database.
        over, missed, kept_waiting = set[str](), set[str](), False
        for rollout in live:
            there = [other for other in live if other.id not in over]
            try:
                if self._evaluate_one(rollout, there, found, now).stored.state not in LIVE:
                    over.add(rollout.id)
            except FencedError:
                raise
            except AwayError as error:
                if kept_waiting:
                    raise
                self._keep_leadership(ask=True)
                kept_waiting = True
                missed.add(rollout.id)
                _log.warning(events.ROLLOUT_SKIPPED, rollout.id, error)
            except Exception:  # noqa: BLE001  one rollout's boundary: a defect in it must not stop the others
                missed.add(rollout.id)
                _log.exception(events.ROLLOUT_EVALUATION_CRASHED, rollout.id)
        return missed

    def _evaluate_one(
        self, rollout: StoredRollout, live: Sequence[StoredRollout], devices: Sequence[Device], now: datetime
    ) -> RecordedRollout:
        new = rollout.id not in self._swept and rollout.state != RETURNING
        if new:
            for page in pages(self._rolling.database, self._rolling.settings.devices_per_tick):
                self._evaluation(rollout, live, now).evaluate(rollout.id, page, complete=False)
            self._swept.add(rollout.id)
        return self._evaluation(rollout, live, now).evaluate(rollout.id, () if new else devices, complete=True)

    def _evaluation(self, rollout: StoredRollout, live: Sequence[StoredRollout], now: datetime) -> EvaluationContext:
        """Return the evaluation of a rollout; renew the leadership before it.

        Raise FencedError if another replica leads now.
        """
        fence = self._keep_leadership()
        others = [other for other in live if other.slot == rollout.slot]
        return EvaluationContext(
            self._rolling, fence, others, self._zones, now, self._evaluations.last(now, rollout.id), self._clock
        )

    def _keep_leadership(self, *, ask: bool = False) -> int:
        """Renew the leadership if it is time, and return its fencing token.

        `ask`: ask the database now. Raise FencedError if another replica leads now, AwayError.
        """
        before = self._fence
        if ask:
            self._stood_s = float("-inf")
        self._stand(self._clock())
        if self._fence is None or self._fence != before:
            raise FencedError("another replica leads now; this one starts again as a follower")
        return self._fence

    def _live(self) -> Sequence[StoredRollout]:
        """Return the live rollouts: those that end first, because they free devices for others; then the oldest."""
        database = self._rolling.database
        with database.read() as connection:
            return sorted(live_rollouts(connection, database.settings), key=lambda rollout: rollout.state != RETURNING)


def zones_of(settings: SchedulerSettings) -> Mapping[str, str]:
    """Return the time zones by site. Raise ConfigurationError."""
    zones = {}
    for entry in settings.zones:
        site, _, zone = entry.rpartition("=")
        if not site or not zone or not known_zone(zone):
            problem = f"must be SITE=ZONE with a zone such as Europe/Berlin, not {entry!r:.200}"
            raise ConfigurationError(problem, table="scheduler", key="zones")
        zones[site] = zone
    return zones
