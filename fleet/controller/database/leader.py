"""Election of the leader among replicas.

A leadership has a number, its fencing token, that grows with every change of the leader. The leader guards its writes
with that number, so that a leader that was believed dead, and is not, changes nothing.

PostgreSQL: an advisory lock on a connection of its own, which ends with the leader. SQLite: a row with an expiry.
"""

from __future__ import annotations

import contextlib
from datetime import datetime, timedelta
from typing import Protocol

import sqlalchemy as sa
from sqlalchemy import Connection

from fleet.controller.database import numbers
from fleet.controller.database.columns import EPOCH
from fleet.controller.database.engine import Database, adding, connected_apart, lock_number
from fleet.controller.database.errors import FencedError
from fleet.controller.database.tables import leadership

OFFICE = "scheduler"
_LOOK = f"last look of the {OFFICE}"
_MICROSECOND = timedelta(microseconds=1)


class ElectionCandidate(Protocol):
    """Replica that takes part in the election. Used by one thread."""

    def stand(self, now: datetime) -> int | None:
        """Take or keep the leadership. Return the fencing token, or None while another replica leads.

        Call it every third of `lease_s`. Raise AwayError.
        """
        ...

    def resign(self) -> None:
        """Give up the leadership at once. A second call has no effect."""
        ...


def candidate(database: Database, holder: str, office: str = OFFICE) -> ElectionCandidate:
    """Return a candidate. `holder` names this replica to people, and must differ between replicas."""
    if database.place.file is None:
        return LockCandidate(database, holder, office)
    return LeaseCandidate(database, holder, office)


def guard(connection: Connection, fence: int, office: str = OFFICE) -> None:
    """Check the leadership; the first statement of every write that a leader decided on.

    No other replica becomes leader before this transaction ends. Raise FencedError if one has.
    """
    mine = sa.select(leadership.c.fence).where(leadership.c.office == office).with_for_update(read=True)
    found = connection.execute(mine).scalar_one_or_none()
    if found != fence:
        raise FencedError(
            f"the leadership {office!r:.80} has passed from fence {fence} to {found}; this replica no longer leads"
        )


def holder(connection: Connection, office: str = OFFICE) -> str:
    """Return which replica became leader last, or "" if none ever did."""
    found = connection.execute(sa.select(leadership.c.holder).where(leadership.c.office == office)).scalar()
    return str(found or "")


def last_look(connection: Connection) -> datetime | None:
    """Return when all rollouts were evaluated last, as far as it was stored; None: never."""
    value = numbers.read(connection, _LOOK)
    return None if value is None else EPOCH + value * _MICROSECOND


def keep_look(connection: Connection, at: datetime) -> None:
    """Store when all rollouts were evaluated; call `guard` first."""
    numbers.put(connection, _LOOK, (at - EPOCH) // _MICROSECOND)


class LeaseCandidate:
    """Candidate on SQLite. All replicas use one machine's clock; a clock that jumps only changes the leader."""

    def __init__(self, database: Database, holder: str, office: str) -> None:
        self._database, self._holder, self._office = database, holder, office
        self._lease = timedelta(seconds=database.settings.lease_s)
        self._fence: int | None = None

    def stand(self, now: datetime) -> int | None:
        """See `ElectionCandidate`."""
        with self._database.write() as connection:
            row = connection.execute(sa.select(leadership).where(leadership.c.office == self._office)).one_or_none()
            mine = row is not None and row.fence == self._fence and row.holder == self._holder
            held = row is not None and row.until is not None and now <= row.until <= now + 2 * self._lease
            fence = None
            if mine or not held:
                fence = row.fence + (0 if mine else 1) if row else 1
                _enter(connection, self._office, fence, self._holder, now + self._lease)
        self._fence = fence
        return fence

    def resign(self) -> None:
        """See `ElectionCandidate`."""
        if self._fence is not None:
            mine = (leadership.c.office == self._office, leadership.c.fence == self._fence)
            with self._database.write() as connection:
                connection.execute(sa.update(leadership).where(*mine).values(until=None))
            self._fence = None


class LockCandidate:
    """Candidate on PostgreSQL, from version 14 on.

    The server releases the lock when the connection ends. That takes at most `lease_s`, also if the leader's machine is
    gone or the leader hangs.
    """

    def __init__(self, database: Database, holder: str, office: str) -> None:
        self._database, self._holder, self._office = database, holder, office
        self._lock = lock_number(f"office {office}")
        self._connection: Connection | None = None
        self._fence: int | None = None

    def stand(self, now: datetime) -> int | None:
        """See `ElectionCandidate`."""
        if self._connection is not None and _answers(self._connection):
            return self._fence
        self.resign()
        if self._acquire():
            try:
                with self._database.write() as connection:
                    mine = leadership.c.office == self._office
                    last = connection.execute(sa.select(leadership.c.fence).where(mine)).scalar_one_or_none()
                    fence = (last or 0) + 1
                    _enter(connection, self._office, fence, self._holder, None)
                self._fence = fence
            finally:
                if self._fence is None:
                    self.resign()
        return self._fence

    def resign(self) -> None:
        """See `ElectionCandidate`."""
        connection, self._connection, self._fence = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(sa.exc.SQLAlchemyError):  # a connection that is gone holds no lock
                connection.execute(
                    sa.select(sa.func.pg_advisory_unlock_all())
                )  # immediately; after a close it takes a moment
            connection.close()

    def _acquire(self) -> bool:
        self._connection = connection = connected_apart(self._database)
        got = False
        try:
            with self._database.translated():
                _watch(connection, self._database.settings.lease_s)
                got = bool(connection.execute(sa.select(sa.func.pg_try_advisory_lock(self._lock))).scalar_one())
        finally:
            if not got:
                self.resign()
        return got


def _answers(connection: Connection) -> bool:
    """Return whether the connection works: the lock lives as long as it does."""
    try:
        connection.execute(sa.select(1))
    except sa.exc.SQLAlchemyError:
        return False
    return True


def _enter(connection: Connection, office: str, fence: int, holder: str, until: datetime | None) -> None:
    values = {"fence": fence, "holder": holder, "until": until}
    add = adding(connection, leadership).values(office=office, **values)
    connection.execute(add.on_conflict_do_update(index_elements=[leadership.c.office], set_=values))


def _watch(connection: Connection, lease_s: float) -> None:
    """Bound how long the server keeps a silent connection.

    By default a server checks a silent client after two hours, and keeps one that hangs for ever.
    """
    every_s = max(1, int(lease_s / 3))
    keepalives = {f"tcp_keepalives_{name}": every_s for name in ("idle", "interval")} | {"tcp_keepalives_count": 2}
    for name, value in (keepalives | {"idle_session_timeout": int(1000 * lease_s)}).items():
        connection.execute(sa.select(sa.func.set_config(name, str(value), False)))
