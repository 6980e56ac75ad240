"""Verdicts and bare models' signatures between restarts: one SQLite file that several processes may share.

It is a cache. A file that SQLite cannot read is renamed, and a new one replaces it. A file of a newer version of
this program is not changed, and another file is used next to it. A row that cannot be read counts as absent. A row that
cannot be written stays in memory and is written with the next one. If the file itself cannot be written (read-only
file system, full disk, another owner), its rows are copied into a database in memory.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gateway.common.domain.verdict import (
    Signature,
    Verdict,
    read_signature,
    read_verdict,
    signature_document,
    verdict_document,
)
from gateway.common.files.locks import try_lock
from gateway.common.store.settings import StateSettings

if TYPE_CHECKING:
    from gateway.common.domain.statistics import MetricSample

Kept = TypeVar("Kept")
SCHEMA_VERSION = 2
LOCK_PAUSE_S = 0.01
"""Time between two attempts to take the lock of the folder."""
TABLES = ("verdict", "signature")
REMEDY = (
    "free space there, let the user of this process write there, or name another folder with --state, then restart "
    "(EG-213)"
)
_SCHEMA = """
CREATE TABLE IF NOT EXISTS verdict (key TEXT PRIMARY KEY, content TEXT NOT NULL, at_ms INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS signature (key TEXT PRIMARY KEY, content TEXT NOT NULL, at_ms INTEGER NOT NULL);
"""
_READ_ONLY = ("mode=ro", "immutable=1")
"""Parameters of SQLite's URIs (sqlite.org/uri.html), in the order of the attempts.

The second one ignores the write-ahead log, which can only be read if its index can be mapped.
"""
_log = logging.getLogger(__name__)


class _NewerSchemaError(sqlite3.OperationalError):
    """A file that a newer version of this program wrote."""


class StateStore:
    """Verdicts and signatures by key. Open it with `StateStore.open(folder)`. One thread at a time may use it.

    `problem` says why new rows are not written to the disk, with the remedy ("": they are).
    """

    def __init__(self, connection: sqlite3.Connection, folder: Path, settings: StateSettings, problem: str) -> None:
        self._connection, self._folder, self._settings = connection, folder, settings
        self._in_memory = bool(problem)
        self._unwritten: dict[tuple[str, str], str] = {}
        self.problem = problem
        self.write_failures = 0
        """Rows that were not written to the disk since this file was opened."""

    @classmethod
    def open(cls, folder: Path, settings: StateSettings | None = None) -> StateStore:
        """Open the file, and create it and its folder as needed. If it cannot be written, `problem` says why."""
        settings = settings or StateSettings()
        file = folder / "state.sqlite"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with _alone(folder, settings):
                return cls(_connect_or_renew(file, settings), folder, settings, "")
        except (OSError, sqlite3.Error) as error:
            return cls(_in_memory(file, settings), folder, settings, _problem(folder, error))

    def verdict(self, key: str) -> Verdict | None:
        """Return the verdict for `key`, or None."""
        return self._get("verdict", key, read_verdict)

    def keep_verdict(self, key: str, verdict: Verdict) -> None:
        """Store `verdict`, replacing an earlier one."""
        self._put("verdict", key, verdict_document(verdict))

    def signature(self, digest: str) -> Signature | None:
        """Return the signature of the bare model with this digest, or None."""
        return self._get("signature", digest, read_signature)

    def keep_signature(self, digest: str, signature: Signature) -> None:
        """Store the signature of a bare model."""
        self._put("signature", digest, signature_document(signature))

    def samples(self) -> Iterable[MetricSample]:
        """Yield the metrics of the state, as METRICS.md describes them."""
        from gateway.common.domain.statistics import MetricSample

        failures, writable = "edge_gateway_state_write_failures_total", "edge_gateway_state_writable"
        yield MetricSample(failures, "Verdicts that did not reach the disk.", self.write_failures)
        yield MetricSample(writable, "1 while verdicts reach the disk, else 0.", float(not self.problem), counter=False)

    def close(self) -> None:
        """Write the rows that could not be written before, and close the file. Calling it twice is harmless."""
        if self._unwritten:
            self._write()
        self._connection.close()

    def _get(self, table: str, key: str, read: Callable[[Any], Kept]) -> Kept | None:
        query = f"SELECT content FROM {table} WHERE key = ?"  # noqa: S608  a name of this file
        row: tuple[str] | None
        try:
            if unwritten := self._unwritten.get((table, key)):
                row = (unwritten,)
            else:
                row = self._connection.execute(query, (key,)).fetchone()
            return None if row is None else read(json.loads(row[0]))
        except (sqlite3.DatabaseError, ValueError, TypeError, KeyError):  # damaged, or of another version
            return None

    def _put(self, table: str, key: str, content: object) -> None:
        self._unwritten.pop((table, key), None)
        self._unwritten[table, key] = json.dumps(content)
        self._write()

    def _write(self) -> None:
        """Write the rows that wait for the disk. If that fails, the newest `verdicts_limit` of them wait again."""
        now_ms, limit = time.time_ns() // 1_000_000, self._settings.verdicts_limit
        try:
            with self._connection:
                for (table, key), text in self._unwritten.items():
                    row = (key, text, now_ms)
                    self._connection.execute(f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?)", row)  # noqa: S608
                for table in {table for table, _ in self._unwritten}:
                    # by rowid, which only grows: many boards start without the correct time
                    kept = f"SELECT rowid FROM {table} ORDER BY rowid DESC LIMIT ?"  # noqa: S608
                    self._connection.execute(f"DELETE FROM {table} WHERE rowid NOT IN ({kept})", (limit,))  # noqa: S608
        except sqlite3.Error as error:
            for oldest in list(self._unwritten)[:-limit]:
                del self._unwritten[oldest]
            self._written(_problem(self._folder, error))
        else:
            self._unwritten.clear()
            self._written(self.problem if self._in_memory else "")

    def _written(self, problem: str) -> None:
        self.write_failures += bool(problem)
        if problem and not self.problem:
            _log.warning("%s", problem)
        if self.problem and not problem:
            _log.info("the state in %s is written again", self._folder)
        self.problem = problem


@contextmanager
def _alone(folder: Path, settings: StateSettings) -> Iterator[None]:
    """Hold the folder's lock: two processes that rename the file at once would remove each other's new one.

    Raises TimeoutError if another process holds it for `busy_timeout_ms`.
    """
    with (folder / "state.lock").open("w") as lock:
        end_s = time.monotonic() + settings.busy_timeout_ms / 1000
        while not try_lock(lock):
            if time.monotonic() >= end_s:
                raise TimeoutError(f"another process has held {lock.name} for {settings.busy_timeout_ms} ms")
            time.sleep(LOCK_PAUSE_S)
        yield


def _connect_or_renew(file: Path, settings: StateSettings) -> sqlite3.Connection:
    try:
        return _connect(file, settings)
    except _NewerSchemaError as error:
        own = file.with_name(f"{file.stem}-schema-{SCHEMA_VERSION}{file.suffix}")
        _log.warning("%s; it stays as it is, and verdicts go to %s until that version runs again", error, own)
        return _connect(own, settings)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):
            raise
        # a log left behind does no harm: SQLite deletes the log of a database that has no page yet
        file.replace(file.with_name(f"{file.name}.unreadable-{time.time_ns()}"))
        return _connect(file, settings)


def _problem(folder: Path, error: Exception) -> str:
    return f"the state in {folder} cannot be written: {error}; new verdicts stay in memory; {REMEDY}"


def _in_memory(file: Path, settings: StateSettings) -> sqlite3.Connection:
    """Return a database in memory with the newest `verdicts_limit` rows of each table of `file`, if it can be read."""
    memory = _connect(":memory:", settings)
    for parameter in _READ_ONLY:
        with suppress(sqlite3.Error, OSError):
            for table, rows in _rows(f"{file.absolute().as_uri()}?{parameter}", settings).items():
                memory.executemany(f"INSERT INTO {table} VALUES (?, ?, ?)", rows)  # noqa: S608  a name of this file
            memory.commit()
            return memory
        memory.rollback()
    return memory


def _rows(uri: str, settings: StateSettings) -> dict[str, list[tuple[object, ...]]]:
    """Return (key, content, time) of each table, the oldest first. Raises sqlite3.Error."""
    newest = "SELECT key, content, at_ms FROM {} ORDER BY rowid DESC LIMIT ?"
    with closing(sqlite3.connect(uri, uri=True, timeout=settings.busy_timeout_ms / 1000)) as kept:
        if kept.execute("PRAGMA user_version").fetchone()[0] != SCHEMA_VERSION:
            return {}
        limit = (settings.verdicts_limit,)
        return {table: kept.execute(newest.format(table), limit).fetchall()[::-1] for table in TABLES}


def _connect(file: Path | str, settings: StateSettings) -> sqlite3.Connection:
    connection = sqlite3.connect(file, timeout=settings.busy_timeout_ms / 1000, check_same_thread=False)
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            written = f"{file} was written by a newer version of edge-gateway"
            raise _NewerSchemaError(f"{written} (schema {version}; this version reads {SCHEMA_VERSION})")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        if version not in {0, SCHEMA_VERSION}:
            connection.executescript("DROP TABLE IF EXISTS verdict; DROP TABLE IF EXISTS signature;")
        connection.executescript(_SCHEMA)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    except sqlite3.Error:
        connection.close()
        raise
    return connection
