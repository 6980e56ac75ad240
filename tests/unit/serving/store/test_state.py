"""Verdicts and signatures on disk: kept, shared between processes, bounded, and never in the way of serving."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.common.domain.manifest import LAYOUTS, TensorSpec
from gateway.common.domain.tensor import Datatype
from gateway.common.domain.verdict import Measurement, Signature, Verdict
from gateway.common.store.settings import StateSettings
from gateway.serving.store.state import REMEDY, StateStore
from tests.simulators.constants import settings_with

PASSED = Verdict(True, "passed", Measurement(1.5, 2.5, 3.5, 4, 0.5), 0.99)
WRITER = """
import sys
from pathlib import Path
from gateway.common.domain.verdict import Verdict
from gateway.serving.store.state import REMEDY, StateStore
name, folder, count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
state = StateStore.open(folder)
for index in range(count):
    state.keep_verdict(f"{name}-{index}", Verdict(True, name))
    if index == 20:
        print("under way", flush=True)
print(state.write_failures, flush=True)
"""


def writer(folder: Path, name: str, count: int) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", WRITER, name, str(folder), str(count)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[4])


floats = st.floats(allow_nan=False)
measurements = st.builds(Measurement, floats, floats, floats, st.integers(), floats)
verdicts = st.builds(Verdict, st.booleans(), st.text(), st.none() | measurements, st.none() | floats)
specs = st.builds(
    TensorSpec, st.text(), st.sampled_from(Datatype), st.lists(st.integers(-1, 99)).map(tuple), st.sampled_from(LAYOUTS)
)
sides = st.lists(specs, max_size=3).map(tuple)


@given(st.lists(verdicts, min_size=1, max_size=3), st.builds(Signature, sides, sides))
@settings(max_examples=25, deadline=None)
def test_what_is_kept_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, kept: list[Verdict], signature: Signature
) -> None:
    folder = tmp_path_factory.mktemp("state")
    state = StateStore.open(folder)
    for verdict in kept:
        state.keep_verdict("key", verdict)
    state.keep_signature("key", signature)
    state.close()
    again = StateStore.open(folder)
    assert again.verdict("key") == kept[-1]
    assert again.signature("key") == signature
    assert again.verdict("other") is None
    assert again.signature("other") is None
    again.close()
    again.close()


def test_several_processes_share_the_file(tmp_path: Path) -> None:
    (tmp_path / "state.sqlite").write_bytes(b"and find it broken" * 1000)
    writers = [writer(tmp_path, name, 60) for name in ("one", "two", "three")]
    assert [process.communicate()[0].split()[-1] for process in writers] == ["0", "0", "0"]
    state = StateStore.open(tmp_path)
    for name in ("one", "two", "three"):
        assert [state.verdict(f"{name}-{index}") for index in range(60)] == [Verdict(True, name)] * 60
    state.close()
    assert len(list(tmp_path.glob("state.sqlite.unreadable-*"))) == 1


def test_a_writer_killed_on_the_way_leaves_a_file_that_reads(tmp_path: Path) -> None:
    process = writer(tmp_path, "one", 1_000_000)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    state = StateStore.open(tmp_path)
    assert state.verdict("one-20") == Verdict(True, "one")
    state.keep_verdict("after", PASSED)
    assert state.verdict("after") == PASSED
    state.close()
    assert not list(tmp_path.glob("*unreadable*"))


@pytest.mark.parametrize(
    "content", [b"this is no database, but long enough to look at" * 100, b"SQLite format 3\0" + b"\xff" * 5000]
)
def test_a_file_that_is_no_database_is_set_aside(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "state.sqlite").write_bytes(content)
    state = StateStore.open(tmp_path)
    state.keep_verdict("key", PASSED)
    assert state.verdict("key") == PASSED
    state.close()
    aside = {file.name.partition(".unreadable-")[0]: file.read_bytes() for file in tmp_path.glob("*unreadable*")}
    assert aside["state.sqlite"] == content


@pytest.mark.parametrize("damaged", [b"", b"no database" * 500])
def test_the_log_of_a_lost_database_never_reaches_the_new_one(tmp_path: Path, damaged: bytes) -> None:
    before = StateStore.open(tmp_path / "before")
    for index in range(50):
        before.keep_verdict(f"old-{index}", PASSED)
    after = tmp_path / "after"
    shutil.copytree(tmp_path / "before", after)
    before.close()
    (after / "state.sqlite").write_bytes(damaged)
    state = StateStore.open(after)
    state.keep_verdict("new", PASSED)
    state.close()
    with sqlite3.connect(after / "state.sqlite") as other:
        assert other.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert ("new",) in other.execute("SELECT key FROM verdict").fetchall()
    other.close()


def test_rows_that_cannot_be_read_count_as_absent(tmp_path: Path) -> None:
    state = StateStore.open(tmp_path)
    with sqlite3.connect(tmp_path / "state.sqlite") as other:
        for key, content in (("a", "{"), ("b", "[]"), ("c", '{"passed": true}'), ("d", '{"inputs": [[1]]}')):
            other.execute("INSERT INTO verdict VALUES (?, ?, 0)", (key, content))
            other.execute("INSERT INTO signature VALUES (?, ?, 0)", (key, content))
    other.close()
    assert [state.verdict(key) for key in "abcd"] == [None] * 4
    assert [state.signature(key) for key in "abcd"] == [None] * 4
    state.keep_verdict("a", PASSED)
    assert state.verdict("a") == PASSED
    state.close()


def test_what_cannot_be_written_is_remembered_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state = StateStore.open(tmp_path, settings_with(StateSettings(), busy_timeout_ms=1))
    other = sqlite3.connect(tmp_path / "state.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    state.keep_verdict("key", PASSED)
    assert state.write_failures == 1
    assert "database is locked" in state.problem
    assert [record.getMessage() for record in caplog.records] == [state.problem]
    assert state.verdict("key") == PASSED
    other.execute("ROLLBACK")
    state.keep_verdict("key", Verdict(False, "later"))
    assert state.verdict("key") == Verdict(False, "later")
    assert (state.write_failures, state.problem) == (1, "")
    state.close()
    other.close()


def test_the_oldest_rows_go_first_whatever_the_clock_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10**18, 0, -(10**16)))
    monkeypatch.setattr("gateway.serving.store.state.time.time_ns", lambda: next(clock))
    state = StateStore.open(tmp_path, settings_with(StateSettings(), verdicts_limit=3))
    for key in "abcde":
        state.keep_verdict(key, PASSED)
    state.keep_verdict("c", PASSED)
    state.keep_verdict("f", PASSED)
    assert [key for key in "abcdef" if state.verdict(key)] == ["c", "e", "f"]
    state.close()


def set_schema(file: Path, version: int) -> None:
    with sqlite3.connect(file) as other:
        other.execute(f"PRAGMA user_version = {version}")
    other.close()


def test_an_older_schema_is_replaced(tmp_path: Path) -> None:
    state = StateStore.open(tmp_path)
    state.keep_verdict("key", PASSED)
    state.close()
    set_schema(tmp_path / "state.sqlite", 1)
    again = StateStore.open(tmp_path)
    assert again.verdict("key") is None
    again.close()


def test_a_newer_schema_is_left_as_it_is_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The version that wrote it finds its verdicts again after a downgrade that was taken back."""
    state = StateStore.open(tmp_path)
    state.keep_verdict("newer", PASSED)
    state.close()
    set_schema(tmp_path / "state.sqlite", 99)
    before = (tmp_path / "state.sqlite").read_bytes()
    for found in (None, PASSED):
        older = StateStore.open(tmp_path)
        assert (older.verdict("newer"), older.verdict("own"), older.problem) == (None, found, "")
        older.keep_verdict("own", PASSED)
        older.close()
    assert (tmp_path / "state.sqlite").read_bytes() == before
    said = f"schema 99; this version reads 2); it stays as it is, and verdicts go to {tmp_path}/state-schema-2.sqlite"
    assert [said in record.getMessage() for record in caplog.records] == [True, True]
    set_schema(tmp_path / "state.sqlite", 2)
    again = StateStore.open(tmp_path)
    assert again.verdict("newer") == PASSED
    again.close()


