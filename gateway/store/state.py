"""Verdicts and bare models' signatures between restarts: one SQLite file that several processes may share.

It is a cache: a file that SQLite cannot read is set aside under another name and begun anew.
"""

from __future__ import annotations

import json
import sqlite3
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gateway.domain.errors import ConfigurationError
from gateway.domain.manifest import TensorSpec
from gateway.domain.tensor import DATATYPES
from gateway.domain.verdict import Measurement, Signature, Verdict
from gateway.store.settings import StateSettings

SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS verdict (key TEXT PRIMARY KEY, content TEXT NOT NULL, at_ms INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS signature (key TEXT PRIMARY KEY, content TEXT NOT NULL, at_ms INTEGER NOT NULL);
"""


class State:
    """Open with `State.open(folder)`; close when done. Used by one thread at a time."""

    def __init__(self, connection: sqlite3.Connection, settings: StateSettings) -> None:
        self._connection = connection
        self._settings = settings

    @classmethod
    def open(cls, folder: Path, settings: StateSettings | None = None) -> State:
        """Create folder and file as needed. Raises ConfigurationError where the folder cannot be written."""
        settings = settings or StateSettings()
        file = folder / "state.sqlite"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            return cls(_connect_or_renew(file, settings), settings)
        except (OSError, sqlite3.OperationalError) as error:
            problem = f"the state cannot be kept here: {error}; name a writable folder with --state"
            raise ConfigurationError(problem, file=str(folder)) from error

    def verdict(self, key: str) -> Verdict | None:
        """The verdict kept under `key`, or None."""
        content = self._get("verdict", key)
        if content is None:
            return None
        measured = content.pop("measured")
        return Verdict(**content, measured=Measurement(**measured) if measured else None)

    def keep_verdict(self, key: str, verdict: Verdict) -> None:
        """Keep `verdict`, replacing what was there."""
        self._put("verdict", key, asdict(verdict))

    def signature(self, digest: str) -> Signature | None:
        """The signature kept for a bare model of this digest, or None."""
        content = self._get("signature", digest)
        if content is None:
            return None
        inputs, outputs = (
            tuple(TensorSpec(name, DATATYPES[datatype], tuple(shape)) for name, datatype, shape in content[side])
            for side in ("inputs", "outputs")
        )
        return Signature(inputs, outputs)

    def keep_signature(self, digest: str, signature: Signature) -> None:
        """Keep what a runtime said of a bare model."""
        sides = {"inputs": signature.inputs, "outputs": signature.outputs}
        content = {side: [(s.name, s.datatype.label, s.shape) for s in specs] for side, specs in sides.items()}
        self._put("signature", digest, content)

    def close(self) -> None:
        """Close the file. Calling it twice is harmless."""
        self._connection.close()

    def _get(self, table: str, key: str) -> dict[str, Any] | None:
        row = self._connection.execute(f"SELECT content FROM {table} WHERE key = ?", (key,)).fetchone()  # noqa: S608
        return json.loads(row[0]) if row else None

    def _put(self, table: str, key: str, content: object) -> None:
        now_ms = time.time_ns() // 1_000_000
        with self._connection:
            self._connection.execute(
                f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?)",  # noqa: S608
                (key, json.dumps(content), now_ms),
            )
            self._connection.execute(
                f"DELETE FROM {table} WHERE key NOT IN (SELECT key FROM {table} ORDER BY at_ms DESC LIMIT ?)",  # noqa: S608
                (self._settings.verdicts_limit,),
            )


def _connect_or_renew(file: Path, settings: StateSettings) -> sqlite3.Connection:
    try:
        return _connect(file, settings)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):
            raise
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
