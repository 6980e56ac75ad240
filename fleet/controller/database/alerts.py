"""Alerts, stored so that a restart neither forgets an alert nor reports it again.

`fleet.controller.monitoring.alert_rules` decides; this module stores alerts and how far each was reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy import Connection

from fleet.controller.database import changes
from fleet.controller.database.changes import ChangeKind, NewChange
from fleet.controller.database.device_filter import Filter, chosen
from fleet.controller.database.engine import adding
from fleet.controller.database.rows import Json, bounded, chunks, page_limit
from fleet.controller.database.settings import DatabaseSettings
from fleet.controller.database.tables import alerts, device_tags, devices
from gateway.common.domain.python310 import StrEnum

STANDING_LIMIT = 100_000
"""Alerts that are not closed. The alert rules open no more than a setting of their own."""


class AlertState(StrEnum):
    """State of an alert. PENDING: the condition holds, but not for long enough yet to be reported."""

    PENDING = "pending"
    OPEN = "open"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert. `key` is its permanent name.

    `device` "": it is not about one device. `subject`: what it is about, such as a slot. `since`: when the condition
    began. `heard`: when it was last observed, approximately. `calm`: since when the condition no longer holds, although
    the alert is still open.
    """

    key: str
    rule: str
    device: str
    subject: str
    state: AlertState
    since: datetime
    heard: datetime
    opened: datetime | None = None
    closed: datetime | None = None
    summary: str = ""
    evidence: Json = field(default_factory=dict)
    calm: datetime | None = None


@dataclass(frozen=True, slots=True)
class Untold:
    """An alert whose opening or closing was not reported yet. `change`: 1 it opened, 2 it closed."""

    alert: Alert
    change: int


_CHANGES: Mapping[AlertState, int] = {AlertState.PENDING: 0, AlertState.OPEN: 1, AlertState.CLOSED: 2}
_KINDS: Mapping[int, ChangeKind] = {1: ChangeKind.ALERT_OPENED, 2: ChangeKind.ALERT_CLOSED}
_COLUMNS = [alerts.c[name] for name in Alert.__slots__]


def standing(connection: Connection) -> tuple[Alert, ...]:
    """Return all alerts that are not closed."""
    statement = sa.select(*_COLUMNS).where(alerts.c.state.in_([AlertState.OPEN, AlertState.PENDING]))
    found = connection.execute(statement.order_by(alerts.c.key).limit(STANDING_LIMIT))
    return tuple(_alert(row) for row in found)


def put(connection: Connection, changed: Iterable[Alert], *, tell: bool) -> None:
    """Store alerts as they are now. `tell`: their changes are to be reported; otherwise they count as reported.

    A closed alert stays as it is: after a clock was set back, the rows that opened it are read again.
    """
    found = bounded(changed, STANDING_LIMIT, "alerts")
    rows = [
        {name: getattr(alert, name) for name in Alert.__slots__}
        | {"changes": _CHANGES[alert.state], "told": 0 if tell else 2}
        for alert in found
    ]
    if rows:
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
        add = adding(connection, alerts)
        kept = {name: add.excluded[name] for name in rows[0] if name not in {"key", "told"}}
        is_standing = alerts.c.state != AlertState.CLOSED
        connection.execute(add.on_conflict_do_update(index_elements=[alerts.c.key], set_=kept, where=is_standing), rows)


def drop(connection: Connection, keys: Iterable[str]) -> None:
    """Delete alerts that never opened."""
    rows = [{"its_key": key} for key in bounded(keys, STANDING_LIMIT, "alerts")]
    if rows:
        mine = alerts.c.key == sa.bindparam("its_key", type_=alerts.c.key.type)
        connection.execute(sa.delete(alerts).where(mine, alerts.c.state == AlertState.PENDING), rows)


