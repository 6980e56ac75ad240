"""SQLite file of the spool: its tables, and how it is opened."""

from __future__ import annotations

from pathlib import Path

from gateway.common.store.settings import SpoolSettings
from gateway.common.store.sqlite_file import SqliteFile, make_private

NAME = "spool.sqlite"
SCHEMA_VERSION = 1
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
)


def open_file(folder: Path, settings: SpoolSettings) -> SqliteFile:
    """Open the file. The caller holds the store's lock. Raises DamagedError if it is no spool of this program.

    If two processes switch a new file to a write-ahead log at once, SQLite does not make one wait. Raises StoreError.
    """
    make_private(folder / NAME)
    pragmas = ("journal_mode = WAL", f"wal_autocheckpoint = {_WAL_PAGES}")
    file = SqliteFile(folder / NAME, settings.busy_timeout_ms, pragmas)
    with file.closed_on_error():
        file.check_pages()
        if (version := file.begin(_SCHEMA, SCHEMA_VERSION)) != SCHEMA_VERSION:
            raise file.damage(f"is of another program or version (schema {version})")
    return file
