"""New versions of the programs on a booted system: one that works, some that do not, and power cut in between.

Needs root and systemd-nspawn. The releases are real wheels of this project under other versions.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from gateway import __version__
from gateway.common.domain.assignment import SOFTWARE_SLOT
from tests.simulators.fleet_repository import FleetRepository
from tests.simulators.wheels import changed_wheel, pip_wheel
from tests.system.installation import REPOSITORY, installed, run, wheel

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

SCRIPT = Path(__file__).with_name("boot_software.sh")
GROUPS = Path("/sys/fs/cgroup")
BOOT_LIMIT_S = 240.0
CUT_LIMIT_S = 60.0
RUNTIMES = ("onnxruntime", "openvino", "ai-edge-litert")
"""Left out of the releases, to save minutes: the gateway serves by its reference runtime."""
BROKEN_DAEMON = "raise SystemExit('this daemon does not start')\n"
BROKEN_AGENT = "raise RuntimeError('this agent does not ask')\n"
RELEASES: Mapping[str, tuple[str, dict[str, str]]] = {
    "good": ("0.9.1", {}),
    "daemon": ("0.9.2", {"gateway/serving/daemon.py": BROKEN_DAEMON}),
    "agent": ("0.9.3", {"gateway/device/agent/cycle.py": BROKEN_AGENT}),
    "next": ("0.9.4", {}),
}
ASSIGNMENTS: Mapping[str, tuple[str, int]] = {
    "good": ("good", 1),
    "daemon": ("daemon", 1),
    "agent": ("agent", 1),
    "daemon-build": ("daemon", 2),
    "daemon-switch": ("daemon", 3),
    "daemon-probation": ("daemon", 4),
    "agent-back": ("agent", 2),
    "next": ("next", 1),
}
"""Assignments of the fleet, one after the other: a release, and at which attempt."""


class Machine:
    """One device over several boots; `upper` holds what it wrote."""

    def __init__(self, folder: Path, fleet: Path) -> None:
        self._folder, self._fleet = folder, fleet
        self.result = folder / "upper" / "result"
        self._record = folder / "upper/var/lib/edge-software/update.json"
        self._console = folder / "console"

    def boot(self, *plan: str) -> None:
        """Boot, carry out the plan, power off."""
        with self._booted(plan) as process:
            try:
                process.wait(BOOT_LIMIT_S)
            except subprocess.TimeoutExpired:
                pytest.fail(f"{plan} did not end: {self._said()}")

    def boot_until(self, phase: str, *plan: str) -> None:
        """Boot, carry out the plan, and cut power as soon as the record shows `phase`."""
        with self._booted((*plan, "stay")) as process:
            deadline_s = time.monotonic() + BOOT_LIMIT_S
            while (found := _phase(self._record)) != phase:
                if process.poll() is not None or time.monotonic() > deadline_s:
                    pytest.fail(f"it never came to {phase}, but to {found}: {self._said()}")
                time.sleep(0.005)

    def seen(self, name: str) -> dict[str, str]:
        """Return what `see NAME` wrote."""
        return {file.suffix[1:]: file.read_text() for file in self.result.glob(f"{name}.*")}

    @contextmanager
    def _booted(self, plan: tuple[str, ...]) -> Iterator[subprocess.Popen[bytes]]:
        """Boot a machine; at the end kill all that still runs at once, like a power cut."""
        (self._folder / "plan").write_text("\n".join(plan) + "\n")
        command = ["unshare", "--mount", "bash", str(SCRIPT), str(installed()), str(self._fleet), str(self._folder)]
        with self._console.open("ab") as console:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=console, stderr=console)
        try:
            yield process
        finally:
            _cut_power(process)

    def _said(self) -> str:
        errors = self.result / "errors"
        return f"{self._console.read_text()[-3000:]}\n{errors.read_text()[-3000:] if errors.exists() else ''}"


def _cut_power(process: subprocess.Popen[bytes]) -> None:
    """Kill whatever is in the container's control groups, and wait until it is gone."""
    deadline_s = time.monotonic() + CUT_LIMIT_S
    while left := _inside():
        assert time.monotonic() < deadline_s, f"processes that cannot be killed: {left}"
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.poll()
        time.sleep(0.02)  # for what was born meanwhile
    process.wait()
    for group in GROUPS.glob("*/edge-software-boot"):
        for inner in sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True):
            inner.rmdir()
        group.rmdir()


def _inside() -> list[int]:
    files = GROUPS.glob("*/edge-software-boot/**/cgroup.procs")
    return [int(pid) for file in files for pid in file.read_text().split()]


def _phase(record: Path) -> str:
    try:
        found = re.search(r'"phase": "(.*)"', record.read_text())
    except FileNotFoundError:
        return ""
    return found[1] if found else ""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a repository of every release, a device's bootstrap, and its later assignments."""
    folder = tmp_path_factory.mktemp("fleet")
    wheels, repository = _common_wheels(folder / "common"), FleetRepository(folder / "publisher")
    paths = {}
    for name, (version, files) in RELEASES.items():
        place = folder / "wheels" / name
        shutil.copytree(wheels, place)
        changed_wheel(place, wheel(), version, files)
        paths[name] = repository.add_software([place])
    repository.assign("door-1", {})
    (folder / "fleet").mkdir()
    for name, (release, attempt) in ASSIGNMENTS.items():
        extra = {"attempts": {SOFTWARE_SLOT: attempt}}
        content = repository.assignment("door-1", {SOFTWARE_SLOT: paths[release]}, extra=extra)
        (folder / "fleet" / f"{name}.json").write_bytes(content)
    shutil.copytree(repository.public, folder / "fleet" / "public")
    run("chmod", "--recursive", "a+rX", folder / "fleet")
    _given(folder / "fleet" / "given", repository)
    return folder / "fleet"