def untold(connection: Connection, limit_rows: int) -> tuple[Untold, ...]:
    """Return alerts with changes to report, the longest waiting first."""
    changed = sa.func.coalesce(alerts.c.closed, alerts.c.opened)
    statement = sa.select(alerts.c.changes, *_COLUMNS).where(alerts.c.told < alerts.c.changes)
    found = connection.execute(statement.order_by(changed, alerts.c.key).limit(limit_rows))
    return tuple(Untold(_alert(row[1:]), row[0]) for row in found)


def mark_notified(connection: Connection, key: str, change: int) -> None:
    """Note that a change was reported, or never will be."""
    mine = sa.update(alerts).where(alerts.c.key == key, alerts.c.told < change)
    connection.execute(mine.values(told=change))


def page(
    connection: Connection,
    settings: DatabaseSettings,
    *,
    state: AlertState | None = None,
    rule: str = "",
    device: str = "",
    scope: frozenset[str] = frozenset(),
    matching: Filter | None = None,
    before: str = "",
    limit_rows: int = 100,
) -> tuple[Alert, ...]:
    """Return alerts, newest first by when they began, from the one before the key `before`; "" matches all.

    `scope`: only alerts on devices with one of these tags, and none on a device that had the name before it was
    removed. `matching`: only alerts on devices that pass this filter.
    """
    exact = {"state": state, "rule": rule, "device": device}
    wanted = [alerts.c[name] == value for name, value in exact.items() if value]
    wanted += [alerts.c.key < before] if before else []
    wanted += chosen(alerts.c.device, (), matching)
    if scope:  # the same rule as in fleet.controller.control.changes._is_within
        mine = sa.select(devices.c.id).join(device_tags, device_tags.c.device == devices.c.id)
        tagged = (device_tags.c.tag.in_(sorted(scope)), devices.c.id == alerts.c.device)
        wanted.append(mine.where(*tagged, devices.c.registered <= alerts.c.since).exists())
    limit = page_limit(limit_rows, settings.page_limit_rows)
    statement = sa.select(*_COLUMNS).where(*wanted).order_by(alerts.c.key.desc()).limit(limit)
    return tuple(_alert(row) for row in connection.execute(statement))


def of_keys(connection: Connection, keys: Iterable[str]) -> dict[str, Alert]:
    """Return the alerts of these keys that are still stored."""
    wanted = sa.select(*_COLUMNS)
    found = (row for some in chunks(keys) for row in connection.execute(wanted.where(alerts.c.key.in_(some))))
    return {row.key: _alert(row) for row in found}


def counts(connection: Connection) -> dict[str, int]:
    """Return how many alerts are open, by rule."""
    statement = (
        sa.select(alerts.c.rule, sa.func.count()).where(alerts.c.state == AlertState.OPEN).group_by(alerts.c.rule)
    )
    return {rule: int(count) for rule, count in connection.execute(statement)}


def waiting(connection: Connection) -> int:
    """Return how many alerts have changes to report."""
    statement = sa.select(sa.func.count()).where(alerts.c.told < alerts.c.changes)
    return int(connection.execute(statement).scalar_one())


def forget(connection: Connection, before: datetime, limit_rows: int) -> int:
    """Delete alerts that closed before `before`, and the oldest closed ones beyond `limit_rows`. Return how many."""
    over = alerts.c.state == AlertState.CLOSED
    gone = connection.execute(sa.delete(alerts).where(over, alerts.c.closed < before)).rowcount
    beyond = sa.select(alerts.c.closed).where(over).order_by(alerts.c.closed.desc()).offset(limit_rows).limit(1)
    newest = connection.execute(beyond).scalar()
    if newest is not None:
        gone += connection.execute(sa.delete(alerts).where(over, alerts.c.closed <= newest)).rowcount
    return gone


def _alert(row: Iterable[object]) -> Alert:
    fields = dict(zip(Alert.__slots__, row, strict=True))
    return Alert(**fields | {"state": AlertState(str(fields["state"]))})  # type: ignore[arg-type]
