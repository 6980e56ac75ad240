"""Marks of a move between two databases. A controller refuses to start on a marked database.

The source gets `MOVED` when its copy is complete. The target holds `ARRIVING` from its first row until the source is
marked. Each is a table of its own outside the schema, and exists only while it applies.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy import Connection, Table

from fleet.controller.database.columns import Moment, Words
from fleet.controller.database.place import DatabaseLocation
from fleet.controller.database.tables import NAME_BYTES, PATH_BYTES
from gateway.common.domain.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Mark:
    """Mark of one move: its number, which both databases hold, and the `[database] url` of the other database."""

    id: str
    other: str
    at: datetime


def _table(name: str) -> Table:
    return Table(
        name,
        sa.MetaData(),
        sa.Column("id", Words(NAME_BYTES)),
        sa.Column("other", Words(PATH_BYTES)),
        sa.Column("at", Moment),
    )


MOVED = _table("moved_away")
ARRIVING = _table("unfinished_move")


def read(connection: Connection, table: Table) -> Mark | None:
    """Return the mark in `table`, or None if there is none."""
    if not sa.inspect(connection).has_table(table.name):
        return None
    return Mark(*connection.execute(sa.select(table)).one())


def put(connection: Connection, table: Table, mark: Mark) -> None:
    """Write the mark. It holds when the transaction is committed."""
    table.create(connection)
    connection.execute(sa.insert(table).values(id=mark.id, other=mark.other, at=mark.at))


def remove(connection: Connection, table: Table) -> None:
    """Remove the mark, if there is one."""
    table.drop(connection, checkfirst=True)


def refuse(connection: Connection, place: DatabaseLocation) -> None:
    """Raise ConfigurationError if the database holds a mark."""
    if mark := read(connection, ARRIVING):
        problem = (
            f"a move of {mark.other} into it did not end; start it again where that one is configured: "
            f"edge-fleet migrate --to {place.setting}"
        )
        raise ConfigurationError(problem, file=str(place))
    if mark := read(connection, MOVED):
        problem = (
            f'the fleet moved to {mark.other} at {mark.at:%Y-%m-%d %H:%M} UTC; set url = "{mark.other}" in [database] '
            "of fleet.toml. Only if that database is lost: edge-fleet migrate --undo-move"
        )
        raise ConfigurationError(problem, file=str(place))
