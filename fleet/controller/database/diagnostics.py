"""Operators' requests for diagnostics, and devices' answers. A device learns of a request with its poll."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Row

from fleet.controller.database import numbers
from fleet.controller.database.engine import alone
from fleet.controller.database.errors import AbsentError, ConflictError
from fleet.controller.database.rows import Json
from fleet.controller.database.settings import DatabaseSettings
from fleet.controller.database.tables import diagnostics


@dataclass(frozen=True, slots=True)
class Request:
    """Request for diagnostics. `wanted`: the parts, with their bounds. `answer`: None until there is one."""

    id: int
    device: str
    wanted: Json
    asked: datetime
    asked_by: str
    expires: datetime
    answered: datetime | None
    answer: Json | None


def ask(
    connection: Connection,
    device: str,
    wanted: Json,
    settings: DatabaseSettings,
    *,
    now: datetime,
    expires: datetime,
    by: str,
) -> int:
    """Store a request. Return its id. Raise ConflictError if too many wait already, or for an unknown device."""
    alone(connection, f"diagnostics of {device}")
    if len(waiting(connection, device, now)) >= settings.diagnostics_open_limit:
        problem = f"{settings.diagnostics_open_limit} requests wait for an answer of {device!r:.140}"
        raise ConflictError(f"{problem}; wait for the answers, or until they expire")
    made = {"device": device, "wanted": wanted, "asked": now, "asked_by": by, "expires": expires, "answer": {}}
    (row,) = numbers.identified(connection, diagnostics, [made])
    add = sa.insert(diagnostics).values(row).returning(diagnostics.c.id)
    request = int(connection.execute(add).scalar_one())
    mine = sa.select(diagnostics.c.id).where(diagnostics.c.device == device).order_by(diagnostics.c.id.desc())
    last = connection.execute(mine.offset(settings.diagnostics_limit).limit(1)).scalar()
    if last is not None:
        connection.execute(sa.delete(diagnostics).where(diagnostics.c.device == device, diagnostics.c.id <= last))
    return request


def waiting(connection: Connection, device: str, now: datetime) -> tuple[Request, ...]:
    """Return the requests that the device is still to answer, oldest first."""
    mine = (diagnostics.c.device == device, diagnostics.c.answered.is_(None), diagnostics.c.expires > now)
    found = connection.execute(sa.select(diagnostics).where(*mine).order_by(diagnostics.c.id))
    return tuple(_request(row) for row in found)


def answer(connection: Connection, request: int, device: str, document: Json, now: datetime) -> None:
    """Store a device's answer.

    Raise AbsentError if there is no such request, ConflictError for a second answer, or one that is too late.
    """
    mine = (diagnostics.c.id == request, diagnostics.c.device == device)
    change = sa.update(diagnostics).where(*mine, diagnostics.c.answered.is_(None), diagnostics.c.expires > now)
    if connection.execute(change.values(answered=now, answer=document)).rowcount == 1:
        return
    if connection.execute(sa.select(diagnostics.c.id).where(*mine)).first() is None:
        raise AbsentError(f"{device!r:.140} was not asked for {request}")
    raise ConflictError(f"the request {request} was answered already, or has expired")


def of_device(connection: Connection, device: str) -> tuple[Request, ...]:
    """Return all stored requests of a device, newest first: at most `diagnostics_limit`."""
    mine = sa.select(diagnostics).where(diagnostics.c.device == device).order_by(diagnostics.c.id.desc())
    return tuple(_request(row) for row in connection.execute(mine))


def _request(row: Row[Any]) -> Request:
    fields = {name: getattr(row, name) for name in Request.__slots__}
    return Request(**fields | {"answer": row.answer if row.answered else None})
