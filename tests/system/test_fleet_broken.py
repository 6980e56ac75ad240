"""`edge-fleet serve` where it should not begin: a folder that is not there, a CA that was lost."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.app import Controller, Origin
from fleet.config import FleetConfig
from gateway.domain.errors import ConfigurationError
from tests.simulators.controller import controlling, free_port

ROOT = Path(__file__).parents[2]


def test_a_mistyped_folder_begins_no_fleet(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fleet", "serve", "--dir", str(tmp_path / "none")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "none: is no folder; --dir names the publisher's" in done.stderr
    assert not [*tmp_path.iterdir()]


def test_a_lost_ca_is_not_replaced_while_devices_have_certificates_of_it(tmp_path: Path) -> None:
    with controlling(tmp_path) as running:
        running.enrolled("camera-1")
        folder, repository = running.folder, running.repository
    kept = shutil.move(folder / "authority", tmp_path / "kept")
    with pytest.raises(ConfigurationError, match="devices have certificates of a CA that is not here"):
        Controller(Origin(folder, _on_a_free_port()))
    assert not (folder / "authority" / "ca.pem").exists()
    shutil.move(kept, folder / "authority")
    with controlling(tmp_path, repository=repository) as again, again.device_client(again.enrolled("camera-2")) as one:
        assert one.get("/v1/self/assignment").status_code == 200


def _on_a_free_port() -> FleetConfig:
    config = FleetConfig()
    return replace(config, listen=replace(config.listen, addresses=(f"127.0.0.1:{free_port()}",)))
