"""Events on devices for operators: roll-backs with their evidence, and what else devices report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from fleet.controller.database import changes, numbers
from fleet.controller.database.changes import ChangeKind, NewChange
from fleet.controller.database.device_filter import Filter, chosen
from fleet.controller.database.engine import adding
from fleet.controller.database.rows import Json, bounded, chunks, page_limit
from fleet.controller.database.settings import DatabaseSettings
from fleet.controller.database.sweep import CLOCK_AHEAD
from fleet.controller.database.tables import events


@dataclass(frozen=True, slots=True)
class Event:
    """An event. `key` identifies it for its device: an event that is sent again is not recorded again.

    `at`: by the device's clock. `slot`, `target`, `rollout`: what it is about ("": nothing).
    """

    device: str
    key: str
    at: datetime
    kind: str
    slot: str = ""
    target: str = ""
    rollout: str = ""
    document: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """A recorded event. `id` grows in the order in which events were received."""

    id: int
    received: datetime
    event: Event


def record(connection: Connection, happened: Iterable[Event], now: datetime, settings: DatabaseSettings) -> int:
    """Store the events that are new. Return how many.

    Of each device the newest `device_events_limit_rows` stay, so a device that reports endlessly displaces only its own
    events. Raise ConflictError for an unknown device.
    """
    rows = bounded(happened, settings.page_limit_rows, "events")
    if not rows:
        return 0
    add = adding(connection, events).on_conflict_do_nothing(index_elements=[events.c.device, events.c.key])
    values = [{"received": now, **{name: getattr(row, name) for name in Event.__slots__}} for row in rows]
    found = connection.execute(add.returning(events.c.id), numbers.identified(connection, events, values))
    added = sorted(found.scalars())
    changes.add(connection, [NewChange(now, ChangeKind.DEVICE_EVENT, str(number)) for number in added])
    for device in sorted({row.device for row in rows}) if added else ():
        mine = sa.select(events.c.id).where(events.c.device == device).order_by(events.c.id.desc())
        last = connection.execute(mine.offset(settings.device_events_limit_rows).limit(1)).scalar()
        if last is not None:
            connection.execute(sa.delete(events).where(events.c.device == device, events.c.id <= last))
    return len(added)


def known(connection: Connection, device: str, keys: Iterable[str]) -> set[str]:
    """Return those of these keys with which an event of the device is stored."""
    mine = sa.select(events.c.key).where(events.c.device == device)
    return {key for some in chunks(keys) for key in connection.execute(mine.where(events.c.key.in_(some))).scalars()}


def page(
    connection: Connection,
    settings: DatabaseSettings,
    *,
    device: str = "",
    kind: str = "",
    rollout: str = "",
    scope: frozenset[str] = frozenset(),
    matching: Filter | None = None,
    before: int | None = None,
    limit_rows: int = 100,
) -> tuple[StoredEvent, ...]:
    """Return events, newest first, from the one received before id `before`; "" matches all.

    `scope`: only of devices with one of these tags; empty: of all. `matching`: only of devices that pass this filter.
    """
    exact = {"device": device, "kind": kind, "rollout": rollout}
    wanted = [events.c[name] == value for name, value in exact.items() if value]
    wanted += [events.c.id < before] if before is not None else []
    wanted += chosen(events.c.device, scope, matching)
    limit = page_limit(limit_rows, settings.page_limit_rows)
    statement = _EVENTS.where(*wanted).order_by(events.c.id.desc()).limit(limit)
    return tuple(map(_event, connection.execute(statement)))


def of_ids(connection: Connection, ids: Iterable[int]) -> dict[int, StoredEvent]:
    """Return the events of these ids that are still stored."""
    found = (row for some in chunks(ids) for row in connection.execute(_EVENTS.where(events.c.id.in_(some))))
    return {row[0]: _event(row) for row in found}


def sweep(connection: Connection, now: datetime, settings: DatabaseSettings) -> int:
    """Delete at most `sweep_rows` events. Return how many; call again until it is 0.

    First those older than the age limit of telemetry, by both clocks as there, then the oldest beyond the limit of
    their number.
    """
    ids, limit_rows = sa.select(events.c.id), settings.telemetry.sweep_rows
    oldest = now - timedelta(days=settings.telemetry.age_limit_d)
    by_device = sa.or_(events.c.at < oldest, events.c.at > now + CLOCK_AHEAD)
    old = ids.where(events.c.received < oldest, by_device)
    gone = connection.execute(sa.delete(events).where(events.c.id.in_(old.limit(limit_rows)))).rowcount
    beyond = ids.order_by(events.c.id.desc()).offset(settings.events_limit_rows).limit(1)
    newest = connection.execute(beyond).scalar()
    if newest is not None and gone < limit_rows:
        many = ids.where(events.c.id <= newest).order_by(events.c.id).limit(limit_rows - gone)
        gone += connection.execute(sa.delete(events).where(events.c.id.in_(many))).rowcount
    return gone


_EVENTS: sa.Select[Any] = sa.select(events.c.id, events.c.received, *(events.c[name] for name in Event.__slots__))


def _event(row: Any) -> StoredEvent:
    return StoredEvent(row[0], row[1], Event(*row[2:]))
