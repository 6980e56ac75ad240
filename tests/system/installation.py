"""`make install`, run for real into folders of its own; one whole installation is shared by all tests of a session."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
HOME = Path("usr/local/lib/edge-gateway")
"""Folder of the installed versions."""
VENV = HOME / "current"
COMMAND = Path("usr/local/bin/edge-gateway")
AGENT = COMMAND.with_name("edge-agent")
SOFTWARE = COMMAND.with_name("edge-software")
UNIT = Path("usr/local/lib/systemd/system/edge-gateway.service")
AGENT_UNIT = UNIT.with_name("edge-agent.service")
SOFTWARE_UNIT = UNIT.with_name("edge-software.service")
SOFTWARE_SOCKET = UNIT.with_name("edge-software.socket")
CONFIGURATION = Path("etc/edge-gateway/edge-gateway.toml")
AGENT_CONFIGURATION = CONFIGURATION.with_name("edge-agent.toml")
SOFTWARE_CONFIGURATION = CONFIGURATION.with_name("edge-software.toml")
LIMIT_S = 280.0


def make(target: str, destdir: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `make TARGET DESTDIR=… VARIABLE=…` in the repository, by an umask that would hide files from the service."""
    names = [f"{name}={value}" for name, value in variables.items()]
    return run("make", "-s", "--no-print-directory", target, f"DESTDIR={destdir}", *names, cwd=REPOSITORY, umask=0o077)


def run(
    *command: str | Path, check: bool = True, limit_s: float = LIMIT_S, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run to the end; what it wrote is in the error where it fails."""
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
        stdin=subprocess.DEVNULL,
        **options,
    )
    assert not check or done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def leave_no_groups(machine: str) -> None:
    """Remove the control groups that container.sh made for a machine that has powered off."""
    for group in Path("/sys/fs/cgroup").glob(f"*/{machine}"):
        group.rmdir()


@functools.cache
def installed() -> Path:
    """Return DESTDIR of a whole installation, moved since; do not change it."""
    folder = Path(tempfile.mkdtemp(prefix="edge-gateway-install."))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    make("install", folder / "assembled")
    return (folder / "assembled").rename(folder / "image")


@functools.cache
def wheel() -> Path:
    """Return the wheel of this source tree, built once in a process."""
    folder = Path(tempfile.mkdtemp(prefix="edge-gateway-wheel."))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=REPOSITORY)
    (built,) = folder.glob("*.whl")
    return built


def copied(to: Path) -> Path:
    """Return a copy of the whole installation to change.

    Its files are hard links, which installing never writes through.
    """
    run("cp", "--archive", "--link", installed(), to)
    return to


def bare(destdir: Path, lock: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Install the gateway without its runtimes, which is quick; `lock` becomes an empty file."""
    lock.touch()
    return make("install", destdir, LOCK=str(lock), TOOLS=sys.executable, **variables)


def clean_environment(**more: str) -> Mapping[str, str]:
    """Return the environment of a service: nothing of this shell's Python settings."""
    return {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", **more}


def files(folder: Path) -> set[str]:
    """Return every file and link below, by relative path, without those of the installed versions."""
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_symlink() or path.is_file())
    return {str(path) for path in found if not path.is_relative_to(HOME)}
