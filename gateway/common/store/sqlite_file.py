"""SQLite file of the store: private, safe settings, one transaction at a time, and errors with a remedy."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from gateway.common.files import durable as disk
from gateway.common.store.errors import DamagedError, SpaceError, StoreError, store_errors

Value = TypeVar("Value")
Values = Sequence[Any] | Mapping[str, Any]
FULL, BUSY = "database or disk is full", "database is locked"
"""Messages of SQLITE_FULL and SQLITE_BUSY (sqlite3_errstr)."""


class SqliteFile:
    """Connection to a file that exists. Its owner supplies the statements; values are always bound.

    `remedy`: what an operator does about a damaged file ("": nothing, its owner replaces it).
    """

    def __init__(self, path: Path, busy_timeout_ms: int, pragmas: Iterable[str], remedy: str = "") -> None:
        """Open the file. Raises DamagedError, StoreError."""
        self.path, self._remedy = path, remedy
        with self._store_errors():
            uri = f"{path.absolute().as_uri()}?mode=rw"
            self._connection = sqlite3.connect(uri, uri=True, timeout=busy_timeout_ms / 1000, isolation_level=None)
            self._connection.row_factory = sqlite3.Row
            with self.closed_on_error():
                for pragma in (*pragmas, "trusted_schema = OFF", "cell_size_check = ON"):
                    self._connection.execute(f"PRAGMA {pragma}")

    def check_pages(self) -> None:
        """Check every page. Raises DamagedError, StoreError."""
        problems = self.ask("PRAGMA integrity_check(1)")[0][0]
        if problems != "ok":
            raise self.damage(f"is damaged: {problems!s:.200}")

    def close(self) -> None:
        """Close the file. Calling it twice is harmless."""
        self._connection.close()

    @contextmanager
    def closed_on_error(self) -> Iterator[None]:
        """Close the file if the block raises: the descriptor must not stay open."""
        try:
            yield
        except BaseException:  # raised again
            self.close()
            raise

    def begin(self, schema: Iterable[str], version: int) -> int:
        """Make the tables of an empty file. Return the version of its schema. Raises DamagedError, StoreError."""
        if not self.version():
            with self.transaction():
                if not self.version():  # still: another process may have opened it meanwhile
                    if self.ask("SELECT 1 FROM sqlite_schema LIMIT 1"):
                        raise self.damage("is of another program or version (schema 0)")
                    for statement in (*schema, f"PRAGMA user_version = {version}"):
                        self.do(statement)
        return self.version()

    def version(self) -> int:
        """Return the version of the schema; 0 for an empty file. Raises StoreError."""
        return int(self.ask("PRAGMA user_version")[0][0])

    @contextmanager
    def transaction(self, *, durable: bool = True) -> Iterator[None]:
        """Run the block in one transaction; `durable`: it is on the disk at the end. Raises StoreError."""
        with self._store_errors():
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:  # raised again
                if self._connection.in_transaction:  # SQLite itself ends the transaction if the disk is full
                    self._connection.execute("ROLLBACK")
                raise

    def do(self, statement: str, values: Values = ()) -> int:
        """Run one statement in the current transaction; return the number of changed rows."""
        return self._connection.execute(statement, values).rowcount

    def ask(self, query: str, values: Values = ()) -> list[sqlite3.Row]:
        """Return all rows of a query. Raises StoreError."""
        with self._store_errors():
            return self._connection.execute(query, values).fetchall()

    def read(self, reader: Callable[[sqlite3.Row], Value], row: sqlite3.Row) -> Value:
        """Convert a row to a value. Raises DamagedError for a row that this program cannot have written."""
        try:
            return reader(row)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise self.damage(f"holds a row that cannot be read ({error!s:.200})") from error

    def damage(self, problem: str) -> DamagedError:
        """Return the error for a file that cannot be trusted."""
        return DamagedError(f"{problem}; {self._remedy}" if self._remedy else problem, file=self.path)

    @contextmanager
    def _store_errors(self) -> Iterator[None]:
        """Convert errors of SQLite to StoreError with a remedy."""
        try:
            yield
        except sqlite3.Error as error:
            # Python 3.10 does not tell SQLite's code. This class itself: SQLITE_CORRUPT and SQLITE_NOTADB
            if type(error) is sqlite3.DatabaseError:
                raise self.damage(f"is damaged: {error}") from error
            if str(error) == FULL:
                raise SpaceError("no room on the disk; free some: nothing was recorded", file=self.path) from error
            if str(error) == BUSY:
                raise StoreError("another process holds it; stop that one, or try again", file=self.path) from error
            raise StoreError(f"{error}; see that the file is there and writable", file=self.path) from error


def make_private(path: Path) -> None:
    """Create an empty file that only its owner reads, if there is none. Raises StoreError."""
    with store_errors(path):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))


def set_aside(path: Path) -> None:
    """Rename a damaged file to NAME.damaged, replacing an earlier one; its logs are removed. Raises StoreError."""
    with store_errors(path):
        for suffix in ("-journal", "-wal", "-shm"):
            disk.remove_file(path.with_name(f"{path.name}{suffix}"))
        if path.exists():
            disk.rename(path, path.with_name(f"{path.name}.damaged"))