def _common_wheels(folder: Path) -> Path:
    lock, kept = folder.with_name("lock.txt"), True
    lines = []
    for line in (REPOSITORY / "requirements" / "runtime.txt").read_text().splitlines(keepends=True):
        kept = not line.startswith(RUNTIMES) if re.match(r"\w", line) else kept
        lines.append(line if kept else "")
    lock.write_text("".join(lines))
    options = ("--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", "download", *options, "-r", lock, "-d", folder)
    shutil.copy(pip_wheel(), folder)
    return folder


def _given(folder: Path, repository: FleetRepository) -> None:
    url = "file:///srv/fleet/public"
    told = {"schema": 1, "device": "door-1", "repository": url, "assignment": f"{url}/assignments/door-1.json"}
    folder.mkdir()
    (folder / "device.json").write_text(json.dumps(told))
    (folder / "root.json").write_bytes(repository.root_bytes())
    folder.chmod(0o700)


@pytest.fixture(scope="module")
def machine(fleet: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Yield a device that is a member of the fleet and runs the version that `make install` put there."""
    folder = tmp_path_factory.mktemp("machine")
    made = Machine(folder, fleet)
    made.boot("setup", "see first")
    yield made
    run("rm", "--recursive", folder)  # gigabytes that pytest must not keep


def versions(machine: Machine, name: str) -> tuple[str, str, str]:
    """Return the version of `current`, of `confirmed` and of the running gateway; all must work."""
    seen = machine.seen(name)
    status = json.loads(seen["status"])
    running = re.search(r"/versions/([^/]+)/", seen["cmdline"])
    assert running, seen
    assert seen["units"].split() == ["active", "active"], seen["journal"][-3000:]
    assert json.loads(seen["infer"])["model_name"] == "meter-reader"
    found = (status["current"], status["confirmed"], running[1])
    return tuple(one.split("-")[0] for one in found)  # type: ignore[return-value]


def outcome(machine: Machine, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(machine.seen(name)["status"])["update"]
    return found


def test_bootstrap_as_root_pins_whom_the_installer_trusts(machine: Machine) -> None:
    status = json.loads(machine.seen("first")["status"])
    assert status["trusted"] is True
    assert versions(machine, "first") == (__version__,) * 3


def test_a_good_version_is_installed_confirmed_and_kept(machine: Machine) -> None:
    machine.boot("assign good", "wait done rolled-back", "see good")
    assert outcome(machine, "good")["phase"] == "done", machine.seen("good")["journal"][-5000:]
    slot = json.loads(machine.seen("good")["agent"])["slots"][SOFTWARE_SLOT]
    assert slot["committed"]["target"] == "software/edge-gateway/0.9.1/release"
    assert versions(machine, "good") == ("0.9.1",) * 3
    assert machine.seen("good")["version"] == "edge-gateway 0.9.1\n"


def test_a_daemon_that_does_not_start_is_taken_back(machine: Machine) -> None:
    machine.boot("assign daemon", "wait done rolled-back", "see daemon")
    assert versions(machine, "daemon") == ("0.9.1",) * 3
    found = outcome(machine, "daemon")
    assert (found["phase"], found["failed_in"]) == ("rolled-back", "probation")
    assert "edge-gateway.service is" in found["reason"]
    assert json.loads(machine.seen("daemon")["agent"])["slots"][SOFTWARE_SLOT]["rejected"] == found["reason"]


def test_an_agent_that_cannot_ask_is_taken_back(machine: Machine) -> None:
    machine.boot("assign agent", "wait done rolled-back", "see agent")
    assert versions(machine, "agent") == ("0.9.1",) * 3
    found = outcome(machine, "agent")
    assert (found["phase"], found["failed_in"]) == ("rolled-back", "probation")
    assert "the new agent did not complete a poll" in found["reason"]


@pytest.mark.parametrize("phase", ["build", "switch", "probation"])
def test_power_cut_under_a_bad_version_ends_with_the_old_one(phase: str, machine: Machine) -> None:
    machine.boot_until(phase, f"assign daemon-{phase}")
    machine.boot("wait done rolled-back", f"see cut-{phase}")
    assert versions(machine, f"cut-{phase}") == ("0.9.1",) * 3
    assert outcome(machine, f"cut-{phase}")["phase"] == "rolled-back"


def test_power_cut_during_the_way_back_ends_with_the_old_one(machine: Machine) -> None:
    machine.boot_until("roll-back", "assign agent-back")
    machine.boot("wait done rolled-back", "see cut-back")
    assert versions(machine, "cut-back") == ("0.9.1",) * 3


def test_power_cut_in_every_phase_of_a_good_version_ends_with_it(machine: Machine) -> None:
    """One phase after the other: each boot goes on from where power was cut."""
    machine.boot_until("build", "assign next")
    for phase in ("test", "switch", "probation", "commit"):
        machine.boot_until(phase)
    machine.boot("wait done rolled-back", "see next")
    assert outcome(machine, "next")["phase"] == "done", machine.seen("next")["journal"][-5000:]
    assert versions(machine, "next") == ("0.9.4",) * 3
    assert len(json.loads(machine.seen("next")["status"])["versions"]) == 2


def test_an_operator_goes_back_by_hand_and_the_fleet_does_not_undo_it(machine: Machine) -> None:
    machine.boot("back", "see back")
    assert versions(machine, "back") == ("0.9.1",) * 3
    slot = json.loads(machine.seen("back")["agent"])["slots"][SOFTWARE_SLOT]
    assert slot["assigned"] == "software/edge-gateway/0.9.4/release"
    assert (slot["update"], slot["committed"]) == (None, None)
    assert "by hand" in slot["rejected"]
