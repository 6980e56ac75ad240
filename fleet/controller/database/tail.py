"""Telemetry of all devices in the order in which it was received, for readers that follow it: alerts, OTLP.

A reader stores its position. It reads up to a moment before which no transaction is still in progress: a transaction
that stores telemetry announces when it began, by a lock in PostgreSQL; on SQLite it is the only writer. So what is
committed late is read late, and not missed, as long as replicas' clocks differ by less than the reader stays behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from fleet.controller.database import numbers
from fleet.controller.database.columns import EPOCH
from fleet.controller.database.engine import held_locks
from fleet.controller.database.ingestion import Row
from fleet.controller.database.tables import telemetry, telemetry_sources

_NAMES = "tail of "
_STORING = 1_952_541_036
"""First half of the numbers of these locks ("tail" in ASCII); the second half is a time in seconds."""
_SINCE = datetime(2020, 1, 1, tzinfo=timezone.utc)
"""Epoch of these seconds: they fit 32 bits until 2088."""
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class ReceivedRow:
    """A row, and the device that sent it."""

    device: str
    stream: str
    boot_epoch: int
    received: datetime
    row: Row


@dataclass(frozen=True, slots=True)
class Tail:
    """A part of the tail. `reached`: all that was received up to then is in `rows`, or was before.

    `more`: further rows follow.
    """

    rows: tuple[ReceivedRow, ...]
    reached: datetime
    more: bool


def storing(connection: Connection, now: Callable[[], datetime]) -> datetime:
    """Return the time of receipt for what this transaction is about to store.

    Readers wait for the end of the transaction before they read beyond that time.
    """
    if connection.dialect.name == "postgresql":
        second = (now() - _SINCE) // timedelta(seconds=1)
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock_shared(_STORING, second)))
    return now()


def settled(connection: Connection, until: datetime) -> datetime:
    """Return the time up to which no more rows will be added; `until` at most.

    Call it in a `write`, before the `read` that uses it begins: what is stored between the two is seen, or comes
    later. On SQLite, which has one writer, the `write` waits for a transaction that has a time of receipt already.
    """
    if connection.dialect.name != "postgresql":
        return until
    oldest = min(held_locks(connection, _STORING), default=None)
    return until if oldest is None else min(until, _SINCE + timedelta(seconds=oldest) - _MICROSECOND)


def tail(
    connection: Connection, after: datetime, until: datetime, limit_rows: int, streams: Iterable[str] = ()
) -> Tail:
    """Return rows received after `after`, up to `until`, at most `limit_rows`. `streams` empty: of all streams.

    Rows that were received in one microsecond come together, even if they are more.
    """
    wanted = [telemetry_sources.c.stream.in_(list(streams))] if streams else []
    span = (telemetry.c.received > after, telemetry.c.received <= until)
    found = connection.execute(_ROWS.where(*span, *wanted).limit(limit_rows + 1)).all()
    if len(found) <= limit_rows:
        return Tail(tuple(map(_received_row, found)), max(after, until), more=False)
    whole = [row for row in found if row.received < found[-1].received]
    if not whole:
        moment = found[-1].received
        whole = list(connection.execute(_ROWS.where(telemetry.c.received == moment, *wanted)).all())
    return Tail(tuple(map(_received_row, whole)), whole[-1].received, more=True)


def position(connection: Connection, reader: str) -> datetime | None:
    """Return the position of the reader, or None if it never read."""
    value = numbers.read(connection, _NAMES + reader)
    return None if value is None else EPOCH + value * _MICROSECOND


def keep_position(connection: Connection, reader: str, at: datetime) -> None:
    """Store the position of the reader."""
    numbers.put(connection, _NAMES + reader, (at - EPOCH) // _MICROSECOND)


_ROWS: sa.Select[Any] = (
    sa.select(
        telemetry_sources.c.device,
        telemetry_sources.c.stream,
        telemetry_sources.c.boot_epoch,
        telemetry.c.received,
        telemetry.c.seq,
        telemetry.c.at,
        telemetry.c.kind,
        telemetry.c.document,
    )
    .join_from(telemetry, telemetry_sources)
    .order_by(telemetry.c.received, telemetry.c.source, telemetry.c.seq)
)


def _received_row(row: Any) -> ReceivedRow:
    return ReceivedRow(
        row.device, row.stream, row.boot_epoch, row.received, Row(row.seq, row.at, row.kind, row.document)
    )
