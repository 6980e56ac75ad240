"""What is wrong in the fleet, until it is not: so that a restart neither forgets an alert nor tells it again.

`fleet.watch.judge` decides; here it is kept, and how far it was told to whoever is to hear of it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy import Connection

from fleet.database import changes
from fleet.database.changes import Kind, NewChange
from fleet.database.device_filter import Filter, selected_ids
from fleet.database.engine import adding
from fleet.database.rows import Json, bounded, chunks, page_limit
from fleet.database.settings import DatabaseSettings
from fleet.database.tables import alerts, device_tags, devices

STANDING_LIMIT = 100_000
"""Alerts that are not closed; whoever judges opens no more than a setting of its own."""


class State(enum.StrEnum):
    """PENDING: it is so, but not for long enough yet to be told."""

    PENDING = "pending"
    OPEN = "open"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Alert:
    """`key` names it for good. `device` "": it is not of one device. `subject`: what of it, such as a slot.

    `since`: when it began; `heard`: the last that was heard of it, not exactly; `calm`: since when it is not so any
    more, though it is open yet.
    """

    key: str
    rule: str
    device: str
    subject: str
    state: State
    since: datetime
    heard: datetime
    opened: datetime | None = None
    closed: datetime | None = None
    summary: str = ""
    evidence: Json = field(default_factory=dict)
    calm: datetime | None = None


@dataclass(frozen=True, slots=True)
class Untold:
    """An alert whose opening or closing nobody was told of yet. `change`: 1 it opened, 2 it closed."""

    alert: Alert
    change: int


_CHANGES: Mapping[State, int] = {State.PENDING: 0, State.OPEN: 1, State.CLOSED: 2}
_KINDS: Mapping[int, Kind] = {1: Kind.ALERT_OPENED, 2: Kind.ALERT_CLOSED}
_COLUMNS = [alerts.c[name] for name in Alert.__slots__]


def standing(connection: Connection) -> tuple[Alert, ...]:
    """All that are not closed."""
    statement = sa.select(*_COLUMNS).where(alerts.c.state.in_([State.OPEN, State.PENDING]))
    found = connection.execute(statement.order_by(alerts.c.key).limit(STANDING_LIMIT))
    return tuple(_alert(row) for row in found)


def put(connection: Connection, changed: Iterable[Alert], *, tell: bool) -> None:
    """Keep them as they are now. `tell`: somebody is to hear of it; else it counts as told."""
    found = bounded(changed, STANDING_LIMIT, "alerts")
    rows = [{**_values(alert), "told": 0 if tell else 2} for alert in found]
    if rows:
        _note(connection, found)
        add = adding(connection, alerts)
        kept = {name: add.excluded[name] for name in rows[0] if name not in {"key", "told"}}
        connection.execute(add.on_conflict_do_update(index_elements=[alerts.c.key], set_=kept), rows)


def _note(connection: Connection, found: Sequence[Alert]) -> None:
    """Add to the changes what opens or closes."""
    before: dict[str, int] = {}
    for keys in chunks(alert.key for alert in found):
        mine = sa.select(alerts.c.key, alerts.c.changes).where(alerts.c.key.in_(keys))
        before |= {row.key: row.changes for row in connection.execute(mine)}
    new = [
        NewChange((alert.opened if number == 1 else alert.closed) or alert.heard, _KINDS[number], alert.key)
        for alert in found
        for number in range(before.get(alert.key, 0) + 1, _CHANGES[alert.state] + 1)
    ]
    changes.add(connection, new)


def drop(connection: Connection, keys: Iterable[str]) -> None:
    """Forget those that never opened."""
    rows = [{"its_key": key} for key in bounded(keys, STANDING_LIMIT, "alerts")]
    if rows:
        mine = alerts.c.key == sa.bindparam("its_key", type_=alerts.c.key.type)
        connection.execute(sa.delete(alerts).where(mine, alerts.c.state == State.PENDING), rows)


def untold(connection: Connection, limit_rows: int) -> tuple[Untold, ...]:
    """The longest waiting first."""
    changed = sa.func.coalesce(alerts.c.closed, alerts.c.opened)
    statement = sa.select(alerts.c.changes, *_COLUMNS).where(alerts.c.told < alerts.c.changes)
    found = connection.execute(statement.order_by(changed, alerts.c.key).limit(limit_rows))
    return tuple(Untold(_alert(row[1:]), row[0]) for row in found)


def told(connection: Connection, key: str, change: int) -> None:
    """It arrived, or nobody will be told any more."""
    mine = sa.update(alerts).where(alerts.c.key == key, alerts.c.told < change)
    connection.execute(mine.values(told=change))


def page(
    connection: Connection,
    settings: DatabaseSettings,
    *,
    state: State | None = None,
    rule: str = "",
    device: str = "",
    scope: frozenset[str] = frozenset(),
    matching: Filter | None = None,
    before: str = "",
    limit_rows: int = 100,
) -> tuple[Alert, ...]:
    """The newest first, by when they began, from the one before the key `before`; "" matches all. `scope`: only of
    devices with one of these tags, and none of a device that had the name before it was removed. `matching`: of devices
    that pass this filter."""
    exact = {"state": state, "rule": rule, "device": device}
    wanted = [alerts.c[name] == value for name, value in exact.items() if value]
    wanted += [alerts.c.key < before] if before else []
    if matching is not None:
        wanted.append(alerts.c.device.in_(selected_ids(matching)))
    if scope:
        mine = sa.select(devices.c.id).join(device_tags, device_tags.c.device == devices.c.id)
        tagged = (device_tags.c.tag.in_(sorted(scope)), devices.c.id == alerts.c.device)
        wanted.append(mine.where(*tagged, devices.c.registered <= alerts.c.since).exists())
    limit = page_limit(limit_rows, settings.page_limit_rows)
    statement = sa.select(*_COLUMNS).where(*wanted).order_by(alerts.c.key.desc()).limit(limit)
    return tuple(_alert(row) for row in connection.execute(statement))


def of_keys(connection: Connection, keys: Iterable[str]) -> dict[str, Alert]:
    """Return those of these alerts that are still kept."""
    wanted = sa.select(*_COLUMNS)
    found = (row for some in chunks(keys) for row in connection.execute(wanted.where(alerts.c.key.in_(some))))
    return {row.key: _alert(row) for row in found}


def counts(connection: Connection) -> dict[str, int]:
    """How many are open, by rule."""
    statement = sa.select(alerts.c.rule, sa.func.count()).where(alerts.c.state == State.OPEN).group_by(alerts.c.rule)
    return {rule: int(count) for rule, count in connection.execute(statement)}


def waiting(connection: Connection) -> int:
    """How many changes nobody was told of yet."""
    statement = sa.select(sa.func.count()).where(alerts.c.told < alerts.c.changes)
    return int(connection.execute(statement).scalar_one())


def forget(connection: Connection, before: datetime, limit_rows: int) -> int:
    """Remove those that closed before that time, and the oldest closed ones beyond `limit_rows`; how many."""
    over = alerts.c.state == State.CLOSED
    gone = connection.execute(sa.delete(alerts).where(over, alerts.c.closed < before)).rowcount
    beyond = sa.select(alerts.c.closed).where(over).order_by(alerts.c.closed.desc()).offset(limit_rows).limit(1)
    newest = connection.execute(beyond).scalar()
    if newest is not None:
        gone += connection.execute(sa.delete(alerts).where(over, alerts.c.closed <= newest)).rowcount
    return gone


def _values(alert: Alert) -> dict[str, object]:
    return {name: getattr(alert, name) for name in Alert.__slots__} | {"changes": _CHANGES[alert.state]}


def _alert(row: Iterable[object]) -> Alert:
    fields = dict(zip(Alert.__slots__, row, strict=True))
    return Alert(**fields | {"state": State(str(fields["state"]))})  # type: ignore[arg-type]
