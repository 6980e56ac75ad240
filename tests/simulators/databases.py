"""The controller's database of each kind, migrated and empty."""

from __future__ import annotations

import atexit
import itertools
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from fleet.controller.database import devices, migrate
from fleet.controller.database.engine import Database, open_database
from fleet.controller.database.place import read_place
from fleet.controller.database.settings import DatabaseSettings
from fleet.controller.database.tables import metadata
from tests.simulators.postgres import shared_cluster

KINDS = ("sqlite", "postgresql")
ALIKE = ("sqlite", pytest.param("postgresql", marks=pytest.mark.long))
"""Kinds of tests whose SQL test_fleet_database_* holds on both: there, PostgreSQL takes part in `make test-long`."""
NOW = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=timezone.utc)
TEMPLATE = "fleet_template"
_numbers = itertools.count(1)


@contextmanager
def made(
    kind: str, folder: Path, settings: DatabaseSettings | None = None, *, empty: bool = False
) -> Iterator[Database]:
    """Open a new database; `empty`: without tables."""
    with url(kind, folder, empty=empty) as text, closing(open_database(read_place(text, folder), settings)) as database:
        yield database


@contextmanager
def url(kind: str, folder: Path, *, empty: bool = False) -> Iterator[str]:
    """Yield the URL of a new database, which is deleted at the end."""
    if kind == "sqlite":
        file = folder / f"fleet-{next(_numbers)}.sqlite"
        if not empty:
            shutil.copyfile(_sqlite_template(), file)
        yield f"sqlite:///{file}"
        return
    name = f"fleet_{next(_numbers)}"
    shared_cluster().do(f"CREATE DATABASE {name}" + ("" if empty else f" TEMPLATE {_postgres_template()}"))
    try:
        yield shared_cluster().url(name)
    finally:
        shared_cluster().do(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def copied(kind: str, text: str) -> Iterator[str]:
    """Yield the URL of a copy of such a database, which is removed at the end. No program has it open meanwhile."""
    if kind == "sqlite":
        file = Path(text.removeprefix("sqlite:///"))
        copy = file.with_name(f"copy-{next(_numbers)}.sqlite")
        shutil.copyfile(file, copy)
        yield f"sqlite:///{copy}"
        return
    name, original = f"copy_{next(_numbers)}", text.partition("@/")[2].partition("?")[0]
    shared_cluster().do(f"CREATE DATABASE {name} TEMPLATE {original}")
    try:
        yield shared_cluster().url(name)
    finally:
        shared_cluster().do(f"DROP DATABASE {name} WITH (FORCE)")


def waiting(opened: Database) -> int:
    """Return how many transactions of this PostgreSQL database wait for a lock."""
    held = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with opened.glance() as connection:
        return int(connection.execute(sa.text(held)).scalar_one())


@pytest.fixture(params=KINDS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """Open a database of each kind."""
    with made(request.param, tmp_path) as opened:
        yield opened


@pytest.fixture(params=ALIKE)
def alike_database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """Open a database; import it as `database`, where locks, conflicts and SQL of its own are not the subject."""
    with made(request.param, tmp_path) as opened:
        yield opened


def enrolled(database: Database, *names: str) -> None:
    """Enrol devices."""
    with database.write() as connection:
        for name in names:
            devices.enrol(connection, name, NOW)


def content(database: Database) -> dict[str, list[tuple[Any, ...]]]:
    """Return all rows, by table."""
    with database.read() as connection:
        return {
            table.name: sorted(tuple(row) for row in connection.execute(sa.text(f"SELECT * FROM {table.name}")))  # noqa: S608
            for table in metadata.sorted_tables
        }


def shape(database: Database) -> set[str]:
    """Return the schema as the database lists it."""
    with database.read() as connection:
        if connection.dialect.name == "sqlite":
            rows = connection.exec_driver_sql("SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite%'")
        else:
            rows = connection.exec_driver_sql(
                "SELECT relkind::text, relname, '' FROM pg_class WHERE relnamespace = 'public'::regnamespace UNION ALL "
                "SELECT 'trigger', tgname, tgrelid::regclass::text FROM pg_trigger WHERE NOT tgisinternal UNION ALL "
                "SELECT 'function', proname, '' FROM pg_proc WHERE pronamespace = 'public'::regnamespace"
            )
        return {str(tuple(row)) for row in rows}


@cache
def _sqlite_template() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="edge-fleet-db-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    file = folder / "template.sqlite"
    _migrate(f"sqlite:///{file}")
    return file


@cache
def _postgres_template() -> str:
    shared_cluster().do(f"CREATE DATABASE {TEMPLATE}")
    _migrate(shared_cluster().url(TEMPLATE))
    return TEMPLATE


def _migrate(text: str) -> None:
    with closing(open_database(read_place(text, Path()))) as opened:
        migrate.upgrade(opened)
