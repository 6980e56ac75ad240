"""SQLite file of the journal: safe settings, migrations, and one transaction at a time."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from gateway.files import durable
from gateway.store.errors import DamagedError, SpaceError, StoreAbsentError, StoreError, store_errors
from gateway.store.settings import JournalSettings

Value = TypeVar("Value")
NAME = "journal.sqlite"
ASIDE = "journal.sqlite.damaged"
"""Name of a damaged journal after `set_aside`."""
_REMEDY = "run edge-agent recover; it begins a new journal, without the floors that keep older releases out"
_DAMAGED_CODES = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_UPDATE = """activation TEXT NOT NULL, step TEXT NOT NULL, assignment_version INTEGER NOT NULL,
    started_at TEXT NOT NULL, content TEXT NOT NULL"""
_FALLS = "BEGIN SELECT raise(ABORT, 'a floor never falls'); END"
_FIRST = (
    "CREATE TABLE floor (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE version_floor (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    """CREATE TABLE assignment (id INTEGER PRIMARY KEY CHECK (id = 1), digest TEXT NOT NULL, content BLOB NOT NULL,
        document TEXT NOT NULL)""",
    f"CREATE TABLE update_under_way (slot TEXT PRIMARY KEY, {_UPDATE}) WITHOUT ROWID",
    f"CREATE TABLE finished (id INTEGER PRIMARY KEY AUTOINCREMENT, slot TEXT NOT NULL, {_UPDATE})",
    """CREATE TABLE rejected (id INTEGER PRIMARY KEY AUTOINCREMENT, slot TEXT NOT NULL, release TEXT NOT NULL,
        reason TEXT NOT NULL, at TEXT NOT NULL, UNIQUE (slot, release))""",
    "CREATE TABLE fact (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    # enforced in the file, whatever program changes it: a floor is never lowered and never removed
    f"""CREATE TRIGGER floor_rises_anew BEFORE INSERT ON floor
        WHEN EXISTS (SELECT 1 FROM floor WHERE name = new.name AND value > new.value) {_FALLS}""",  # noqa: S608  a constant
    f"""CREATE TRIGGER floor_rises BEFORE UPDATE ON floor
        WHEN new.value < old.value OR new.name <> old.name {_FALLS}""",
    f"CREATE TRIGGER floor_stays BEFORE DELETE ON floor {_FALLS}",
    f"CREATE TRIGGER version_floor_stays BEFORE DELETE ON version_floor {_FALLS}",
)
_ATTEMPTS = ("ALTER TABLE rejected ADD COLUMN attempt INTEGER NOT NULL DEFAULT 0",)
MIGRATIONS: Mapping[int, Sequence[str]] = {0: _FIRST, 1: _ATTEMPTS}
"""Statements that migrate a file from this schema version to the next; 0 is an empty file."""
SCHEMA_VERSION = max(MIGRATIONS) + 1


class JournalFile:
    """Connection to the file. The journal supplies the statements; values are always bound."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection

    @classmethod
    def create(cls, folder: Path, settings: JournalSettings) -> JournalFile:
        """Open the file, and initialise it if it is absent or empty."""
        path = folder / NAME
        with store_errors(path):
            durable.make_folder(folder)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            durable.sync_folder(folder)
        return cls._open(path, settings, least=0)

    @classmethod
    def open(cls, folder: Path, settings: JournalSettings) -> JournalFile:
        """Open the file. Raises AbsentError, DamagedError or StoreError, each with a remedy."""
        path = folder / NAME
        if not path.is_file():
            raise StoreAbsentError(f"there is no journal; {_REMEDY}", file=path)
        return cls._open(path, settings, least=1)

    @classmethod
    def _open(cls, path: Path, settings: JournalSettings, *, least: int) -> JournalFile:
        with _store_errors(path):
            connection = _connect(path, settings)
            file = cls(path, connection)
            try:
                file._check(least)
                file._migrate()
            except BaseException:  # raised again: the descriptor must not stay open
                file.close()
                raise
        return file

    def close(self) -> None:
        """Close the file. Calling it twice is harmless."""
        self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run the block in one transaction, which is on the disk at the end. Raises StoreError."""
        with _store_errors(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # SQLite itself ends the transaction if the disk is full
                    self._connection.execute("ROLLBACK")
                raise

    def do(self, statement: str, values: Sequence[Any] = ()) -> None:
        """Run one statement in the current transaction."""
        self._connection.execute(statement, values)

    def ask(self, query: str, values: Sequence[Any] = ()) -> list[sqlite3.Row]:
        """Return all rows of a query. Raises StoreError."""
        with _store_errors(self.path):
            return self._connection.execute(query, values).fetchall()

    def read(self, reader: Callable[[sqlite3.Row], Value], row: sqlite3.Row) -> Value:
        """Convert a row to a value. Raises DamagedError for a row that this program cannot have written."""
        try:
            return reader(row)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DamagedError(
                f"holds a row that cannot be read ({error!s:.200}); {_REMEDY}", file=self.path
            ) from error

    def _check(self, least: int) -> None:
        version = self._version()
        if version > SCHEMA_VERSION:
            problem = f"was written by a newer edge-agent (schema {version}, known is {SCHEMA_VERSION}); install that"
            raise StoreError(problem, file=self.path)
        if version < least:
            raise DamagedError(f"holds nothing, though it should; {_REMEDY}", file=self.path)
        problems = self._connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if problems != "ok":
            raise DamagedError(f"is damaged: {problems!s:.200}; {_REMEDY}", file=self.path)

    def _migrate(self) -> None:
        """Migrate step by step, each in one transaction and once: another process may open the file meanwhile."""
        while self._version() < SCHEMA_VERSION:
            with self.transaction():
                if (version := self._version()) < SCHEMA_VERSION:
                    for statement in MIGRATIONS[version]:
                        self.do(statement)
                    self.do(f"PRAGMA user_version = {version + 1}")

    def _version(self) -> int:
        return int(self._connection.execute("PRAGMA user_version").fetchone()[0])


def set_aside(folder: Path) -> None:
    """Rename a damaged journal, replacing an earlier one; without a journal, do nothing. Raises StoreError."""
    path = folder / NAME
    with store_errors(path):
        if path.exists():
            durable.rename(path, path.with_name(ASIDE))
        durable.remove_file(path.with_name(f"{NAME}-journal"))  # a rollback journal belongs to the old file


def _connect(path: Path, settings: JournalSettings) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"file:{_quoted(path)}?mode=rw", uri=True, timeout=settings.busy_timeout_ms / 1000, isolation_level=None
    )
    connection.row_factory = sqlite3.Row
    try:
        # SQLite commits by deleting the rollback journal and, at FULL, does not wait until the deletion is on the disk:
        # a power failure then undoes a commit. It waits for a truncation
        # (https://sqlite.org/pragma.html#pragma_synchronous).
        connection.execute("PRAGMA journal_mode = TRUNCATE")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _quoted(path: Path) -> str:
    from urllib.parse import quote

    return quote(str(path.absolute()))


@contextmanager
def _store_errors(path: Path) -> Iterator[None]:
    """Convert errors of SQLite to StoreError with a remedy."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # the low byte: the primary code
        if code in _DAMAGED_CODES:
            raise DamagedError(f"is damaged: {error}; {_REMEDY}", file=path) from error
        if code == sqlite3.SQLITE_FULL:
            raise SpaceError("no room on the disk; free some: nothing was recorded", file=path) from error
        if code == sqlite3.SQLITE_BUSY:
            raise StoreError("another process holds it; stop that one, or try again", file=path) from error
        raise StoreError(f"{error}; see that the file is there and writable", file=path) from error
