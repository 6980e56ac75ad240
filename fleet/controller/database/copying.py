"""Copy of all rows of one database into another one of either kind, with the values as the databases hold them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Table
from sqlalchemy.types import TypeDecorator

from fleet.controller.database.engine import Database
from fleet.controller.database.numbers import LAST_ID
from fleet.controller.database.tables import metadata, numbers

CHUNK_ROWS = 1_000
CHUNK_BYTES = 67_108_864
"""64 MiB: bound of a chunk in memory, if every value in it is as long as its column allows."""
Progress = Callable[[int, int], object]
"""Called with the number of rows that are copied and the number of all rows."""


def copy_rows(old: Database, source: Connection, target: Connection, total: int, progress: Progress) -> None:
    """Copy every table in the order of its foreign keys, chunk by chunk, and set the counters of the target."""
    done = 0
    progress(done, total)
    for table in metadata.sorted_tables:
        statement = sa.insert(_plain(table))
        for chunk in _chunks(old, source, table):
            target.execute(statement, chunk)
            done += len(chunk)
            progress(done, total)
    _set_counters(target)


def counts(connection: Connection) -> Mapping[str, int]:
    """Return the number of rows of every table."""
    return {
        table.name: int(connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())
        for table in metadata.sorted_tables
    }


def chunk_rows(table: Table) -> int:
    """Return how many rows of `table` are read at once."""
    longest = sum(getattr(column.type, "limit_bytes", 0) for column in table.columns)
    return max(1, min(CHUNK_ROWS, CHUNK_BYTES // max(1, longest)))


def _chunks(old: Database, source: Connection, table: Table) -> Iterator[Sequence[dict[str, Any]]]:
    """Yield the rows of a table in chunks.

    Errors are translated here for the source: the caller's transaction would name the target.
    """
    plain = _plain(table)
    ordered = sa.select(plain).order_by(*(plain.c[column.name] for column in table.primary_key))
    with old.translated():
        rows = source.execute(ordered, execution_options={"yield_per": chunk_rows(table)})
        for chunk in rows.mappings().partitions():
            yield [dict(row) for row in chunk]


def _plain(table: Table) -> sa.TableClause:
    """Return `table` without conversions: documents are copied byte for byte, and not parsed."""
    kinds = {column.name: column.type for column in table.columns}
    plain = {name: kind.impl_instance if isinstance(kind, TypeDecorator) else kind for name, kind in kinds.items()}
    return sa.table(table.name, *(sa.column(name, kind) for name, kind in plain.items()))


def _set_counters(target: Connection) -> None:
    """Set PostgreSQL's sequences to the greatest number of each table. SQLite counts from that by itself."""
    if target.dialect.name != "postgresql":
        return
    for table in metadata.sorted_tables:
        column = table.autoincrement_column
        if column is not None:
            sequence = sa.func.pg_get_serial_sequence(table.name, column.name)
            ever = sa.select(numbers.c.value).where(numbers.c.name == LAST_ID % table.name).scalar_subquery()
            greatest = sa.func.greatest(sa.func.max(column), ever)
            target.execute(sa.select(sa.func.setval(sequence, sa.func.coalesce(greatest, 1), greatest.is_not(None))))
