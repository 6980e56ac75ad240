"""`edge-fleet doctor` over real folders, databases and keys; `edge-fleet serve` logs the same."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from fleet.cli import observed
from fleet.cli.common import now
from fleet.cli.parser import main
from fleet.controller.audit import Deed
from fleet.controller.authority.folder import open_authority
from fleet.controller.authority.settings import AuthoritySettings
from fleet.controller.control import checks
from fleet.controller.database import audit, migrate
from fleet.controller.database.engine import open_database
from fleet.controller.database.place import read_place
from fleet.publisher.roles import DIRECTOR, ONLINE
from tests.simulators.databases import url
from tests.simulators.fleet_repository import FleetRepository
from tests.simulators.served_fleet import served_fleet

S3 = '[blobs.s3]\nbucket = "models"\nendpoint = "http://minio:9000"\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a controller's folder in which all is well, as is the clock of its machine."""
    monkeypatch.setattr(observed, "clock_synchronised", lambda: True)
    repository = FleetRepository(tmp_path / "fleet")
    repository.keep_keys()
    open_authority(tmp_path / "fleet" / "authority", now())
    with closing(open_database(read_place("", tmp_path / "fleet"))) as database:
        migrate.upgrade(database)
    return tmp_path / "fleet"


def told(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[dict[str, Any]]]:
    code = main(["doctor", "--dir", str(folder), "--json"])
    said = json.loads(capsys.readouterr().out)
    assert said["ok"] == (not said["findings"])
    return code, said["findings"]


def test_all_is_well(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(folder, capsys) == (0, [])
    assert main(["doctor", "--dir", str(folder)]) == 0
    assert "as they should be" in capsys.readouterr().out


def test_keys_that_are_not_here_are_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(folder / "keys")
    code, found = told(folder, capsys)
    assert (code, [one["where"] for one in found]) == (1, [DIRECTOR, *ONLINE])


def test_a_database_that_cannot_be_used_is_a_finding(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "fleet.toml").write_text('[database]\nurl = "postgresql://nobody@127.0.0.1:1/fleet"\n')
    code, (found,) = told(folder, capsys)
    assert (code, found["where"]) == (1, "database")
    assert "cannot be used now" in found["problem"]


def test_tables_of_another_revision_are_a_finding(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = migrate.newest()
    monkeypatch.setattr(migrate, "newest", lambda: "9999")
    code, (found,) = told(folder, capsys)
    assert (code, f"tables are of {known}, this program works with 9999" in found["problem"]) == (1, True)


def test_tables_of_an_old_program_are_a_finding(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(open_database(read_place("", folder))) as database, database.write() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '0009'"))
    code, (found,) = told(folder, capsys)
    assert (code, "'0009', older than what this program migrates" in found["problem"]) == (1, True)


def test_a_server_that_is_too_old_is_a_finding(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with url("postgresql", folder) as text:
        (folder / "fleet.toml").write_text(f'[database]\nurl = "{text}"\n')
        assert told(folder, capsys) == (0, [])
        monkeypatch.setattr(checks, "OLDEST_SERVER", (99,))
        code, (found,) = told(folder, capsys)
    assert (code, found["where"], "older than 99" in found["problem"]) == (1, "database", True)


def test_a_clock_that_nothing_keeps_right_is_a_finding(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observed, "clock_synchronised", lambda: False)
    code, (found,) = told(folder, capsys)
    assert (code, found["where"], found["problem"]) == (1, "clock", "is not synchronised")


def test_a_clock_behind_the_records_is_a_finding(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(open_database(read_place("", folder))) as database, database.write() as connection:
        audit.append(connection, Deed("ann", "look ahead", ""), now() + timedelta(days=1))
    code, (found,) = told(folder, capsys)
    assert (code, found["where"], "the newest record" in found["problem"]) == (1, "clock", True)


def test_certificates_that_end_are_findings(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    authority = open_authority(folder / "authority", now(), AuthoritySettings(server_validity_d=10))
    certificate, key = authority.issue_server(["localhost"], now())
    (folder / "port.pem").write_bytes(certificate)
    (folder / "port.key").write_bytes(key)
    (folder / "fleet.toml").write_text('[listen]\ncertificate = "port.pem"\nkey = "port.key"\n')
    code, (found,) = told(folder, capsys)
    assert (code, found["where"]) == (1, str(folder / "port.pem"))
    assert found["problem"].startswith("expires in 10.0 days")


def test_a_store_on_plain_http_is_a_finding(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "fleet.toml").write_text(S3)
    code, (found,) = told(folder, capsys)
    assert (code, found["where"]) == (1, "[blobs.s3]")
    (folder / "fleet.toml").write_text(S3 + 'public_endpoint = "https://s3.example"\n')
    assert told(folder, capsys) == (0, [])


def test_a_folder_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--dir", str(tmp_path / "nothere")]) == 2
    assert "is not a folder" in capsys.readouterr().err


def test_serve_logs_what_the_doctor_finds(tmp_path: Path) -> None:
    with served_fleet(tmp_path / "fleet") as fleet:
        shutil.rmtree(tmp_path / "fleet" / "keys")
        fleet.replicas[0].start()
        said = fleet.replicas[0].said()
        assert "WARNING fleet.cli.serve: problem found: director: 1 of its published keys must sign, and 0 are" in said
        assert "devices are assigned nothing" in said