def test_rows_that_wait_for_the_disk_are_bounded_and_written_later(tmp_path: Path) -> None:
    state = StateStore.open(tmp_path, settings_with(StateSettings(), busy_timeout_ms=1, verdicts_limit=3))
    other = sqlite3.connect(tmp_path / "state.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for key in "abcd":
        state.keep_verdict(key, PASSED)
    assert [key for key in "abcd" if state.verdict(key)] == ["b", "c", "d"]
    other.execute("ROLLBACK")
    other.close()
    state.keep_signature("digest", Signature((), ()))
    assert state.problem == ""
    state.close()
    again = StateStore.open(tmp_path)
    assert [key for key in "abcd" if again.verdict(key)] == ["b", "c", "d"]
    again.close()


def test_what_waits_for_the_disk_is_written_at_the_end(tmp_path: Path) -> None:
    state = StateStore.open(tmp_path, settings_with(StateSettings(), busy_timeout_ms=1))
    other = sqlite3.connect(tmp_path / "state.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    state.keep_verdict("key", PASSED)
    other.execute("ROLLBACK")
    other.close()
    state.close()
    state.close()
    again = StateStore.open(tmp_path)
    assert again.verdict("key") == PASSED
    again.close()


@pytest.mark.parametrize("name", ["state.sqlite", "state.lock"])
def test_where_the_file_cannot_be_written_state_is_in_memory(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()  # as root, mode bits would have no effect
    state = StateStore.open(tmp_path)
    assert f"the state in {tmp_path} cannot be written" in state.problem
    state.keep_verdict("key", PASSED)
    assert (state.verdict("key"), state.write_failures) == (PASSED, 1)
    assert state.problem.endswith(REMEDY)
    state.close()


def test_what_can_be_read_is_read_where_nothing_can_be_written(tmp_path: Path) -> None:
    """The newest rows are read, at most as many as are kept on disk; then they are bounded as they are there."""
    kept = StateStore.open(tmp_path)
    for key in "abcd":
        kept.keep_verdict(key, PASSED)
    kept.keep_signature("digest", Signature((), ()))
    (tmp_path / "state.lock").unlink()
    (tmp_path / "state.lock").mkdir()
    state = StateStore.open(tmp_path, settings_with(StateSettings(), verdicts_limit=3))
    assert [key for key in "abcd" if state.verdict(key)] == ["b", "c", "d"]
    assert state.signature("digest") == Signature((), ())
    state.keep_verdict("e", PASSED)
    assert [key for key in "abcde" if state.verdict(key)] == ["c", "d", "e"]
    assert kept.verdict("e") is None
    state.close()
    kept.close()


@pytest.mark.parametrize("content", [b"", b"no database" * 500])
def test_a_damaged_file_that_cannot_be_replaced_counts_as_empty(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "state.sqlite").write_bytes(content)
    (tmp_path / "state.lock").mkdir()
    state = StateStore.open(tmp_path)
    assert (state.verdict("key"), state.problem != "") == (None, True)
    state.close()
    assert (tmp_path / "state.sqlite").read_bytes() == content


def test_a_lock_that_another_process_keeps_stops_no_start(tmp_path: Path) -> None:
    StateStore.open(tmp_path).close()
    with (tmp_path / "state.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = StateStore.open(tmp_path, settings_with(StateSettings(), busy_timeout_ms=20))
        assert f"another process has held {lock.name} for 20 ms" in state.problem
        state.keep_verdict("one", PASSED)
        assert state.verdict("one") == PASSED
        state.close()
    again = StateStore.open(tmp_path, settings_with(StateSettings(), busy_timeout_ms=20))
    assert again.problem == ""
    again.close()


def test_the_folder_is_its_owners_alone(tmp_path: Path) -> None:
    mask = os.umask(0o022)
    StateStore.open(tmp_path / "new" / "state").close()
    os.umask(mask)
    assert (tmp_path / "new" / "state").stat().st_mode & 0o777 == 0o700
