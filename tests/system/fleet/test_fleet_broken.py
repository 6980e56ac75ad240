"""`edge-fleet` where it should not begin, and what a clumsy operator may lose: a CA, a database, a token's file."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.controller.app import Controller, Origin
from fleet.controller.config import FleetConfig
from gateway.common.domain.errors import ConfigurationError
from tests.simulators.controller import controlling, free_port
from tests.simulators.operator import operator

ROOT = Path(__file__).parents[3]


def test_a_mistyped_folder_begins_no_fleet(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fleet", "serve", "--dir", str(tmp_path / "none")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "none: is not a folder; name the publisher's with --dir" in done.stderr
    assert not [*tmp_path.iterdir()]


def test_a_lost_ca_is_not_replaced_while_devices_have_certificates_of_it(tmp_path: Path) -> None:
    with controlling(tmp_path) as running:
        running.enrolled("camera-1")
        folder, repository = running.folder, running.repository
    kept = shutil.move(folder / "authority", tmp_path / "kept")
    with pytest.raises(ConfigurationError, match="the fleet has a device CA that is not here"):
        Controller(Origin(folder, _on_a_free_port()))
    assert not (folder / "authority" / "ca.pem").exists()
    shutil.move(kept, folder / "authority")
    with controlling(tmp_path, repository=repository) as again, again.device_client(again.enrolled("camera-2")) as one:
        assert one.get("/v1/self/assignment").status_code == 200


@pytest.mark.parametrize("spoilt", [b"nothing of the kind", None])
def test_a_damaged_database_is_told_with_its_remedy(tmp_path: Path, spoilt: bytes | None) -> None:
    with controlling(tmp_path) as running:
        folder = running.folder
    file = folder / "fleet.sqlite"
    content = bytearray(file.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    file.write_bytes(spoilt or content)
    port = f'[listen]\naddresses = ["127.0.0.1:{free_port()}"]\n'
    (folder / "fleet.toml").write_text(port)
    command = [sys.executable, "-m", "fleet", "serve", "--dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "edge-fleet backup restore" in done.stderr) == (3, True), done.stderr
    assert "Traceback" not in done.stderr


def test_what_lies_in_a_file_is_not_lost_to_a_slip_of_the_hand(tmp_path: Path) -> None:
    with controlling(tmp_path) as running:
        admin, database = operator(running), running.folder / "fleet.sqlite"
        mine = tmp_path / "mine.token"
        mine.write_text("a secret that is shown nowhere again")
        before = database.stat().st_ino
        for words in (
            ("devices", "token", "--out", mine),
            ("tokens", "create", "ben", "--role", "viewer", "--out", mine),
            ("backup", "save", mine, "--dir", running.folder),
            ("backup", "save", database, "--dir", running.folder),
        ):
            code, _, err = admin.run(*words)
            assert (code, "name another file" in err) == (2, True), err
        assert mine.read_text() == "a secret that is shown nowhere again"
        assert database.stat().st_ino == before
        assert [one["name"] for one in admin.told("tokens", "list")["tokens"]] == ["olga"]
        assert admin.told("devices", "tokens")["enrolments"] == []
        saved = tmp_path / "daily.backup"
        assert [admin.run("backup", "save", saved, "--dir", running.folder)[0] for _ in range(2)] == [0, 0]


def test_a_span_that_is_none_is_refused_by_its_option(tmp_path: Path) -> None:
    with controlling(tmp_path) as running:
        for words in (("devices", "token", "--hours"), ("tokens", "create", "x", "--role", "viewer", "--days")):
            for text in ("0", "nan", "inf", "-1", "soon"):
                code, _, err = operator(running, name=f"o-{words[0]}{text}").run(*words[:-1], f"{words[-1]}={text}")
                assert (code, f"{words[-1]}: must be a number above 0" in err) == (2, True), err


def _on_a_free_port() -> FleetConfig:
    config = FleetConfig()
    return replace(config, listen=replace(config.listen, addresses=(f"127.0.0.1:{free_port()}",)))


def test_a_device_that_does_not_know_the_ca_is_told_the_option(tmp_path: Path) -> None:
    with controlling(tmp_path) as running:
        (tmp_path / "token").write_text("efe_any")
        words = ["enrol", running.url, "--token-file", str(tmp_path / "token"), "--state", str(tmp_path / "state")]
        command = [sys.executable, "-m", "gateway.device.agent", *words]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "edge-agent enrol … --ca FILE" in done.stderr) == (3, True), done.stderr
