"""One replica decides. It holds an office with a number, its fence, that grows with every change of the holder; what it
writes is guarded by that number, so that a leader that was believed dead and is not changes nothing.

PostgreSQL: an advisory lock on a connection of its own, which ends with the leader. SQLite: a row with an end.
"""

from __future__ import annotations

import contextlib
from datetime import datetime, timedelta
from typing import Protocol

import sqlalchemy as sa
from sqlalchemy import Connection

from fleet.database.columns import EPOCH
from fleet.database.engine import Database, adding, connected_apart, lock_number
from fleet.database.errors import FencedError
from fleet.database.tables import leadership, numbers

OFFICE = "scheduler"
_LOOK = f"last look of the {OFFICE}"
_MICROSECOND = timedelta(microseconds=1)


class Candidate(Protocol):
    """A replica that would lead. Used by one thread."""

    def stand(self, now: datetime) -> int | None:
        """Take or keep the office: its fence, or None while another one holds it. Call it every third of `lease_s`.
        Raises AwayError."""
        ...

    def resign(self) -> None:
        """Leave it to others at once. Twice is harmless."""
        ...


def candidate(database: Database, holder: str, office: str = OFFICE) -> Candidate:
    """`holder` tells people which replica leads, and must differ between replicas."""
    if database.place.file is None:
        return LockCandidate(database, holder, office)
    return LeaseCandidate(database, holder, office)


def guard(connection: Connection, fence: int, office: str = OFFICE) -> None:
    """First statement of every write that a leader decided on: nobody follows it in office before this transaction
    ends. Raises FencedError where somebody did."""
    mine = sa.select(leadership.c.fence).where(leadership.c.office == office).with_for_update(read=True)
    found = connection.execute(mine).scalar_one_or_none()
    if found != fence:
        raise FencedError(
            f"the office {office!r:.80} has passed from fence {fence} to {found}; this replica leads no more"
        )


def holder(connection: Connection, office: str = OFFICE) -> str:
    """Who took the office last; "": nobody ever did."""
    found = connection.execute(sa.select(leadership.c.holder).where(leadership.c.office == office)).scalar()
    return str(found or "")


def last_look(connection: Connection) -> datetime | None:
    """When all rollouts were looked at last, as far as it was written down; None: never."""
    value = connection.execute(sa.select(numbers.c.value).where(numbers.c.name == _LOOK)).scalar_one_or_none()
    return None if value is None else EPOCH + value * _MICROSECOND


def keep_look(connection: Connection, at: datetime) -> None:
    """They were looked at; `guard` comes first."""
    value = (at - EPOCH) // _MICROSECOND
    add = adding(connection, numbers).values(name=_LOOK, value=value)
    connection.execute(add.on_conflict_do_update(index_elements=[numbers.c.name], set_={"value": value}))


class LeaseCandidate:
    """For SQLite. Its clocks are those of one machine; a clock that jumps makes the office change hands, no more."""

    def __init__(self, database: Database, holder: str, office: str) -> None:
        self._database, self._holder, self._office = database, holder, office
        self._lease = timedelta(seconds=database.settings.lease_s)
        self._fence: int | None = None

    def stand(self, now: datetime) -> int | None:
        """See `Candidate`."""
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
        """See `Candidate`."""
        if self._fence is not None:
            mine = (leadership.c.office == self._office, leadership.c.fence == self._fence)
            with self._database.write() as connection:
                connection.execute(sa.update(leadership).where(*mine).values(until=None))
            self._fence = None


class LockCandidate:
    """For PostgreSQL, from version 14 on. The server ends the lock with the connection, within `lease_s` also where the
    leader's machine is gone or the leader hangs."""

    def __init__(self, database: Database, holder: str, office: str) -> None:
        self._database, self._holder, self._office = database, holder, office
        self._lock = lock_number(f"office {office}")
        self._connection: Connection | None = None
        self._fence: int | None = None

    def stand(self, now: datetime) -> int | None:
        """See `Candidate`."""
        if self._connection is not None and _answers(self._connection):
            return self._fence
        self.resign()
        if self._acquire():
            try:
                with self._database.write() as connection:
                    self._fence = _following(connection, self._office, self._holder)
            finally:
                if self._fence is None:
                    self.resign()
        return self._fence

    def resign(self) -> None:
        """See `Candidate`."""
        connection, self._connection, self._fence = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(sa.exc.SQLAlchemyError):  # a connection that is gone holds no lock
                connection.execute(
                    sa.select(sa.func.pg_advisory_unlock_all())
                )  # at once; after a close it takes a moment
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
    """The lock lives as long as its connection does."""
    try:
        connection.execute(sa.select(1))
    except sa.exc.SQLAlchemyError:
        return False
    return True


def _following(connection: Connection, office: str, holder: str) -> int:
    """The fence after the last one."""
    found = connection.execute(sa.select(leadership.c.fence).where(leadership.c.office == office)).scalar_one_or_none()
    fence = (found or 0) + 1
    _enter(connection, office, fence, holder, None)
    return fence


def _enter(connection: Connection, office: str, fence: int, holder: str, until: datetime | None) -> None:
    values = {"fence": fence, "holder": holder, "until": until}
    add = adding(connection, leadership).values(office=office, **values)
    connection.execute(add.on_conflict_do_update(index_elements=[leadership.c.office], set_=values))


def _watch(connection: Connection, lease_s: float) -> None:
    """Otherwise a server asks after a silent client two hours later, and keeps one that hangs for ever."""
    every_s = max(1, int(lease_s / 3))
    keepalives = {f"tcp_keepalives_{name}": every_s for name in ("idle", "interval")} | {"tcp_keepalives_count": 2}
    for name, value in (keepalives | {"idle_session_timeout": int(1000 * lease_s)}).items():
        connection.execute(sa.select(sa.func.set_config(name, str(value), False)))
