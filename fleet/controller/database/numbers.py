"""Single numbers, by name."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import Connection

from fleet.controller.database.engine import adding
from fleet.controller.database.tables import numbers


def put(connection: Connection, name: str, value: int) -> None:
    """Store a number in place of an earlier one."""
    add = adding(connection, numbers).values(name=name, value=value)
    connection.execute(add.on_conflict_do_update(index_elements=[numbers.c.name], set_={"value": value}))


def read(connection: Connection, name: str) -> int | None:
    """Return a number, or None if it was never stored."""
    found = connection.execute(_NUMBER, {"of": name}).scalar_one_or_none()
    return None if found is None else int(found)


_NUMBER = sa.select(numbers.c.value).where(numbers.c.name == sa.bindparam("of", type_=numbers.c.name.type))
