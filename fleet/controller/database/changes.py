"""The order in which events, alerts and facts of rollouts were recorded, for programs that follow the fleet.

A row refers to what its transaction recorded. PostgreSQL assigns numbers before the commit, so that a smaller number
may become visible after a greater one. A transaction that adds rows therefore holds a shared lock that names the last
number assigned before. Readers stop at the smallest of these (`settled`); no transaction waits for such a lock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy import Connection

from fleet.controller.database import numbers
from fleet.controller.database.columns import EPOCH, LARGEST
from fleet.controller.database.engine import held_locks
from fleet.controller.database.settings import DatabaseSettings
from fleet.controller.database.tables import changes
from gateway.common.domain.python310 import StrEnum

_ADDING = 1_667_786_343
"""First half of the locks of transactions that add rows ("chng" in ASCII); the second half is a number in the cycle."""
_CYCLE = 2**31
_SWEPT = "changes, swept"
_COLUMNS = [changes.c[name] for name in ("id", "kind", "subject", "first", "last")]


class ChangeKind(StrEnum):
    """Kind of a change, as programs know it."""

    DEVICE_EVENT = "device.event"
    ALERT_OPENED = "alert.opened"
    ALERT_CLOSED = "alert.closed"
    ROLLOUT_FACT = "rollout.fact"
    ROLLOUT_DEVICE_FACT = "rollout.device_fact"  # a fact about one device; a row of ROLLOUT_FACT covers both
    GAP = "gap"  # changes that are no longer known


@dataclass(frozen=True, slots=True)
class NewChange:
    """Reference to what was recorded.

    `subject`: id of an event, key of an alert, or id of a rollout with the numbers of its `first` and `last` new fact.
    `at`: time from which its age is counted.
    """

    at: datetime
    kind: ChangeKind
    subject: str
    first: int = 0
    last: int = 0


@dataclass(frozen=True, slots=True)
class StoredChange:
    """A change with its number. Numbers grow in the order in which readers see them, with holes."""

    number: int
    kind: ChangeKind
    subject: str
    first: int
    last: int


def add(connection: Connection, recorded: Iterable[NewChange]) -> None:
    """Add changes in this order, in the transaction that records what they refer to."""
    rows = [{name: getattr(one, name) for name in NewChange.__slots__} for one in recorded]
    if not rows:
        return
    if connection.dialect.name == "postgresql":
        connection.execute(_HOLD)
    connection.execute(sa.insert(changes), rows)


def settled(connection: Connection) -> int:
    """Return the number up to which no transaction adds rows any more.

    Call it in a `glance` before the `read` that uses it begins.
    """
    if connection.dialect.name != "postgresql":
        return LARGEST
    last = int(connection.execute(_LAST).scalar_one())  # before the locks: smaller numbers hold one by now
    return min((_floor(held, last) for held in held_locks(connection, _ADDING)), default=last)


def _floor(held: int, last: int) -> int:
    """Return the number that a lock names, at most `last`."""
    ahead = (held - last) % _CYCLE
    return last if ahead < _CYCLE // 2 else last - (_CYCLE - ahead)


def after(connection: Connection, number: int, until: int, limit_rows: int) -> tuple[StoredChange, ...]:
    """Return changes from `number` to `until`, both included."""
    wanted = sa.select(*_COLUMNS).where(changes.c.id >= number, changes.c.id <= until)
    found = connection.execute(wanted.order_by(changes.c.id).limit(limit_rows))
    return tuple(StoredChange(row.id, ChangeKind(row.kind), row.subject, row.first, row.last) for row in found)


def newest(connection: Connection, until: int = LARGEST) -> int:
    """Return the greatest number up to `until`, or 0."""
    found = sa.select(sa.func.max(changes.c.id)).where(changes.c.id <= until)
    return int(connection.execute(found).scalar() or 0)


def swept(connection: Connection) -> int:
    """Return the number up to which changes were removed."""
    return numbers.read(connection, _SWEPT) or 0


def sweep(connection: Connection, now: datetime, settings: DatabaseSettings) -> int:
    """Remove at most `sweep_rows` changes that are too old or too many. Return their number.

    Record up to which number changes were removed. Call it again until it returns 0. The newest change stays: SQLite
    derives the next number from it.
    """
    cut = min(_cut(connection, now, settings), newest(connection) - 1)
    old = sa.select(changes.c.id).where(changes.c.id <= cut).order_by(changes.c.id)
    found = connection.execute(old.limit(settings.telemetry.sweep_rows)).scalars().all()
    if found:
        connection.execute(sa.delete(changes).where(changes.c.id <= found[-1]))
        numbers.put(connection, _SWEPT, found[-1])
    return len(found)


def _cut(connection: Connection, now: datetime, settings: DatabaseSettings) -> int:
    """Return the number before the first change that is young enough, or among the newest `changes_limit_rows`."""
    young = sa.select(changes.c.id).where(changes.c.at >= now - timedelta(days=settings.changes_age_limit_d))
    first = connection.execute(young.order_by(changes.c.id).limit(1)).scalar()
    many = sa.select(changes.c.id).order_by(changes.c.id.desc()).offset(settings.changes_limit_rows).limit(1)
    return max(LARGEST if first is None else first - 1, connection.execute(many).scalar() or 0)


def leap(connection: Connection, by: int) -> None:
    """Skip, after a restore or an undone move, all numbers that the lost controller can have assigned; leave a gap."""
    number = newest(connection) + by
    gap = {"id": number, "at": EPOCH, "kind": ChangeKind.GAP, "subject": "", "first": 0, "last": 0}
    connection.execute(sa.insert(changes).values(gap))
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.setval(sa.func.pg_get_serial_sequence(changes.name, "id"), number)))


_GIVEN = "last_value - CASE WHEN is_called THEN 0 ELSE 1 END"
_LAST = sa.text(f"SELECT {_GIVEN} FROM changes_id_seq")  # noqa: S608  constants
_HOLD = sa.text(
    f"SELECT pg_advisory_xact_lock_shared(:adding, (({_GIVEN}) % :cycle)::int) FROM changes_id_seq"  # noqa: S608
).bindparams(adding=_ADDING, cycle=_CYCLE)
