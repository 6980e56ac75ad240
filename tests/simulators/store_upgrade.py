"""Scenario for `power`: a newer agent opens a journal without attempts (schema 1), and continues."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gateway.domain.activation import Activation, activation_document
from gateway.domain.update import Step
from gateway.store import journal_file
from gateway.store.journal import Journal

NOW = datetime(2027, 1, 1, tzinfo=UTC)
THEN = NOW.isoformat()
REJECTED = [f"{number:064x}" for number in range(200)]
"""Enough rows for a table of several pages."""
OLD = Activation("meter", "models/acme/meter/2/release", "2" * 64, ("only",), ("e" * 64,), 1)
TARGET = {"path": OLD.target, "bytes": 1, "sha256": OLD.release}
ASSIGNMENT = {"device": "door-1", "version": 7, "issued": THEN, "expires": THEN, "slots": {"meter": TARGET}}
CONTENT = json.dumps({"changed_at": THEN, "failure": None})
ROWS: dict[str, list[tuple[Any, ...]]] = {
    "floor": [("timestamp", 70), ("assignment", 7), ("time", int(NOW.timestamp()))],
    "version_floor": [("acme/meter", "2")],
    "assignment": [(1, "d", b"signed" * 500, json.dumps({**ASSIGNMENT, "files": [], "nonce": "", "poll_s": None}))],
    "update_under_way": [("meter", json.dumps(activation_document(OLD)), "commit", 7, THEN, CONTENT)],
    "finished": [(1, "meter", json.dumps(activation_document(OLD)), "rolled-back", 6, THEN, CONTENT)],
    "rejected": [(at + 1, "meter", release, "slow", THEN) for at, release in enumerate(REJECTED)],
    "fact": [("etag", "abc")],
}
"""Rows by table, as the older agent wrote them."""


def prepare(folder: Path) -> None:
    """Write the journal of the older agent."""
    file = folder / journal_file.NAME
    with contextlib.closing(sqlite3.connect(file)) as shell:
        shell.execute("PRAGMA journal_mode = TRUNCATE")
        shell.executescript(";".join(journal_file.MIGRATIONS[0]))
        for table, rows in ROWS.items():
            shell.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)  # noqa: S608
        shell.execute("PRAGMA user_version = 1")
        shell.commit()
    file.chmod(0o600)


def run(folder: Path, claim: Callable[[str], None]) -> None:
    """Open the journal with the newer agent, and continue."""
    with contextlib.closing(Journal.open(folder)) as journal:
        claim("opened")
        if journal.update("meter"):
            journal.record("meter", Step.RETIRE, NOW)
            journal.finish("meter", NOW)
        claim("went on")


def inspect(folder: Path) -> dict[str, Any]:
    """Return everything that must not be lost, and the progress of the update."""
    with contextlib.closing(Journal.open(folder)) as journal:
        floors, accepted = journal.floors(), journal.accepted()
        assert accepted
        assert floors.time
        return {
            "floors": {**floors.numbers, **floors.versions, "time": floors.time.isoformat()},
            "accepted": [accepted.assignment.version, accepted.assignment.attempt("meter"), len(accepted.content)],
            "rejected": sum(journal.rejected("meter", release) == "slow" for release in REJECTED),
            "fact": journal.fact("etag"),
            "under_way": [update.step.value for update in journal.updates()],
            "finished": [[update.step.value, update.attempt] for update in journal.finished(9)],
        }
