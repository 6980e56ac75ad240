"""The journal's file: never replaced by itself, never trusted when damaged, private, migrated, shared politely."""

from __future__ import annotations

import contextlib
import json
import random
import sqlite3
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gateway.domain.activation import Activation, activation_document
from gateway.domain.update import Failure, Step
from gateway.store import journal_file
from gateway.store.errors import DamagedError, StoreAbsentError, StoreError
from gateway.store.journal import Journal
from gateway.store.journal_rows import Floors
from gateway.store.settings import JournalSettings

REMEDY = r"run edge-agent recover"

OLD = Activation("meter", "models/acme/meter/2/release", "2" * 64, ("only",), ("e" * 64,), 1)


def begun(folder: Path) -> Path:
    """Create a journal with many floors in it; return its file."""
    with contextlib.closing(Journal.create(folder)) as journal:
        journal.raise_floors(Floors({f"role-{index}": index for index in range(500)}))
    return folder / journal_file.NAME


def test_where_there_is_none_none_is_begun(tmp_path: Path) -> None:
    with pytest.raises(StoreAbsentError, match=f"there is no journal; {REMEDY}"):
        Journal.open(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_bootstrap_makes_one_that_only_its_owner_reads_and_may_be_repeated(tmp_path: Path) -> None:
    file = begun(tmp_path / "store")
    with contextlib.closing(Journal.create(tmp_path / "store")) as journal:
        assert journal.floor("role-499") == 499
    assert {stat.S_IMODE(path.stat().st_mode) for path in file.parent.iterdir()} == {0o600}
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o750


def test_a_bootstrap_that_was_cut_off_is_repeated(tmp_path: Path) -> None:
    (tmp_path / journal_file.NAME).touch()
    with pytest.raises(DamagedError, match=f"holds nothing, though it should; {REMEDY}"):
        Journal.open(tmp_path)
    Journal.create(tmp_path).close()
    Journal.open(tmp_path).close()


@pytest.mark.parametrize("content", [b"this is no database" * 100, b"SQLite format 3\0" + b"\xff" * 5000])
def test_what_is_no_database_is_refused_and_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    (tmp_path / journal_file.NAME).write_bytes(content)
    for opening in (Journal.open, Journal.create):
        with pytest.raises(DamagedError, match=f"is damaged: .*; {REMEDY}"):
            opening(tmp_path)
    assert (tmp_path / journal_file.NAME).read_bytes() == content


def test_a_page_that_rotted_is_never_read_as_lower_floors(tmp_path: Path) -> None:
    """Each page in turn is lost. Refused, or every floor is where it was."""
    file = begun(tmp_path)
    whole, refused = file.read_bytes(), 0
    for page in range(len(whole) // 4096):
        chance = random.Random(page)
        file.write_bytes(whole[: page * 4096] + chance.randbytes(4096) + whole[(page + 1) * 4096 :])
        try:
            with contextlib.closing(Journal.open(tmp_path)) as journal:
                assert journal.floors().numbers == {f"role-{index}": index for index in range(500)}
        except DamagedError:
            refused += 1
    assert refused >= 4


def test_half_a_file_is_refused(tmp_path: Path) -> None:
    file = begun(tmp_path)
    file.write_bytes(file.read_bytes()[:8192])
    with pytest.raises(DamagedError, match=REMEDY):
        Journal.open(tmp_path)


def test_a_row_that_this_program_cannot_have_written_is_damage(tmp_path: Path) -> None:
    file = begun(tmp_path)
    with contextlib.closing(sqlite3.connect(file)) as shell, shell:
        shell.execute("INSERT INTO update_under_way VALUES ('meter', '{}', 'fetch', 1, 'now', '{}')")
    with (
        contextlib.closing(Journal.open(tmp_path)) as journal,
        pytest.raises(DamagedError, match="a row that cannot be"),
    ):
        journal.updates()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE floor SET value = value - 1",
        "UPDATE floor SET name = 'x' || name",
        "DELETE FROM floor",
        "INSERT OR REPLACE INTO floor VALUES ('role-9', 3)",
        "DELETE FROM version_floor",
    ],
)
def test_the_file_itself_lets_no_floor_fall(tmp_path: Path, statement: str) -> None:
    file = begun(tmp_path)
    with contextlib.closing(Journal.open(tmp_path)) as journal:
        journal.raise_floors(Floors({}, {"acme/meter": "2"}))
        before = journal.floors()
    with (
        contextlib.closing(sqlite3.connect(file)) as shell,
        pytest.raises(sqlite3.IntegrityError, match="a floor never falls"),
        shell,
    ):
        shell.execute(statement)
    with contextlib.closing(Journal.open(tmp_path)) as journal:
        assert journal.floors() == before


def test_what_a_newer_agent_wrote_is_not_touched(tmp_path: Path) -> None:
    file = begun(tmp_path)
    with contextlib.closing(sqlite3.connect(file)) as shell:
        shell.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match=r"written by a newer edge-agent \(schema 99, known is 2\); install that"):
        Journal.open(tmp_path)


