"""SQLite file of the journal: its tables, and how it is opened."""

from __future__ import annotations

from pathlib import Path

from gateway.common.files import durable
from gateway.common.store.errors import StoreAbsentError, StoreError, store_errors
from gateway.common.store.settings import JournalSettings
from gateway.common.store.sqlite_file import SqliteFile, make_private

NAME = "journal.sqlite"
SCHEMA_VERSION = 2
_REMEDY = "run edge-agent recover; it begins a new journal, without the floors that keep older releases out"
_UPDATE = """activation TEXT NOT NULL, step TEXT NOT NULL, assignment_version INTEGER NOT NULL,
    started_at TEXT NOT NULL, content TEXT NOT NULL"""
_FALLS = "BEGIN SELECT raise(ABORT, 'a floor never falls'); END"
_SCHEMA = (
    "CREATE TABLE floor (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE version_floor (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    """CREATE TABLE assignment (id INTEGER PRIMARY KEY CHECK (id = 1), digest TEXT NOT NULL, content BLOB NOT NULL,
        document TEXT NOT NULL)""",
    f"CREATE TABLE update_under_way (slot TEXT PRIMARY KEY, {_UPDATE}) WITHOUT ROWID",
    f"CREATE TABLE finished (id INTEGER PRIMARY KEY AUTOINCREMENT, slot TEXT NOT NULL, {_UPDATE})",
    """CREATE TABLE rejected (id INTEGER PRIMARY KEY AUTOINCREMENT, slot TEXT NOT NULL, release TEXT NOT NULL,
        reason TEXT NOT NULL, at TEXT NOT NULL, attempt INTEGER NOT NULL DEFAULT 0, UNIQUE (slot, release))""",
    "CREATE TABLE fact (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    # enforced in the file, whatever program changes it: a floor is never lowered and never removed
    f"""CREATE TRIGGER floor_rises_anew BEFORE INSERT ON floor
        WHEN EXISTS (SELECT 1 FROM floor WHERE name = new.name AND value > new.value) {_FALLS}""",  # noqa: S608  a constant
    f"""CREATE TRIGGER floor_rises BEFORE UPDATE ON floor
        WHEN new.value < old.value OR new.name <> old.name {_FALLS}""",
    f"CREATE TRIGGER floor_stays BEFORE DELETE ON floor {_FALLS}",
    f"CREATE TRIGGER version_floor_stays BEFORE DELETE ON version_floor {_FALLS}",
)
# SQLite commits by deleting the rollback journal and, at synchronous = FULL, does not wait until the deletion is on the
# disk: a power failure then undoes a commit. It waits for a truncation (sqlite.org/pragma.html#pragma_synchronous).
_PRAGMAS = ("journal_mode = TRUNCATE",)


def create_file(folder: Path, settings: JournalSettings) -> SqliteFile:
    """Open the file, and initialise it if it is absent or empty."""
    path = folder / NAME
    with store_errors(path):
        durable.make_folder(folder)
        make_private(path)
        durable.sync_folder(folder)
    return _open(path, settings, is_new=True)


def open_file(folder: Path, settings: JournalSettings) -> SqliteFile:
    """Open the file. Raises AbsentError, DamagedError or StoreError, each with a remedy."""
    path = folder / NAME
    if not path.is_file():
        raise StoreAbsentError(f"there is no journal; {_REMEDY}", file=path)
    return _open(path, settings, is_new=False)


def _open(path: Path, settings: JournalSettings, *, is_new: bool) -> SqliteFile:
    file = SqliteFile(path, settings.busy_timeout_ms, _PRAGMAS, _REMEDY)
    with file.closed_on_error():
        # first the version: what a newer agent wrote is not damaged, whatever this SQLite finds in it
        version = file.version()
        known = f"(schema {version}, known is {SCHEMA_VERSION})"
        if version > SCHEMA_VERSION:
            raise StoreError(f"was written by a newer edge-agent {known}; install that", file=path)
        file.check_pages()
        if not version and not (is_new and file.begin(_SCHEMA, SCHEMA_VERSION)):
            raise file.damage("holds nothing, though it should")
        if 0 < version < SCHEMA_VERSION:
            raise file.damage(f"was written before the first release {known}")
    return file
