"""The units as systemd sees them: they verify with systemd's own, are hardened, and their users can be made."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.installation import (
    AGENT_UNIT,
    COMMAND,
    REPOSITORY,
    SOFTWARE_SOCKET,
    SOFTWARE_UNIT,
    UNIT,
    clean_environment,
    copied,
    installed,
    run,
)

pytestmark = pytest.mark.timeout(300)

EXPOSURE_LIMITS = {"edge-gateway": 1.6, "edge-agent": 1.5, "edge-fleet": 1.2, "edge-software": 2.0}
NOTIFICATION_LIMIT_S = 60.0
SYSTEM_UNITS = Path("/usr/lib/systemd/system")
SOURCE = REPOSITORY / "systemd" / "edge-gateway.service"
AGENT_SOURCE = SOURCE.with_name("edge-agent.service")
FLEET_SOURCE = SOURCE.with_name("edge-fleet.service")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the installed tree and systemd's own units; half a gigabyte that pytest must not keep."""
    image = copied(tmp_path_factory.mktemp("root") / "image")
    target = image / SYSTEM_UNITS.relative_to("/")
    target.parent.mkdir(parents=True)
    run("cp", "--recursive", SYSTEM_UNITS, target)
    yield image
    shutil.rmtree(image)


@pytest.mark.parametrize("unit", [UNIT, AGENT_UNIT, SOFTWARE_UNIT, SOFTWARE_SOCKET], ids=lambda unit: unit.name)
def test_it_verifies_without_a_word(unit: Path, root: Path) -> None:
    done = run("systemd-analyze", "verify", "--man=no", f"--root={root}", f"/{unit}")
    assert done.stdout + done.stderr == ""


def test_the_controllers_unit_verifies_without_a_word(root: Path) -> None:
    program = root / "opt/edge-fleet/bin/edge-fleet"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    unit = Path("/etc/systemd/system/edge-fleet.service")
    (root / unit.relative_to("/")).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(FLEET_SOURCE, root / unit.relative_to("/"))
    done = run("systemd-analyze", "verify", "--man=no", f"--root={root}", unit)
    assert done.stdout + done.stderr == ""


def test_verification_would_find_a_mistake(root: Path) -> None:
    unit = root / UNIT.with_name("wrong.service")
    unit.write_text((root / UNIT).read_text().replace("KillMode=", "KilMode="))
    done = run("systemd-analyze", "verify", "--man=no", f"--root={root}", f"/{UNIT.with_name('wrong.service')}")
    assert "KilMode" in done.stdout + done.stderr


@pytest.mark.parametrize(("name", "limit"), EXPOSURE_LIMITS.items())
def test_its_exposure_is_small(name: str, limit: float) -> None:
    done = run("systemd-analyze", "security", "--offline=true", "--no-pager", SOURCE.with_name(f"{name}.service"))
    (exposure,) = re.findall(rf"Overall exposure level for {name}.service: ([\d.]+)", done.stdout)
    assert float(exposure) <= limit


def test_hardening_spares_what_the_runtimes_need() -> None:
    service = _service()
    assert "memorydenywriteexecute" not in service  # OpenVINO writes machine code and runs it
    assert service["procsubset"] == "all"  # /proc/cpuinfo and meminfo
    assert "inaccessiblepaths" not in service  # /sys/devices/system/cpu
    assert "privatedevices" not in service
    assert "removeipc" not in service  # at a stop it removes segments of the unit's group, which are callers'
    assert service["devicepolicy"] == "closed"
    assert {"AF_INET", "AF_INET6", "AF_UNIX"} <= set(service["restrictaddressfamilies"].split())
    calls = set(re.findall(r"^SystemCallFilter=(.*)$", SOURCE.read_text(), re.MULTILINE))  # of sandboxes of Python code
    assert "landlock_create_ruleset landlock_add_rule landlock_restrict_self" in calls


def test_the_agent_has_no_devices_and_three_kinds_of_sockets() -> None:
    service = _service(AGENT_SOURCE)
    assert service["privatedevices"] == service["memorydenywriteexecute"] == "yes"
    assert not any(key.startswith("deviceallow") for key in service)
    assert "removeipc" not in service  # its group is the gateway's, in which callers' segments are
    assert set(service["restrictaddressfamilies"].split()) == {"AF_INET", "AF_INET6", "AF_UNIX"}


def test_the_agent_may_ask_the_kernel_about_its_clock() -> None:
    """Else no clock would be trusted: each question would carry a nonce, and no answer could be cached."""
    service = _service(AGENT_SOURCE)
    assert "protectclock" not in service
    assert "adjtimex" in service["systemcallfilter"]  # of a repeated key the last: after ~@privileged took it


def test_the_agent_comes_after_the_gateway_and_lives_without_it() -> None:
    unit = _section(AGENT_SOURCE, "Unit")
    assert {"network-online.target", "edge-gateway.service"} <= set(unit["after"].split()) & set(unit["wants"].split())
    assert not {"requires", "bindsto", "requisite", "partof"} & set(unit)


@pytest.mark.parametrize("nodes", ["drm", "accel", "apex", "usb_device", "hailo*", "nvidia*", "video4linux"])
def test_nodes_of_accelerators_and_cameras_may_be_opened(nodes: str) -> None:
    assert f"DeviceAllow=char-{nodes} rw" in SOURCE.read_text().splitlines()