def test_an_older_file_is_brought_up_step_by_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(tmp_path)
    steps = {2: ("CREATE TABLE second (x)",), 3: ("INSERT INTO second VALUES (1)", "CREATE TABLE third (x)")}
    monkeypatch.setattr(journal_file, "MIGRATIONS", {**journal_file.MIGRATIONS, **steps})
    monkeypatch.setattr(journal_file, "SCHEMA_VERSION", 4)
    for _ in range(2):
        file = journal_file.JournalFile.open(tmp_path, JournalSettings())
        assert [row["x"] for row in file.ask("SELECT x FROM second")] == [1]
        assert file.ask("PRAGMA user_version")[0][0] == 4
        file.close()


def test_a_step_up_that_fails_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(tmp_path)
    with monkeypatch.context() as patched:
        steps = {2: ("CREATE TABLE second (x)", "CREATE TABLE second (x)")}
        patched.setattr(journal_file, "MIGRATIONS", {**journal_file.MIGRATIONS, **steps})
        patched.setattr(journal_file, "SCHEMA_VERSION", 3)
        with pytest.raises(StoreError, match="already exists"):
            Journal.open(tmp_path)
    with contextlib.closing(Journal.open(tmp_path)) as journal:
        assert journal.floor("role-499") == 499


def test_two_that_bring_a_file_up_at_the_same_moment_do_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`edge-agent status`, say, just as the service begins after an update of the program."""
    with contextlib.closing(sqlite3.connect(tmp_path / journal_file.NAME, isolation_level=None)) as first:
        first.executescript(";".join(journal_file.MIGRATIONS[0]) + ";PRAGMA user_version = 1")
        first.execute("BEGIN IMMEDIATE")
        look, looked = journal_file.JournalFile._version, threading.Semaphore(0)

        def version(file: journal_file.JournalFile) -> int:
            found = look(file)
            looked.release()
            return found

        monkeypatch.setattr(journal_file.JournalFile, "_version", version)
        with ThreadPoolExecutor() as pool:
            second = pool.submit(lambda: Journal.open(tmp_path).close())
            assert all(looked.acquire(timeout=20) for _ in ("whether it is whole", "whether it is old"))
            for statement in journal_file.MIGRATIONS[1]:
                first.execute(statement)
            first.execute("PRAGMA user_version = 2")
            first.execute("COMMIT")
            second.result(20)
    Journal.open(tmp_path).close()


THEN = "2026-05-04T00:00:00+00:00"
TARGET = {"path": "models/acme/meter/2/release", "bytes": 1, "sha256": "2" * 64}
ASSIGNMENT = {"device": "door-1", "version": 7, "issued": THEN, "expires": THEN, "slots": {"meter": TARGET}}
FIRST_ROWS = {
    "assignment": (1, "d", b"", json.dumps({**ASSIGNMENT, "files": [], "nonce": "", "poll_s": None})),
    "update_under_way": (
        *("meter", json.dumps(activation_document(OLD)), "probation", 7, THEN),
        json.dumps({"changed_at": THEN, "failure": None}),
    ),
    "rejected": (1, "meter", "3" * 64, "slow", THEN),
}
"""Rows by table, as an agent wrote them that knew of no attempts."""


def test_what_was_written_before_attempts_were_counted_is_read_and_goes_on(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / journal_file.NAME)) as shell:
        shell.executescript(";".join(journal_file.MIGRATIONS[0]))
        for table, row in FIRST_ROWS.items():
            shell.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)  # noqa: S608
        shell.execute("PRAGMA user_version = 1")
        shell.commit()
    for _ in range(2):
        with contextlib.closing(Journal.open(tmp_path)) as journal:
            accepted, (update,) = journal.accepted(), journal.updates()
            assert accepted
            assert (accepted.assignment.attempt("meter"), accepted.assignment.diagnostics) == (0, False)
            assert (update.activation, update.attempt) == (OLD, 0)
            assert (journal.rejected("meter", "3" * 64), journal.rejected("meter", "3" * 64, 1)) == ("slow", "")
    with contextlib.closing(Journal.open(tmp_path)) as journal:
        failed = journal.fail("meter", Failure(Step.LOAD, "why", {}), update.changed_at)
        assert journal.rejected("meter", failed.activation.release) == "why"


def test_another_process_that_holds_it_is_named_as_the_cause(tmp_path: Path) -> None:
    file = begun(tmp_path)
    with (
        contextlib.closing(Journal.open(tmp_path, JournalSettings(busy_timeout_ms=1))) as journal,
        contextlib.closing(sqlite3.connect(file, isolation_level=None)) as other,
    ):
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="another process holds it; stop that one, or try again"):
            journal.keep_facts({"a": "b"})
        other.execute("ROLLBACK")
        journal.keep_facts({"a": "b"})


def test_a_folder_name_with_odd_signs_is_a_folder_name(tmp_path: Path) -> None:
    begun(tmp_path / "a?b#c%20d e")
    Journal.open(tmp_path / "a?b#c%20d e").close()
    assert [entry.name for entry in tmp_path.iterdir()] == ["a?b#c%20d e"]
