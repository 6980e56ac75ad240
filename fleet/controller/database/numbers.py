"""Single numbers, by name, and ids that no row had before: devices, changes and scripts remember them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy import Connection, Table

from fleet.controller.database.engine import adding
from fleet.controller.database.tables import api_tokens, diagnostics, enrolment_tokens, events, numbers

REMEMBERED = (events, diagnostics, enrolment_tokens, api_tokens)
"""Tables whose ids are remembered elsewhere."""
LAST_ID = "%s, last"
"""Name of the greatest id of a table."""


def put(connection: Connection, name: str, value: int) -> None:
    """Store a number in place of an earlier one."""
    add = adding(connection, numbers).values(name=name, value=value)
    connection.execute(add.on_conflict_do_update(index_elements=[numbers.c.name], set_={"value": value}))


def read(connection: Connection, name: str) -> int | None:
    """Return a number, or None if it was never stored."""
    found = connection.execute(_NUMBER, {"of": name}).scalar_one_or_none()
    return None if found is None else int(found)


def identified(connection: Connection, table: Table, rows: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """Return new rows with their ids. SQLite would give the id of the newest row again after that was deleted."""
    if connection.dialect.name != "sqlite":
        return [dict(row) for row in rows]  # by the table's sequence
    last = last_id(connection, table)
    put(connection, LAST_ID % table.name, last + len(rows))
    return [{"id": number, **row} for number, row in enumerate(rows, last + 1)]


def last_id(connection: Connection, table: Table) -> int:
    """Return the greatest id that a row of the table has, or had on SQLite."""
    greatest = connection.execute(sa.select(sa.func.max(table.c.id))).scalar()
    return max(greatest or 0, read(connection, LAST_ID % table.name) or 0)


def leap(connection: Connection, by: int) -> None:
    """Skip ids that a lost controller can have given."""
    for table in REMEMBERED:
        value = last_id(connection, table) + by
        if connection.dialect.name == "sqlite":
            put(connection, LAST_ID % table.name, value)
        else:
            connection.execute(sa.select(sa.func.setval(sa.func.pg_get_serial_sequence(table.name, "id"), value)))


_NUMBER = sa.select(numbers.c.value).where(numbers.c.name == sa.bindparam("of", type_=numbers.c.name.type))
