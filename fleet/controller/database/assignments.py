"""Signed assignments, one per device.

Versions only grow, and none is issued twice: not by two replicas at once, and not by a controller that was restored
from a backup.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy import Connection

from fleet.controller.database import numbers
from fleet.controller.database.engine import Insert, adding, alone
from fleet.controller.database.errors import ConflictError
from fleet.controller.database.tables import assignments

BASE = "assignment base"
"""Versions up to this number may have been issued by a controller that was lost before a restore; they are void."""


@dataclass(frozen=True, slots=True)
class StoredAssignment:
    """A signed assignment.

    `digest`: SHA-256 (hex) of `content`, the ETag. `revision`: of the desired state it was signed from. `basis`: names
    what else it depends on (`fleet.controller.control.director`).
    """

    device: str
    version: int
    digest: str
    content: bytes
    issued: datetime
    expires: datetime
    revision: int
    basis: str = ""


def current(connection: Connection, device: str) -> StoredAssignment | None:
    """Return the valid assignment, even if expired. None: sign one."""
    row = connection.execute(_CURRENT, {"of": device}).one_or_none()
    return StoredAssignment(*row) if row and row.version > base(connection) else None


def next_version(connection: Connection, device: str) -> int:
    """Return the version to sign next, within a `write`.

    Until its transaction ends no other replica gets a version for this device: sign and `put` within it.
    """
    alone(connection, f"assignment of {device}")
    last = connection.execute(_LAST, {"of": device}).scalar()
    return max(last or 0, base(connection)) + 1


def put(connection: Connection, signed: StoredAssignment) -> None:
    """Store an assignment before it is handed out.

    Raise ConflictError if this version or a later one exists (do not hand it out: read the current one), or the device
    is unknown.
    """
    values = {name: getattr(signed, name) for name in StoredAssignment.__slots__}
    if signed.version <= base(connection) or connection.execute(_newer(connection), values).rowcount != 1:
        raise ConflictError(f"version {signed.version} of the assignment of {signed.device!r:.140} is given already")


def base(connection: Connection) -> int:
    """Return the base of versions; 0 if no backup was ever restored."""
    return numbers.read(connection, BASE) or 0


def leap(connection: Connection, by: int) -> int:
    """Void all versions after a restore, and begin beyond what the lost controller can have issued.

    Return the new base.
    """
    last = connection.execute(sa.select(sa.func.max(assignments.c.version))).scalar()
    value = max(last or 0, base(connection)) + by
    numbers.put(connection, BASE, value)
    return value


_MINE = assignments.c.device == sa.bindparam("of", type_=assignments.c.device.type)
_CURRENT, _LAST = sa.select(assignments).where(_MINE), sa.select(assignments.c.version).where(_MINE)
_NEWER: dict[str, Insert] = {}
"""Statement by dialect: building it takes longer than executing it."""


def _newer(connection: Connection) -> Insert:
    """Return an INSERT that replaces older versions only."""
    dialect = connection.dialect.name
    if dialect not in _NEWER:
        add = adding(connection, assignments)
        _NEWER[dialect] = add.on_conflict_do_update(
            index_elements=[assignments.c.device],
            set_={name: add.excluded[name] for name in StoredAssignment.__slots__ if name != "device"},
            where=assignments.c.version < add.excluded.version,
        )
    return _NEWER[dialect]
