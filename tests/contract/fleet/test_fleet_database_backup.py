"""Backup and restore, on SQLite and PostgreSQL alike."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from fleet.controller.audit import Deed, Head
from fleet.controller.database import assignments, audit, backup, devices, migrate, numbers
from fleet.controller.database.assignments import BASE, StoredAssignment
from fleet.controller.database.engine import Database, open_database
from fleet.controller.database.place import DatabaseLocation, read_place
from fleet.controller.database.settings import DatabaseSettings
from gateway.common.domain.errors import ConfigurationError, UnreachableError
from tests.simulators.constants import settings_with
from tests.simulators.databases import KINDS, NOW, content, database, enrolled, made, shape, url

__all__ = ["database"]
SETTINGS = settings_with(DatabaseSettings(), restore_leap=1000)
ROOT = Path(__file__).parents[3]


def filled(database: Database) -> None:
    enrolled(database, "camera-1")
    with database.write() as connection:
        devices.label(connection, "camera-1", ["ä'\\\n%"], "")
        assignments.put(connection, StoredAssignment("camera-1", 7, "d", b"\x00\xff", NOW, NOW, 1))
        audit.append(connection, Deed("anna", "backup", ""), NOW)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_saved_comes_back(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "backup"
    with made(kind, tmp_path) as opened:
        filled(opened)
        before, tables = content(opened), shape(opened)
        saved = backup.save(opened, file)
        enrolled(opened, "camera-2")
    assert (saved.file, saved.size_bytes, saved.revision) == (file, file.stat().st_size, migrate.newest())
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir() if "part" in entry.name] == []
    with url(kind, tmp_path, empty=True) as text:
        place = read_place(text, tmp_path)
        assert backup.restore(file, place, SETTINGS).revision == migrate.newest()
        with closing(open_database(place, SETTINGS)) as restored:
            assert shape(restored) == tables
            ids = [(numbers.LAST_ID % table.name, 1000) for table in numbers.REMEMBERED if kind == "sqlite"]
            leapt = {"numbers": sorted([(BASE, 1007), *ids]), "changes": [(1000, 0, "gap", "", 0, 0)]}
            assert content(restored) == before | leapt
            with restored.read() as connection:
                assert audit.verify(connection, SETTINGS) == audit.head(connection) != Head()
                assert assignments.current(connection, "camera-1") is None
            with restored.write() as connection:
                assert assignments.next_version(connection, "camera-1") == 1008


@pytest.mark.parametrize("kind", KINDS)
def test_a_backup_is_one_moment_while_others_write(kind: str, tmp_path: Path) -> None:
    with made(kind, tmp_path) as opened:
        stop = threading.Event()

        def write() -> None:
            number = 0
            while not stop.is_set():
                with opened.write() as connection:
                    devices.enrol(connection, f"camera-{number}", NOW)
                    audit.append(connection, Deed("anna", "enrol", f"camera-{number}"), NOW)
                number += 1

        writer = threading.Thread(target=write)
        writer.start()
        try:
            backup.save(opened, tmp_path / "backup")
        finally:
            stop.set()
            writer.join()
    with url(kind, tmp_path, empty=True) as text:
        place = read_place(text, tmp_path)
        backup.restore(tmp_path / "backup", place, SETTINGS)
        with closing(open_database(place)) as restored, restored.read() as connection:
            log = audit.verify(connection, SETTINGS)
            assert isinstance(log, Head)
            assert (
                devices.counts(connection, devices.DeviceSelection())[devices.EnrolmentState.ENROLLED] == log.sequence
            )


@pytest.mark.parametrize("kind", KINDS)
def test_a_backup_of_an_old_program_is_refused(kind: str, tmp_path: Path) -> None:
    with made(kind, tmp_path) as opened:
        filled(opened)
        with opened.write() as connection:
            connection.execute(sa.text("UPDATE alembic_version SET version_num = '0001'"))
        assert backup.save(opened, tmp_path / "backup").revision == "0001"
    with url(kind, tmp_path, empty=True) as text:
        place = read_place(text, tmp_path)
        with pytest.raises(ConfigurationError, match=f"'0001', older .* restore it .* {migrate.MIGRATES_OLDER}"):
            backup.restore(tmp_path / "backup", place)
        if place.file:
            assert not place.file.exists()
        else:
            with closing(open_database(place)) as database, pytest.raises(ConfigurationError, match="interrupted"):
                migrate.upgrade(database)


def test_nothing_is_restored_over_what_is_there(database: Database, tmp_path: Path) -> None:
    filled(database)
    backup.save(database, tmp_path / "backup")
    before = content(database)
    with pytest.raises(ConfigurationError, match=r"move it away first|empty database"):
        backup.restore(tmp_path / "backup", database.place)
    assert content(database) == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_backup_is_refused_and_leaves_nothing(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "backup"
    with made(kind, tmp_path) as opened:
        filled(opened)
        backup.save(opened, file)
    whole = file.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"x" * 5000):
        file.write_bytes(damaged)
        with url(kind, tmp_path, empty=True) as text:
            place = read_place(text, tmp_path)
            with pytest.raises(ConfigurationError):
                backup.restore(file, place)
            if place.file is None:
                with closing(open_database(place)) as left:
                    assert migrate.revision(left) == ""
            else:
                assert not place.file.exists()


@pytest.mark.parametrize("done", ["", "pg_restore"])
def test_a_controller_does_not_begin_where_a_restore_was_killed(done: str, tmp_path: Path) -> None:
    """The kill comes before anything was restored, or before versions jumped: else devices would see one twice."""
    file = tmp_path / "backup"
    with made("postgresql", tmp_path) as opened:
        filled(opened)
        backup.save(opened, file)
    with url("postgresql", tmp_path, empty=True) as text:
        place = read_place(text, tmp_path)
        killed_restoring(file, text, tmp_path, f'{shutil.which("pg_restore")} "$@"' if done else "")
        with closing(open_database(place, SETTINGS)) as left:
            assert migrate.revision(left) == (migrate.newest() if done else "")
            for begin in (migrate.upgrade, migrate.known):
                with pytest.raises(ConfigurationError, match="a restore into it was interrupted; create it again"):
                    begin(left)
            if done:
                with pytest.raises(ConfigurationError, match="holds tables already"):
                    backup.restore(file, place, SETTINGS)
                return
            assert backup.restore(file, place, SETTINGS).revision == migrate.upgrade(left)
            with left.read() as connection:
                assert assignments.base(connection) == 1007


def killed_restoring(file: Path, text: str, folder: Path, first: str) -> None:
    """Run `edge-fleet backup restore`, which dies as soon as its pg_restore did `first`."""
    program = folder / "programs" / "pg_restore"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{first}\nkill -9 $PPID\n")
    program.chmod(0o755)
    (folder / "fleet.toml").write_text(f'[database]\nurl = "{text}"\n')
    command = [sys.executable, "-m", "fleet", "backup", "restore", str(file), "--dir", str(folder)]
    environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    ended = subprocess.run(command, cwd=ROOT, env=environment, timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL


def test_a_backup_that_fails_leaves_the_older_one(tmp_path: Path) -> None:
    file = tmp_path / "backup"
    with made("sqlite", tmp_path) as opened:
        filled(opened)
        backup.save(opened, file)
        before = file.read_bytes()
        assert opened.place.file is not None
        with opened.place.file.open("r+b") as damage:
            damage.seek(4096)
            damage.write(b"\xff" * (opened.place.file.stat().st_size - 4096))
        with pytest.raises(ConfigurationError, match="cannot be copied"):
            backup.save(opened, file)
    assert file.read_bytes() == before


def test_passwords_are_no_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    said = tmp_path / "said"
    program = tmp_path / "pg_dump"
    program.write_text(f'#!/bin/sh\necho "$@" "[$PGPASSWORD]" > {said}\necho no such host >&2\nexit 1\n')
    program.chmod(0o755)
    place = read_place("postgresql://anna:secret@nowhere/fleet", tmp_path)
    with pytest.raises(ConfigurationError, match="pg_dump failed: no such host"):
        dump(place, tmp_path)
    assert "secret" not in said.read_text().replace("[secret]", "")
    assert "[secret]" in said.read_text()


def test_a_missing_program_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnreachableError, match="pg_dump is not installed"):
        dump(read_place("postgresql://nowhere/fleet", tmp_path), tmp_path)


def dump(place: DatabaseLocation, folder: Path) -> None:
    backup._dump(place, folder / "part", DatabaseSettings())


def test_a_backup_of_the_other_kind_is_told_from_a_damaged_one(tmp_path: Path) -> None:
    file, asked = tmp_path / "backup", read_place("postgresql://nobody@127.0.0.1:1/fleet", tmp_path)
    file.write_bytes(b"SQLite format 3\0")
    with pytest.raises(ConfigurationError, match="not a backup of PostgreSQL: one of SQLite is restored into SQLite"):
        backup.restore(file, asked)
    file.write_bytes(b"PGDMP\x01")
    with pytest.raises(ConfigurationError, match="not a backup of SQLite: one of PostgreSQL"):
        backup.restore(file, read_place("", tmp_path))
    assert not (tmp_path / "fleet.sqlite").exists()
