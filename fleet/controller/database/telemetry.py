"""Telemetry of devices: each row is stored once, however often it is sent."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy import Row as Found
from sqlalchemy.dialects import postgresql, sqlite

from fleet.controller.database.columns import document_text
from fleet.controller.database.device_filter import Filter, chosen, everything
from fleet.controller.database.engine import alone
from fleet.controller.database.errors import RefusedError
from fleet.controller.database.ingestion import Batch, Row, check, take
from fleet.controller.database.rows import chunks, page_limit
from fleet.controller.database.settings import DatabaseSettings, TelemetryStorageSettings
from fleet.controller.database.spans import Received, Span
from fleet.controller.database.tables import telemetry, telemetry_sources

REPEATED = "repeated"


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """Result of a batch. The device may forget all rows up to `contiguous`.

    `stored`: how many rows are new. `left`: number of others, by reason. `fresh`: the new rows, in order.
    """

    contiguous: int
    stored: int
    left: Mapping[str, int]
    fresh: Sequence[Row] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class TelemetrySource:
    """One stream of one boot of a device.

    `lost`: numbers that never came. `rows`, `size_bytes`: what is stored of it.
    """

    stream: str
    boot_epoch: int
    contiguous: int
    gaps: tuple[Span, ...]
    lost: int
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class StoredRow:
    """A row as it was received."""

    stream: str
    boot_epoch: int
    received: datetime
    row: Row


def hold(connection: Connection, device: str) -> None:
    """Lock the telemetry of this device until the transaction ends: none of it is stored meanwhile.

    Call it before any other lock: ingestion takes this one first, and those of the device and its rollouts later.
    """
    alone(connection, f"telemetry of {device}")


def receive(
    connection: Connection,
    device: str,
    batch: Batch,
    now: datetime,
    settings: TelemetryStorageSettings,
    *,
    repeated: Collection[int] = (),
) -> StoredBatch:
    """Store the rows that are new. Raise RefusedError for invalid telemetry, ConflictError for an unknown device.

    `repeated`: numbers of rows that are acknowledged and not stored, because they tell again what is known.
    """
    check(batch, settings)
    source = _source(connection, device, batch, settings)
    before = _received(source)
    taken = take(before, batch, settings)
    rows = [row for row in taken.rows if row.seq not in repeated]
    added_bytes = _store(connection, source.id, rows, now, settings)
    if taken.received != before:
        after = {"to": taken.received.contiguous, "beyond": taken.received.beyond}
        added = {"more_rows": len(rows), "more_bytes": added_bytes, "more_lost": taken.lost}
        connection.execute(_ADVANCE, {"source_id": source.id, **after, **added})
    again = len(taken.rows) - len(rows)
    left = {**taken.left, REPEATED: again} if again else taken.left
    return StoredBatch(taken.received.contiguous, len(rows), left, rows)


def sources(connection: Connection, device: str) -> tuple[TelemetrySource, ...]:
    """Return all sources of a device, newest boots first, with their positions and gaps."""
    columns = telemetry_sources.c
    statement = sa.select(telemetry_sources).where(columns.device == device)
    found = connection.execute(statement.order_by(columns.stream, columns.boot_epoch.desc()))
    return tuple(
        TelemetrySource(
            row.stream, row.boot_epoch, row.contiguous, _received(row).gaps(), row.lost, row.rows, row.bytes
        )
        for row in found
    )


def page(
    connection: Connection,
    device: str,
    settings: DatabaseSettings,
    *,
    stream: str,
    boot_epoch: int,
    after: int = 0,
    limit_rows: int = 100,
) -> tuple[StoredRow, ...]:
    """Return rows of one source in order, from the one that follows number `after`."""
    wanted = (telemetry_sources.c.device == device, telemetry_sources.c.stream == stream)
    mine = _rows().where(*wanted, telemetry_sources.c.boot_epoch == boot_epoch, telemetry.c.seq > after)
    limit = page_limit(limit_rows, settings.page_limit_rows)
    return tuple(_row(row) for row in connection.execute(mine.order_by(telemetry.c.seq).limit(limit)))


def newest(
    connection: Connection, device: str, settings: DatabaseSettings, *, stream: str, limit_rows: int = 1
) -> tuple[StoredRow, ...]:
    """Return the last rows of a stream, newest first, of any boot."""
    mine = _rows().where(telemetry_sources.c.device == device, telemetry_sources.c.stream == stream)
    ordered = mine.order_by(telemetry_sources.c.boot_epoch.desc(), telemetry.c.seq.desc())
    found = connection.execute(ordered.limit(page_limit(limit_rows, settings.page_limit_rows)))
    return tuple(_row(row) for row in found)


def newest_of_devices(
    connection: Connection,
    settings: DatabaseSettings,
    *,
    stream: str,
    scope: frozenset[str] = frozenset(),
    matching: Filter | None = None,
    after: str = "",
    limit_rows: int = 100,
) -> tuple[tuple[str, StoredRow], ...]:
    """Return the last row of a stream of each device, by the devices' ids, from the one that follows `after`.

    `scope`: only devices with one of these tags; empty: all. `matching`: only devices that pass this filter.
    """
    source = telemetry_sources.c
    wanted = [source.stream == stream, source.device > after, source.rows > 0]
    wanted += chosen(source.device, scope, everything() if matching is None else matching)
    named = sa.select(source.device).where(*wanted).distinct().order_by(source.device)
    ids = connection.execute(named.limit(page_limit(limit_rows, settings.page_limit_rows))).scalars().all()
    last = _rows().add_columns(source.device).where(source.stream == stream, _IS_LAST).order_by(source.device)
    found = (row for some in chunks(ids) for row in connection.execute(last.where(source.device.in_(some))))
    return tuple((row.device, _row(row)) for row in found)


def _source(connection: Connection, device: str, batch: Batch, settings: TelemetryStorageSettings) -> Found[Any]:
    """Return the source's row, locked; create it if there is none, in the place of the boot that was silent longest.

    The oldest boot may be the present one of a device whose copy has begun others.
    """
    hold(connection, device)
    key = {"of_device": device, "of_stream": batch.stream, "of_boot": batch.boot_epoch}
    found = connection.execute(_SOURCE, key).one_or_none()
    if found is not None:
        return found
    columns = telemetry_sources.c
    mine = sa.select(columns.id).where(columns.device == device, columns.stream == batch.stream)
    boots = connection.execute(mine.order_by(_LAST_RECEIVED.nulls_first(), columns.boot_epoch)).scalars().all()
    if not boots:
        streams = sa.select(columns.stream).where(columns.device == device).distinct()
        if len(connection.execute(streams).all()) >= settings.streams_limit:
            raise RefusedError(f"the device has {settings.streams_limit} streams already; further ones are refused")
    if len(boots) >= settings.boots_limit:
        connection.execute(sa.delete(telemetry_sources).where(columns.id == boots[0]))
    empty = {"contiguous": 0, "spans": [], "lost": 0, "rows": 0, "bytes": 0}
    add = sa.insert(telemetry_sources).values(device=device, stream=batch.stream, boot_epoch=batch.boot_epoch, **empty)
    return connection.execute(add.returning(*columns)).one()


def _store(
    connection: Connection, source: int, rows: Sequence[Row], now: datetime, settings: TelemetryStorageSettings
) -> int:
    """Store rows. Return how many bytes were added."""
    if not rows:
        return 0
    sizes = [len(document_text(row.document, settings.row_limit_bytes)) for row in rows]
    values = [
        {"source": source, "received": now, "bytes": size, **{name: getattr(row, name) for name in Row.__slots__}}
        for row, size in zip(rows, sizes, strict=True)
    ]
    connection.execute(_ADD[connection.dialect.name], values)
    return sum(sizes)


def _received(source: Found[Any]) -> Received:
    return Received(source.contiguous, tuple((first, last) for first, last in source.spans))


def _rows() -> sa.Select[Any]:
    columns = (telemetry_sources.c.stream, telemetry_sources.c.boot_epoch, telemetry.c.received)
    row = (telemetry.c.seq, telemetry.c.at, telemetry.c.kind, telemetry.c.document)
    return sa.select(*columns, *row).join_from(telemetry, telemetry_sources)


def _row(found: Found[Any]) -> StoredRow:
    row = Row(found.seq, found.at, found.kind, found.document)
    return StoredRow(found.stream, found.boot_epoch, found.received, row)


_NEWER, _LATER = telemetry_sources.alias(), telemetry.alias()
_NEWEST_BOOT = sa.select(sa.func.max(_NEWER.c.boot_epoch)).where(
    _NEWER.c.device == telemetry_sources.c.device, _NEWER.c.stream == telemetry_sources.c.stream, _NEWER.c.rows > 0
)
_LAST_NUMBER = sa.select(sa.func.max(_LATER.c.seq)).where(_LATER.c.source == telemetry_sources.c.id)
_IS_LAST = sa.and_(
    telemetry_sources.c.boot_epoch == _NEWEST_BOOT.scalar_subquery(), telemetry.c.seq == _LAST_NUMBER.scalar_subquery()
)
"""Condition on a row of telemetry: the last one of its device and stream, of the newest boot of which any is kept."""

_RECEIVED = sa.select(_LATER.c.received).where(_LATER.c.source == telemetry_sources.c.id)
_LAST_RECEIVED = _RECEIVED.order_by(_LATER.c.seq.desc()).limit(1).scalar_subquery()

# ---- statements of every request, built once: building them takes more than half the time of a small request ----
_COLUMNS = telemetry_sources.c
_SOURCE = sa.select(telemetry_sources).where(
    _COLUMNS.device == sa.bindparam("of_device", type_=_COLUMNS.device.type),
    _COLUMNS.stream == sa.bindparam("of_stream", type_=_COLUMNS.stream.type),
    _COLUMNS.boot_epoch == sa.bindparam("of_boot", type_=_COLUMNS.boot_epoch.type),
)
_ADVANCE = (
    sa.update(telemetry_sources)
    .where(_COLUMNS.id == sa.bindparam("source_id", type_=_COLUMNS.id.type))
    .values(
        contiguous=sa.bindparam("to", type_=_COLUMNS.contiguous.type),
        spans=sa.bindparam("beyond", type_=_COLUMNS.spans.type),
        rows=_COLUMNS.rows + sa.bindparam("more_rows", type_=_COLUMNS.rows.type),  # the sweep subtracts from it
        bytes=_COLUMNS.bytes + sa.bindparam("more_bytes", type_=_COLUMNS.bytes.type),
        lost=_COLUMNS.lost + sa.bindparam("more_lost", type_=_COLUMNS.lost.type),
    )
)
_ADD = {
    "sqlite": sqlite.insert(telemetry).on_conflict_do_nothing(),
    "postgresql": postgresql.insert(telemetry).on_conflict_do_nothing(),
}
