"""Scenario for `power` that omits necessary syncs: the test of power cuts must detect it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from gateway.common.files.durable import sync_folder

OLD, NEW = b"old" * 5000, b"new" * 5000


def prepare(folder: Path) -> None:
    """Write the old content."""
    (folder / "renamed").write_bytes(OLD)
    (folder / "renamed and synced folder").write_bytes(OLD)
    with closing(sqlite3.connect(folder / "journal")) as journal, journal:
        journal.execute("CREATE TABLE state (value TEXT)")
        journal.execute("INSERT INTO state VALUES ('old')")


def run(folder: Path, claim: Callable[[str], None]) -> None:
    """Replace each file and claim it without the necessary syncs."""
    (folder / "staged").write_bytes(NEW)
    (folder / "staged").replace(folder / "renamed")
    claim("renamed")
    (folder / "staged").write_bytes(NEW)
    (folder / "staged").replace(folder / "renamed and synced folder")
    sync_folder(folder)
    claim("renamed and synced folder")
    with closing(sqlite3.connect(folder / "journal", isolation_level=None)) as journal:
        # SQLite's defaults: the commit is the journal's deletion, for which it does not wait
        journal.execute("PRAGMA journal_mode = DELETE")
        journal.execute("PRAGMA synchronous = FULL")
        journal.execute("UPDATE state SET value = 'new'")
        claim("journal")


def inspect(folder: Path) -> dict[str, str]:
    """Return the state of each file: old, new or torn."""
    with closing(sqlite3.connect(folder / "journal")) as journal:
        value = journal.execute("SELECT value FROM state").fetchone()[0]
    files = {name: (folder / name).read_bytes() for name in ("renamed", "renamed and synced folder")}
    return {"journal": value, **{name: _state(content) for name, content in files.items()}}


def _state(content: bytes) -> str:
    return {OLD: "old", NEW: "new"}.get(content, "torn")
