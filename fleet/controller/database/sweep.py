"""Retention of telemetry: by age, by bytes of one device, by bytes of all, in small steps that block no writer.

Rows beyond a gap are deleted, too, if they are too old: they count as received and are not requested again. A stream
that is being written at the same moment is left for the next time. A row is too old by both clocks, the controller's
and the device's, unless the device's is ahead: a clock that was wrong when the row came must not lose it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from fleet.controller.database.columns import LARGEST
from fleet.controller.database.engine import alone
from fleet.controller.database.rows import chunks
from fleet.controller.database.settings import TelemetryStorageSettings
from fleet.controller.database.tables import telemetry, telemetry_sources

SWEEPING = "telemetry is swept"
CLOCK_AHEAD = timedelta(days=1)
"""Time by which the clock of a device may be ahead: beyond it, its time does not count."""


def due(connection: Connection, now: datetime, settings: TelemetryStorageSettings) -> bool:
    """Return whether `sweep` would delete anything. It only reads, so writers need not wait for it."""
    old = sa.select(telemetry.c.source).where(_too_old(now, settings)).limit(1)
    if connection.execute(old).first() is not None or _worst(connection, settings) is not None:
        return True
    return kept_bytes(connection) > settings.total_limit_bytes


def sweep(connection: Connection, now: datetime, settings: TelemetryStorageSettings) -> int:
    """Delete at most `sweep_rows` rows that are too many or too old. Return how many; call again until it is 0."""
    alone(connection, SWEEPING)
    old = _oldest(settings).where(_too_old(now, settings))
    if gone := _remove(connection, old):
        return gone
    if found := _worst(connection, settings):
        device, size_bytes = found
        if gone := _remove(connection, _of_device(device, settings), size_bytes - settings.device_limit_bytes):
            return gone
    excess_bytes = kept_bytes(connection) - settings.total_limit_bytes
    return _remove(connection, _oldest(settings), excess_bytes) if excess_bytes > 0 else 0


def clear(connection: Connection, device: str, settings: TelemetryStorageSettings) -> int:
    """Delete at most `sweep_rows` rows of a device. Return how many; call again until it is 0."""
    alone(connection, SWEEPING)
    return _remove(connection, _of_device(device, settings))


def kept_bytes(connection: Connection) -> int:
    """Return the bytes of all documents, without the overhead of the database."""
    return int(connection.execute(sa.select(sa.func.coalesce(sa.func.sum(telemetry_sources.c.bytes), 0))).scalar_one())


def _worst(connection: Connection, settings: TelemetryStorageSettings) -> tuple[str, int] | None:
    """Return the device that is furthest above its limit, and its bytes."""
    used = sa.func.sum(telemetry_sources.c.bytes)
    devices = sa.select(telemetry_sources.c.device, used).group_by(telemetry_sources.c.device)
    worst = devices.having(used > settings.device_limit_bytes).order_by(used.desc()).limit(1)
    found = connection.execute(worst).one_or_none()
    return None if found is None else (str(found[0]), int(found[1]))


def _of_device(device: str, settings: TelemetryStorageSettings) -> sa.Select[Any]:
    return _oldest(settings).join(telemetry_sources).where(telemetry_sources.c.device == device)


def _too_old(now: datetime, settings: TelemetryStorageSettings) -> sa.ColumnElement[bool]:
    oldest = now - timedelta(days=settings.age_limit_d)
    by_device = sa.or_(telemetry.c.at < oldest, telemetry.c.at > now + CLOCK_AHEAD)
    return sa.and_(telemetry.c.received < oldest, by_device)


def _oldest(settings: TelemetryStorageSettings) -> sa.Select[Any]:
    columns = (telemetry.c.source, telemetry.c.seq, telemetry.c.bytes)
    ordered = sa.select(*columns).order_by(telemetry.c.received, telemetry.c.source, telemetry.c.seq)
    return ordered.limit(settings.sweep_rows)


def _remove(connection: Connection, chosen: sa.Select[Any], excess_bytes: int = LARGEST) -> int:
    """Delete the first of the chosen rows, until `excess_bytes` are freed. Return how many."""
    rows: list[dict[str, int]] = []
    freed: dict[int, list[int]] = {}
    found = connection.execute(chosen).all()
    free = _lock(connection, {row.source for row in found})
    for source, seq, size in (row for row in found if row.source in free):
        if excess_bytes <= 0:
            break
        excess_bytes -= size
        rows.append({"its_source": source, "its_seq": seq})
        count, total = freed.get(source, [0, 0])
        freed[source] = [count + 1, total + size]
    if rows:
        connection.execute(_DELETE, rows)
        less = [{"its_source": source, "count": count, "size": size} for source, (count, size) in freed.items()]
        connection.execute(_SUBTRACT, less)
    return len(rows)


def _lock(connection: Connection, sources: Iterable[int]) -> frozenset[int]:
    """Lock the sources that are not being written, and return them.

    A writer locks several sources of a device in any order, so the sweep must not wait for it.
    """
    mine: set[int] = set()
    for ids in chunks(sources):
        free = sa.select(telemetry_sources.c.id).where(telemetry_sources.c.id.in_(ids))
        mine |= set(connection.execute(free.with_for_update(key_share=True, skip_locked=True)).scalars())
    return frozenset(mine)


_DELETE = sa.delete(telemetry).where(
    telemetry.c.source == sa.bindparam("its_source"), telemetry.c.seq == sa.bindparam("its_seq")
)
_SUBTRACT = (
    sa.update(telemetry_sources)
    .where(telemetry_sources.c.id == sa.bindparam("its_source"))
    .values(
        rows=telemetry_sources.c.rows - sa.bindparam("count", type_=telemetry_sources.c.rows.type),
        bytes=telemetry_sources.c.bytes - sa.bindparam("size", type_=telemetry_sources.c.bytes.type),
    )
)
