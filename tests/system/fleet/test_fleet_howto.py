"""The commands of `docs/pages/howto/fleet.md`, as a newcomer pastes them into a terminal in a new folder."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulators import runtime_only
from tests.simulators.controller import free_port
from tests.simulators.fleet_device import FleetDevice
from tests.simulators.operator import Operator, until
from tests.simulators.publisher import PASSPHRASE, ROOT, Publisher
from tests.simulators.served_fleet import Replica

pytestmark = pytest.mark.timeout(300)
BLOCKS = re.findall(r"```sh\n(.*?)```", (ROOT / "docs/pages/howto/fleet.md").read_text(), re.DOTALL)
RATE = "minimum_rate_window_s"
URL = "https://localhost:8443"


class Shell(Operator):
    """Terminal in a folder, with the programs on its path."""

    def paste(self, script: str, *, code: int = 0) -> str:
        """Run the lines, with "y" as the answer to each question. Return what they print."""
        found, out = self.looked(script, columns=160, typed="y\n" * 10)
        assert found == code, out
        return out

    def _command(self, words: tuple[str | Path, ...]) -> list[str]:
        return ["/bin/bash", "-euc", *map(str, words)]


def test_the_page_leads_from_nothing_to_a_device_that_runs_a_release(tmp_path: Path, state: Path) -> None:
    keys, release, serve, operator, device_lines, rollout_lines = BLOCKS[:6]
    home, port = tmp_path / "fleet", free_port()
    home.mkdir()
    (home / "fleet.toml").write_text(f'[listen]\naddresses = ["127.0.0.1:{port}"]\n[scheduler]\ntick_s = 0.2\n')
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    shell = Shell({"PATH": path, "HOME": str(tmp_path), "EDGE_FLEET_PASSPHRASE": PASSPHRASE, "LANG": "C.UTF-8"})
    begin, url = f"cd {home}\n", f"https://localhost:{port}"

    assert "published targets, version 1" in shell.paste(begin + keys)
    assert "published models-acme, version 1" in shell.paste(begin + release.replace("CHECKOUT", str(ROOT)))
    words = shlex.split(serve)
    assert words[:2] == ["edge-fleet", "serve"]
    replica = Replica(home, url, [sys.executable, "-m", "fleet", "serve", "--dir", str(home)])
    replica.start()
    device = FleetDevice(tmp_path / "device", state)
    device.configure(fetch=dict.fromkeys(("document_deadline_s", "read_timeout_s", "blob_deadline_s", RATE), 60.0))
    try:
        assert "controller starting: " in replica.said().splitlines()[0]
        shell.paste(begin + operator.replace(URL, url))
        with device.powered():
            enrol, *others = device_lines.replace(URL, url).splitlines()
            assert others == ["sudo systemctl enable --now edge-agent", "edge-agent status"]
            sudo, program, verb, *arguments = shlex.split(enrol)
            assert (sudo, program) == ("sudo", "edge-agent")
            done = device.agent(verb, *(str(home / one) if (home / one).is_file() else one for one in arguments))
            assert done.code == 0, done.err
            _rolled_out(shell, begin + _exports(operator.replace(URL, url)), rollout_lines, device)
    finally:
        replica.end()


def _exports(lines: str) -> str:
    return "".join(f"{line}\n" for line in lines.splitlines() if line.startswith("export "))


def _rolled_out(shell: Shell, begin: str, lines: str, device: FleetDevice) -> None:
    create, approve, start, watch = lines.splitlines()
    rollout = re.search(r"r\d{6}-\d{6}-[0-9a-f]{6}", shell.paste(begin + create))
    assert rollout
    approve, start, watch = (line.replace("ID", rollout[0]) for line in (approve, start, watch))
    assert f"{rollout[0]}: approved" in shell.paste(begin + approve)
    assert f"{rollout[0]}: running" in shell.paste(begin + start)
    until(lambda: (done := device.sync()).code == 0 and done.told["slots"], "the release is not installed")
    assert "finished" in shell.paste(begin + watch)
    assert list(device.serving) == ["1"]


def test_publishing_needs_only_the_packages_of_devices(tmp_path: Path) -> None:
    """`requirements/runtime.txt` lacks the controller's database."""
    publisher = Publisher(tmp_path / "publisher")
    publisher.begin()
    command = [runtime_only.interpreter(), "-m", "fleet", "publish"]
    for expected in ("0 files copied to ", "affected devices are not counted: No module named 'sqlalchemy'"):
        done = subprocess.run(
            command, cwd=publisher.folder, env=publisher.environment, capture_output=True, text=True, check=False
        )
        assert (done.returncode, expected in done.stdout + done.stderr) == (0, True), done.stderr
        (publisher.folder / "fleet.sqlite").touch()  # a controller works here


def test_a_new_director_asks_for_new_assignments_only_where_no_controller_signs_them(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path / "publisher")
    publisher.begin()
    publisher.run("keys", "new", "director-2", "--out", "keys", "--no-passphrase")
    said = publisher.run("rotate", "director", "--key", "keys/director-2.pub").stdout
    assert "edge-fleet assign all --renew, for devices without edge-fleet serve" in said