def test_its_user_and_groups_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    file = installed() / "usr/local/lib/sysusers.d/edge-gateway.conf"
    run("systemd-sysusers", f"--root={tmp_path}", file)
    users, groups = (tmp_path / "etc/passwd").read_text(), (tmp_path / "etc/group").read_text()
    made = re.findall(r"^edge-(\w+):.*:(\d+):.*:/var/lib/edge-(\w+):\S*nologin$", users, re.MULTILINE)
    assert {(name, home) for name, _, home in made} == {("gateway", "gateway"), ("agent", "agent")}
    assert (
        len({group for _, group, _ in made}) == 1
    )  # the gateway's: else what root's `sudo -u` writes were not its to read
    members = dict(re.findall(r"^(\S+?):x?:\d+:(\S*)$", groups, re.MULTILINE))
    assert {name for name, names in members.items() if "edge-gateway" in names.split(",")} == {
        "render",
        "video",
        "plugdev",
        "apex",
        "hailo",
    }


def test_its_folders_can_be_made_and_a_model_that_root_copies_there_belongs_to_its_group(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    tmp_path.chmod(0o755)
    run("systemd-sysusers", f"--root={tmp_path}", installed() / "usr/local/lib/sysusers.d/edge-gateway.conf")
    for _ in "at the installation", "at a boot":
        run(
            "systemd-tmpfiles",
            "--create",
            f"--root={tmp_path}",
            installed() / "usr/local/lib/tmpfiles.d/edge-gateway.conf",
        )
    _, uid, gid = re.findall(
        r"^(edge-gateway):[^:]*:(\d+):(\d+):", (tmp_path / "etc/passwd").read_text(), re.MULTILINE
    )[0]
    models = tmp_path / "var/lib/edge-gateway/models"
    owners = {
        (f"{path.lstat().st_uid}", f"{path.lstat().st_gid}") for path in (models.parent, *models.parent.rglob("*"))
    }
    assert owners == {(uid, gid)}
    assert (models.parent.stat().st_mode & 0o7777, models.stat().st_mode & 0o7777) == (0o751, 0o2755)
    assert _service(SOURCE)["statedirectorymode"] == "0751", "else systemd changes it at each start"
    assert (installed() / (models / "README.md").readlink().relative_to("/")).is_file()
    given = tmp_path / "model"
    given.mkdir()
    (given / "model.onnx").touch(mode=0o640)
    run("cp", "-r", given, models)
    assert f"{(models / 'model').stat().st_gid} {(models / 'model/model.onnx').stat().st_gid}" == f"{gid} {gid}"


@pytest.mark.parametrize("name", ["edge-gateway", "edge-agent"])
def test_the_units_user_is_the_one_that_is_made(name: str) -> None:
    service = _service(SOURCE.with_name(f"{name}.service"))
    assert (service["user"], service["group"], service["umask"]) == (name, "edge-gateway", "0027")


def test_the_controllers_user_is_the_one_that_is_made(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    run("systemd-sysusers", f"--root={tmp_path}", FLEET_SOURCE.with_suffix(".sysusers"))
    assert re.search(r"^edge-fleet:.*:/var/lib/edge-fleet:", (tmp_path / "etc/passwd").read_text(), re.MULTILINE)
    service = _service(FLEET_SOURCE)
    assert (service["user"], service["group"], service["umask"]) == ("edge-fleet", "edge-fleet", "0027")


# ---- what Type=notify expects of the installed daemon, without a systemd -------------------------------------------


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """Yield a socket that listens on NOTIFY_SOCKET like systemd."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(NOTIFICATION_LIMIT_S)
        yield listener


def test_it_tells_the_manager_what_it_does(manager: socket.socket, tmp_path: Path) -> None:
    environment = clean_environment(
        NOTIFY_SOCKET=manager.getsockname(), STATE_DIRECTORY=str(tmp_path / "state"), WATCHDOG_USEC="1000000"
    )
    options = ("--grpc", f"unix:{tmp_path}/grpc.sock", "--http", "off", "--mqtt", "off")
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen([str(installed() / COMMAND), "run", *options], env=environment, stderr=log) as daemon,
    ):
        try:
            assert _await(manager, "READY=1") <= {"WATCHDOG=1"}
            assert (tmp_path / "grpc.sock").is_socket()
            _await(manager, "WATCHDOG=1")
            os.kill(daemon.pid, signal.SIGHUP)
            _await(manager, "RELOADING=1")
            _await(manager, "READY=1")
            _await(manager, "WATCHDOG=1")
            daemon.terminate()
            _await(manager, "STOPPING=1")
            assert daemon.wait(NOTIFICATION_LIMIT_S) == 0
        finally:
            daemon.kill()


def _await(manager: socket.socket, expected: str) -> set[str]:
    """Return every assignment received before `expected`, but for the status line."""
    heard: set[str] = set()
    while True:
        lines = manager.recv(4096).decode().splitlines()
        if expected in lines:
            return heard
        heard |= {line for line in lines if not line.startswith("STATUS=")}


def _service(unit: Path = SOURCE) -> dict[str, str]:
    return _section(unit, "Service")


def _section(unit: Path, name: str) -> dict[str, str]:
    """Return a section of a unit; a repeated key has its last value."""
    read = configparser.ConfigParser(strict=False, interpolation=None)
    read.read_string(unit.read_text())
    return dict(read[name])
