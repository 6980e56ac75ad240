"""Verdicts and bare models' signatures between restarts: one SQLite file that several processes may share.

It is a cache: a file that SQLite cannot read is set aside under another name and begun anew, a row that cannot be
read counts as absent, and what cannot be written (a full disk) is remembered until the process ends.
"""

from __future__ import annotations

import fcntl
import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from gateway.domain.errors import ConfigurationError
from gateway.domain.verdict import (
    Signature,
    Verdict,
    read_signature,
    read_verdict,
    signature_document,
    verdict_document,
)
from gateway.store.settings import StateSettings

Kept = TypeVar("Kept")
SCHEMA_VERSION = 2
_SCHEMA = """
CREATE TABLE IF NOT EXISTS verdict (key TEXT PRIMARY KEY, content TEXT NOT NULL, at_ms INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS signature (key TEXT PRIMARY KEY, content TEXT NOT NULL, at_ms INTEGER NOT NULL);
"""


class State:
    """Open with `State.open(folder)`; close when done. Used by one thread at a time."""

    def __init__(self, connection: sqlite3.Connection, settings: StateSettings) -> None:
        self._connection = connection
        self._settings = settings
        self._unwritten: dict[tuple[str, str], str] = {}
        self.write_failures = 0
        """Rows that SQLite refused to write since this file was opened."""

    @classmethod
    def open(cls, folder: Path, settings: StateSettings | None = None) -> State:
        """Create folder and file as needed. Raises ConfigurationError where the folder cannot be written."""
        settings = settings or StateSettings()
        file = folder / "state.sqlite"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with _alone(folder):
                return cls(_connect_or_renew(file, settings), settings)
        except (OSError, sqlite3.OperationalError) as error:
            problem = f"the state cannot be kept here: {error}; name a writable folder with --state"
            raise ConfigurationError(problem, file=str(folder)) from error

    def verdict(self, key: str) -> Verdict | None:
        """The verdict kept under `key`, or None."""
        return self._get("verdict", key, read_verdict)

    def keep_verdict(self, key: str, verdict: Verdict) -> None:
        """Keep `verdict`, replacing what was there."""
        self._put("verdict", key, verdict_document(verdict))

    def signature(self, digest: str) -> Signature | None:
        """The signature kept for a bare model of this digest, or None."""
        return self._get("signature", digest, read_signature)

    def keep_signature(self, digest: str, signature: Signature) -> None:
        """Keep what a runtime said of a bare model."""
        self._put("signature", digest, signature_document(signature))

    def close(self) -> None:
        """Close the file. Calling it twice is harmless."""
        self._connection.close()

    def _get(self, table: str, key: str, read: Callable[[Any], Kept]) -> Kept | None:
        content = self._unwritten.get((table, key)) or self._row(table, key)
        try:
            return None if content is None else read(json.loads(content))
        except (ValueError, TypeError, KeyError):  # damaged, or written by another version of this program
            return None

    def _row(self, table: str, key: str) -> str | None:
        query = f"SELECT content FROM {table} WHERE key = ?"  # noqa: S608  a name of this file
        try:
            row = self._connection.execute(query, (key,)).fetchone()
        except sqlite3.DatabaseError:
            return None
        return row[0] if row else None

    def _put(self, table: str, key: str, content: object) -> None:
        text, now_ms = json.dumps(content), time.time_ns() // 1_000_000
        try:
            with self._connection:
                self._connection.execute(f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?)", (key, text, now_ms))  # noqa: S608
                self._connection.execute(
                    # by rowid, which only grows: many boards start without knowing the time
                    f"DELETE FROM {table} WHERE rowid NOT IN (SELECT rowid FROM {table} ORDER BY rowid DESC LIMIT ?)",  # noqa: S608
                    (self._settings.verdicts_limit,),
                )
        except sqlite3.DatabaseError:
            self.write_failures += 1
            self._unwritten[table, key] = text
        else:
            self._unwritten.pop((table, key), None)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time opens the file: two that set it aside at once would take away each other's new one."""
    with (folder / "state.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _connect_or_renew(file: Path, settings: StateSettings) -> sqlite3.Connection:
    try:
        return _connect(file, settings)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):
            raise
        # a log left behind does no harm: SQLite deletes the log of a database that has no page yet
        file.replace(file.with_name(f"{file.name}.unreadable-{time.time_ns()}"))
        return _connect(file, settings)


def _connect(file: Path, settings: StateSettings) -> sqlite3.Connection:
    connection = sqlite3.connect(file, timeout=settings.busy_timeout_ms / 1000, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        if connection.execute("PRAGMA user_version").fetchone()[0] not in {0, SCHEMA_VERSION}:
            connection.executescript("DROP TABLE IF EXISTS verdict; DROP TABLE IF EXISTS signature;")
        connection.executescript(_SCHEMA)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    except sqlite3.Error:
        connection.close()
        raise
    return connection
