"""Backup of the whole database into one file while it is in use, and its restore."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from fleet.controller.database import assignments, changes, migrate, numbers
from fleet.controller.database.engine import Database, open_database
from fleet.controller.database.place import DatabaseLocation
from fleet.controller.database.settings import DatabaseSettings
from gateway.common.domain.errors import ConfigurationError, UnreachableError
from gateway.common.files.durable import sync_folder

PART_SUFFIX = ".part"
POSTGRESQL = b"PGDMP"
"""First bytes of a file in pg_dump's custom format."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A backup. `revision`: of the tables in it."""

    file: Path
    size_bytes: int
    revision: str


def save(database: Database, file: Path) -> Saved:
    """Copy the database to `file` (0600, replaced whole), as of one moment, and read the copy to check it.

    Raise ConfigurationError if the copy fails or is damaged, AwayError, OSError; then an older file stays.
    """
    found = migrate.revision(database)
    with _replacing(file) as part:
        if database.place.file is None:
            _dump(database.place, part, database.settings)
        else:
            _copy(database.place.file, part)
        size_bytes = part.stat().st_size
    return Saved(file, size_bytes, found)


def is_backup(file: Path) -> bool:
    """Return whether the file begins as a backup does, or is empty. Raise OSError."""
    with file.open("rb") as opened:
        return opened.read(16).startswith((b"SQLite format 3\0", POSTGRESQL)) or not file.stat().st_size


def restore(file: Path, place: DatabaseLocation, settings: DatabaseSettings | None = None) -> Saved:
    """Restore a backup where no database is yet.

    Its tables are migrated, and assignment versions leap over those that were issued since the backup, because devices
    would refuse those. No `edge-fleet serve` may run meanwhile. Raise ConfigurationError if there is a database
    already, or the backup is damaged; OSError.
    """
    settings = settings or DatabaseSettings()
    with file.open("rb") as opened:
        dumped = opened.read(len(POSTGRESQL)) == POSTGRESQL
    if dumped != (place.file is None):
        kinds = ("PostgreSQL", "SQLite") if dumped else ("SQLite", "PostgreSQL")
        problem = f"is not a backup of {kinds[1]}: one of {kinds[0]} is restored into {kinds[0]}; see [database] url"
        raise ConfigurationError(problem, file=str(file))
    if place.file is None:
        return _restore_server(file, place, settings)
    if place.file.exists() and place.file.stat().st_size:
        raise ConfigurationError("exists already; move it away first, with its -wal", file=str(place.file))
    place.file.parent.mkdir(parents=True, exist_ok=True)
    with _replacing(place.file) as part:
        _copy(file, part)
        revision = _made_current(file, DatabaseLocation(place.url.set(database=str(part))), settings)
        _single(part)
    return Saved(place.file, place.file.stat().st_size, revision)


def _restore_server(file: Path, place: DatabaseLocation, settings: DatabaseSettings) -> Saved:
    with closing(open_database(place, settings)) as database, database.write() as connection:
        if {*sa.inspect(connection).get_table_names()} - {migrate.UNFINISHED.name}:
            raise ConfigurationError("holds tables already; restore into an empty database", file=str(place))
        migrate.UNFINISHED.create(connection, checkfirst=True)
    options = ("--no-owner", "--no-privileges", "--exit-on-error", "--single-transaction")
    _run(["pg_restore", *options, f"--dbname={place.setting}", str(file)], place, settings)
    return Saved(file, file.stat().st_size, _made_current(file, place, settings))


def _made_current(file: Path, place: DatabaseLocation, settings: DatabaseSettings) -> str:
    with closing(open_database(place, settings)) as database:
        if not migrate.revision(database):
            raise ConfigurationError("holds no tables of edge-fleet; it is not one of its backups", file=str(file))
        with database.write() as connection:
            try:
                migrate.refuse_revision(place, connection)
            except ConfigurationError as error:
                filled = (
                    "" if place.file else ". The database that was to be filled is so now: drop it and create it again"
                )
                raise ConfigurationError(f"{error.problem}{filled}", file=str(file)) from None
            assignments.leap(connection, settings.restore_leap)
            changes.leap(connection, settings.restore_leap)
            numbers.leap(connection, settings.restore_leap)
            migrate.UNFINISHED.drop(connection, checkfirst=True)
        return migrate.upgrade(database)


@contextmanager
def _replacing(file: Path) -> Iterator[Path]:
    """Yield an empty file (0600) in the same folder. At the end it is synced and renamed to `file`."""
    part = file.with_name(f".{file.name}{PART_SUFFIX}")
    part.unlink(missing_ok=True)
    os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        yield part
        with part.open("rb+") as written:
            os.fsync(written.fileno())
        part.replace(file)
    finally:
        for left in (part, *(part.with_name(part.name + end) for end in ("-wal", "-shm", "-journal"))):
            left.unlink(missing_ok=True)
    sync_folder(file.parent)


def _copy(source: Path, copy: Path) -> None:
    """Copy by SQLite's online backup: concurrent writers are not blocked, and their changes are not in the copy."""
    uri = source.absolute().as_uri()
    try:
        with closing(sqlite3.connect(f"{uri}?mode=ro", uri=True)) as reading, closing(sqlite3.connect(copy)) as writing:
            reading.backup(writing)
            _check(writing)
    except sqlite3.Error as error:
        raise ConfigurationError(f"cannot be copied: {error}", file=str(source)) from None
    _single(copy)


def _check(opened: sqlite3.Connection) -> None:
    found = [row[0] for row in opened.execute("PRAGMA integrity_check(5)")]
    found += [f"{table} refers to missing rows" for table, *_ in opened.execute("PRAGMA foreign_key_check")][:5]
    if found != ["ok"]:
        raise sqlite3.DatabaseError(f"it is damaged: {'; '.join(found)!s:.500}")


def _single(file: Path) -> None:
    """Turn the database into one file, without a write-ahead log."""
    with closing(sqlite3.connect(file)) as opened:
        opened.execute("PRAGMA journal_mode = DELETE")


def _dump(place: DatabaseLocation, part: Path, settings: DatabaseSettings) -> None:
    options = ("--format=custom", "--no-owner", "--no-privileges", "--no-password")
    _run(["pg_dump", *options, f"--file={part}", f"--dbname={place.setting}"], place, settings)
    _run(["pg_restore", f"--file={os.devnull}", str(part)], place, settings)  # reads all of it


def _run(command: list[str], place: DatabaseLocation, settings: DatabaseSettings) -> None:
    name, *arguments = command
    program = shutil.which(name)
    if program is None:
        raise UnreachableError(f"{name} is not installed: apt-get install postgresql-client")
    password = {"PGPASSWORD": str(place.url.password)} if place.url.password else {}
    try:
        done = subprocess.run(
            [program, *arguments],  # without the password: others see what programs were called with
            env={**os.environ, **password, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=settings.dump_timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UnreachableError(f"{name} took longer than {settings.dump_timeout_s:g} s", file=str(place)) from None
    if done.returncode != 0:
        raise ConfigurationError(f"{name} failed: {done.stderr.strip()[-500:]}", file=str(place))
