"""`/v1/devices/{device}/telemetry`: telemetry of a device, by stream."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from litestar import get
from litestar.params import QueryParameter

from fleet.controller.access import Action
from fleet.controller.api.conditions import operation
from fleet.controller.api.fields import DeviceQuery, NameInPath, NameInQuery
from fleet.controller.api.identity import Call, control_of
from fleet.controller.api.pages import PAGE_ROWS, Limit, Page, page
from fleet.controller.api.scope import caller_of, known_device, scope_of
from fleet.controller.control.device_query import selected
from fleet.controller.control.ingestion_lines import NUMBER_LIMIT
from fleet.controller.database import telemetry
from fleet.controller.database.engine import Connection
from fleet.controller.database.errors import RefusedError
from fleet.controller.database.settings import DatabaseSettings
from fleet.controller.database.telemetry import StoredRow, TelemetrySource
from fleet.times import moment

CURSOR = r"^([0-9]{1,19}\.[0-9]{1,19})?$"
"""Pattern of BOOT_EPOCH.SEQ, each with as many digits as `NUMBER_LIMIT`."""
RowInQuery = Annotated[str, QueryParameter(schema_extra={"pattern": CURSOR, "maxLength": 39})]


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """A stream of one boot.

    `contiguous`: up to this number no row is missing. `gaps`: first and last number of each gap. `lost`: numbers that
    never came. `rows`, `size_bytes`: what is stored of it.
    """

    stream: str
    boot_epoch: int
    contiguous: int
    gaps: list[tuple[int, int]]
    lost: int
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TelemetryRow:
    """A row. `at`: by the device's clock. `received`: by the controller's."""

    stream: str
    boot_epoch: int
    seq: int
    at: str
    received: str
    kind: str
    document: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class DeviceRow(TelemetryRow):
    """Telemetry row of one of several devices."""

    device: str


@operation(get, "/v1/devices/{device:str}/telemetry", Action.TELEMETRY_READ, "List a device's streams")
def list_streams(request: Call, device: NameInPath) -> Page[StreamEntry]:
    """Return all streams of a device by name, newest boots first."""
    identity, control = caller_of(request), control_of(request)
    with control.database.read() as connection:
        known_device(request, connection, identity, device)
        return Page([_stream(source) for source in telemetry.sources(connection, device)], None)


@operation(
    get, "/v1/devices/{device:str}/telemetry/{stream:str}", Action.TELEMETRY_READ, "List rows of a stream, in order"
)
def list_rows(
    request: Call, device: NameInPath, stream: NameInPath, *, after: RowInQuery = "", limit: Limit = PAGE_ROWS
) -> Page[TelemetryRow]:
    """Return rows of a stream, boot after boot.

    `after`: BOOT_EPOCH.SEQ of the last row known; default: from the oldest stored row on. A caller that repeats the
    request with the numbers of the last row misses nothing.
    """
    identity, control = caller_of(request), control_of(request)
    if not re.fullmatch(CURSOR, after):
        raise RefusedError(f"{after!r:.80} is not BOOT_EPOCH.SEQ; send that of the last row, or `next`")
    epoch, _, number = (after or "0.0").partition(".")
    reached = (int(epoch), min(int(number), NUMBER_LIMIT - 1))
    with control.database.read() as connection:
        known_device(request, connection, identity, device)
        settings = control.database.settings
        found = _rows(connection, device, stream, reached, limit_rows=limit, settings=settings)
    return page(found, limit, _row, lambda one: f"{one.boot_epoch}.{one.row.seq}")


@operation(
    get,
    "/v1/devices/{device:str}/telemetry/{stream:str}/newest",
    Action.TELEMETRY_READ,
    "List the last rows of a stream",
)
def list_newest(request: Call, device: NameInPath, stream: NameInPath, *, limit: Limit = 1) -> Page[TelemetryRow]:
    """Return the last rows of a stream, newest first."""
    identity, control = caller_of(request), control_of(request)
    with control.database.read() as connection:
        known_device(request, connection, identity, device)
        found = telemetry.newest(connection, device, control.database.settings, stream=stream, limit_rows=limit)
    return Page([_row(one) for one in found], None)


@operation(
    get,
    "/v1/telemetry/{stream:str}/newest",
    Action.TELEMETRY_READ,
    "The last row of a stream of each device, by the devices' ids",
)
def list_newest_of_devices(
    request: Call,
    stream: NameInPath,
    *,
    device_query: DeviceQuery = "",
    after: NameInQuery = "",
    limit: Limit = PAGE_ROWS,
) -> Page[DeviceRow]:
    """Return the last row of each device in the caller's scope that matches `query` and has rows of this stream.

    `after`: the `next` of the page before this one.
    """
    scope, control = scope_of(caller_of(request)), control_of(request)
    with control.database.read() as connection:
        found = telemetry.newest_of_devices(
            connection,
            control.database.settings,
            stream=stream,
            scope=scope,
            matching=selected(connection, device_query),
            after=after,
            limit_rows=limit,
        )
    return page(found, limit, _device_row, lambda one: one[0])


def _device_row(one: tuple[str, StoredRow]) -> DeviceRow:
    device, row = one[0], _row(one[1])
    return DeviceRow(**{name: getattr(row, name) for name in TelemetryRow.__slots__}, device=device)


def _rows(
    connection: Connection,
    device: str,
    stream: str,
    reached: tuple[int, int],
    *,
    limit_rows: int,
    settings: DatabaseSettings,
) -> list[StoredRow]:
    """Return rows from the reached boot on, boot after boot."""
    boots = sorted(one.boot_epoch for one in telemetry.sources(connection, device) if one.stream == stream)
    found: list[StoredRow] = []
    for boot in (boot for boot in boots if boot >= reached[0]):
        if len(found) >= limit_rows:
            break
        after = reached[1] if boot == reached[0] else 0
        found += telemetry.page(
            connection,
            device,
            settings,
            stream=stream,
            boot_epoch=boot,
            after=after,
            limit_rows=limit_rows - len(found),
        )
    return found


def _stream(source: TelemetrySource) -> StreamEntry:
    return StreamEntry(
        source.stream,
        source.boot_epoch,
        source.contiguous,
        [(first, last) for first, last in source.gaps],
        source.lost,
        source.rows,
        source.size_bytes,
    )


def _row(one: StoredRow) -> TelemetryRow:
    row = one.row
    times = moment(row.at), moment(one.received)
    return TelemetryRow(one.stream, one.boot_epoch, row.seq, *times, row.kind, row.document)


HANDLERS = (list_streams, list_rows, list_newest, list_newest_of_devices)
