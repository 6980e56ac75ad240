"""State that cannot be written: the daemon serves, by the kept verdicts where they can be read, and says so."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from gateway.device.agent.control import DaemonClient
from gateway.device.agent.settings import ControlClientSettings
from gateway.serving.store.settings_record import FILE
from tests.performance.networks import tiny
from tests.simulators.daemon import COMMAND, QUIET, ROOT, SHORT_TRIALS, Daemon, running

MOUNTING = ("unshare", "--mount") if os.geteuid() == 0 else ("unshare", "--map-root-user", "--mount")
"""A mount namespace of the daemon's own: what is mounted in it goes with it."""
DISK = 'mount -t tmpfs -o size=1m none "$STATE" && cp "$KEPT"/* "$STATE" && '
OTHER = 'chown -R 54321 "$STATE" && chmod 700 "$STATE" && exec setpriv --bounding-set -dac_override,-dac_read_search '
PLACES = {
    "read-only": DISK + 'mount -o remount,ro "$STATE" && exec ',
    "full": DISK + '{ head -c 2m /dev/zero > "$STATE/filler" || exec ',
    "another owner's": DISK + OTHER,
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    (folder / "tiny").mkdir()
    (folder / "tiny" / "model.onnx").write_bytes(tiny().content)
    return folder


@pytest.fixture(scope="module", params=["stopped", "killed"])
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, models: Path) -> Path:
    """Return state with verdicts; those of a daemon that was killed are in SQLite's write-ahead log."""
    folder = tmp_path_factory.mktemp("kept")
    daemon = Daemon(folder, models=models).start()
    daemon.kill() if request.param == "killed" else daemon.stop()
    return daemon.state


def options(folder: Path, **more: Any) -> dict[str, Any]:
    config = f'{QUIET}{SHORT_TRIALS}[control]\nlisten = "unix:{folder}/control"\n'
    return {"grpc": ["off"], "config": config, **more}


def check(daemon: Daemon, folder: Path, *, is_readable: bool = True) -> str:
    """Return what it says of its state, after it has said so everywhere."""
    line = daemon.wait_logged("state kept in memory", level="warning")
    with urllib.request.urlopen(f"http://{daemon.http}/v2/models/tiny/ready", timeout=20) as answer:
        assert answer.status == 200
    with urllib.request.urlopen(f"http://{daemon.http}/metrics", timeout=20) as answer:
        assert "edge_gateway_state_writable 0.0" in answer.read().decode().splitlines()
    control = DaemonClient(ControlClientSettings(f"{folder}/control"))
    unread = f"; {daemon.state / FILE}: Permission denied; see that the folder is there and writable"
    assert control.status()["problem"] == line["problem"] + ("" if is_readable else unread)
    assert "then restart" in line["problem"]
    return str(line["problem"])


@pytest.mark.parametrize("place", PLACES)
def test_it_serves_where_the_disk_takes_nothing(tmp_path: Path, models: Path, kept: Path, place: str) -> None:
    (tmp_path / "state").mkdir()
    script = PLACES[place] + '"$@"' + ("; }" if place == "full" else "")
    environ = {"KEPT": str(kept), "STATE": str(tmp_path / "state")}
    command = (*MOUNTING, "sh", "-c", script, "sh", *COMMAND)
    with running(tmp_path, models=models, **options(tmp_path, command=command, environ=environ)) as daemon:
        check(daemon, tmp_path, is_readable=place != "another owner's")
        tried = "trial finished" in daemon.log
    assert tried == (place == "another owner's")


@pytest.mark.parametrize("folder", ["file", "file/state", "/proc/nowhere"])
def test_it_serves_where_the_folder_cannot_be(tmp_path: Path, models: Path, folder: str) -> None:
    (tmp_path / "file").write_text("in the way")
    with running(tmp_path, models=models, state=tmp_path / folder, **options(tmp_path)) as daemon:
        assert f"the state in {tmp_path / folder} cannot be written" in check(daemon, tmp_path)


def test_commands_go_on_and_remark_it(models: Path) -> None:
    for verb in (["explain", "tiny"], ["models", "check", str(models)]):
        arguments = [*verb, "--json", "--models", str(models), "--state", "/proc/nowhere"]
        done = subprocess.run([*COMMAND, *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
        assert json.loads(done.stdout)
        assert "edge-gateway: the state in /proc/nowhere cannot be written" in done.stderr


def test_doctor_finds_it(tmp_path: Path, models: Path) -> None:
    shutil.copy(models / "tiny" / "model.onnx", tmp_path / "state")
    arguments = ["doctor", "--json", "--models", str(models), "--state", str(tmp_path / "state")]
    done = subprocess.run([*COMMAND, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    (found,) = (one for one in json.loads(done.stdout)["findings"] if one["subject"] == "state")
    assert (done.returncode, found["remedy"].startswith("free space there")) == (1, True)
