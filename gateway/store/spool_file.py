"""SQLite file of the spool: write-ahead log, synced as each transaction requires, renamed if it is damaged."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gateway.files import durable as disk
from gateway.store.errors import DamagedError, SpaceError, StoreError, store_errors
from gateway.store.settings import SpoolSettings

NAME = "spool.sqlite"
ASIDE = f"{NAME}.damaged"
"""Name of the last damaged spool, which is kept for an analysis."""
SCHEMA_VERSION = 1
_DAMAGED_CODES = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_WAL_PAGES = 256
"""Size of the log, in pages, at which it is merged into the file: 1 MiB."""
_SCHEMA = (
    """CREATE TABLE source (id INTEGER PRIMARY KEY AUTOINCREMENT, stream TEXT NOT NULL, boot_epoch INTEGER NOT NULL,
        last INTEGER NOT NULL, UNIQUE (stream, boot_epoch))""",
    """CREATE TABLE record (id INTEGER PRIMARY KEY AUTOINCREMENT, source INTEGER NOT NULL, seq INTEGER NOT NULL,
        priority INTEGER NOT NULL, at_us INTEGER NOT NULL, kind TEXT NOT NULL, payload TEXT NOT NULL,
        bytes INTEGER NOT NULL, UNIQUE (source, seq))""",
    "CREATE INDEX record_priority ON record (priority, id, bytes)",
    "CREATE INDEX record_at ON record (at_us)",
    """CREATE TABLE gap (source INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL, dropped TEXT NOT NULL,
        PRIMARY KEY (source, first)) WITHOUT ROWID""",
    "CREATE TABLE mark (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)
Values = Sequence[Any] | Mapping[str, Any]


class SpoolFile:
    """Connection to the file. The spool supplies the statements; values are always bound."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path, self._connection = path, connection

    @classmethod
    def open(cls, folder: Path, settings: SpoolSettings) -> SpoolFile:
        """Open the file. Raises DamagedError if it is no spool of this program, StoreError."""
        path = folder / NAME
        with store_errors(path):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        with _store_errors(path):
            file = cls(path, _connect(path, settings))
            try:
                file._begin()
            except BaseException:  # raised again: the descriptor must not stay open
                file.close()
                raise
        return file

    def close(self) -> None:
        """Close the file. Calling it twice is harmless."""
        self._connection.close()

    @contextmanager
    def transaction(self, *, durable: bool) -> Iterator[None]:
        """Run the block in one transaction; `durable`: it is on the disk at the end. Raises StoreError."""
        with _store_errors(self.path):
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:  # raised again
                if self._connection.in_transaction:  # SQLite itself ends the transaction if the disk is full
                    self._connection.execute("ROLLBACK")
                raise

    def sync(self) -> None:
        """Sync all records that were stored so far. Raises StoreError."""
        with _store_errors(self.path):
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def do(self, statement: str, values: Values = ()) -> None:
        """Run one statement in the current transaction."""
        self._connection.execute(statement, values)

    def count(self, statement: str, values: Values = ()) -> int:
        """Run one statement in the current transaction; return the number of changed rows."""
        return self._connection.execute(statement, values).rowcount

    def ask(self, query: str, values: Values = ()) -> list[sqlite3.Row]:
        """Return all rows of a query. Raises StoreError."""
        with _store_errors(self.path):
            return self._connection.execute(query, values).fetchall()

    def _begin(self) -> None:
        problems = self._connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if problems != "ok":
            raise DamagedError(f"is damaged: {problems!s:.200}", file=self.path)
        version = self._connection.execute("PRAGMA user_version").fetchone()[0]
        if version == SCHEMA_VERSION:
            return
        if version or self.ask("SELECT 1 FROM sqlite_schema LIMIT 1"):
            raise DamagedError(f"is of another program or version (schema {version})", file=self.path)
        with self.transaction(durable=True):
            for statement in _SCHEMA:
                self.do(statement)


def set_aside(folder: Path) -> None:
    """Rename a damaged spool, replacing an earlier one. Raises StoreError."""
    path = folder / NAME
    with store_errors(path):
        for suffix in ("-wal", "-shm"):
            disk.remove_file(path.with_name(f"{NAME}{suffix}"))
        disk.rename(path, path.with_name(ASIDE))


def _connect(path: Path, settings: SpoolSettings) -> sqlite3.Connection:
    """Connect to the file. The caller holds the store's lock.

    If two processes switch a new file to a write-ahead log at once, SQLite does not make one wait.
    """
    connection = sqlite3.connect(path, timeout=settings.busy_timeout_ms / 1000, isolation_level=None)
    connection.row_factory = sqlite3.Row
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_WAL_PAGES}")
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


@contextmanager
def _store_errors(path: Path) -> Iterator[None]:
    """Convert errors of SQLite to StoreError."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # the low byte: the primary code
        if code in _DAMAGED_CODES:
            raise DamagedError(f"is damaged: {error}", file=path) from error
        if code == sqlite3.SQLITE_FULL:
            raise SpaceError("no room on the disk; free some: nothing was recorded", file=path) from error
        raise StoreError(f"{error}; see that the file is there and writable", file=path) from error
