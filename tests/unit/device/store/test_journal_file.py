"""The journal's file: never replaced by itself, never trusted when damaged, private, shared politely."""

from __future__ import annotations

import contextlib
import random
import sqlite3
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gateway.common.domain.activation import Activation
from gateway.common.store.errors import DamagedError, StoreAbsentError, StoreError
from gateway.common.store.settings import JournalSettings
from gateway.common.store.sqlite_file import SqliteFile
from gateway.device.store import journal_file
from gateway.device.store.journal import Journal
from gateway.device.store.journal_rows import Floors
from tests.simulators.constants import settings_with

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


def test_a_file_before_schema_2_is_not_touched(tmp_path: Path) -> None:
    file = begun(tmp_path)
    with contextlib.closing(sqlite3.connect(file)) as shell:
        shell.execute("PRAGMA user_version = 1")
    with pytest.raises(DamagedError, match=r"before the first release \(schema 1, known is 2\); run edge-agent"):
        Journal.open(tmp_path)


def test_two_that_begin_a_file_at_the_same_moment_do_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / journal_file.NAME, isolation_level=None)) as first:
        first.execute("BEGIN IMMEDIATE")
        look, looked = SqliteFile.version, threading.Semaphore(0)

        def version(file: SqliteFile) -> int:
            found = look(file)
            looked.release()
            return found

        monkeypatch.setattr(SqliteFile, "version", version)
        with ThreadPoolExecutor() as pool:
            second = pool.submit(lambda: Journal.create(tmp_path).close())
            assert looked.acquire(timeout=20)
            for statement in (*journal_file._SCHEMA, f"PRAGMA user_version = {journal_file.SCHEMA_VERSION}"):
                first.execute(statement)
            first.execute("COMMIT")
            second.result(20)
    Journal.open(tmp_path).close()


def test_another_process_that_holds_it_is_named_as_the_cause(tmp_path: Path) -> None:
    file = begun(tmp_path)
    with (
        contextlib.closing(Journal.open(tmp_path, settings_with(JournalSettings(), busy_timeout_ms=1))) as journal,
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
