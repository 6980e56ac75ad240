"""Virtual environment of one version: the commands that build it, and the steps that make it relocatable.

No file in it names the folder in which it was built, so it can be renamed, and an image can be assembled anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

PROGRAMS = {
    "edge-gateway": "gateway",
    "edge-agent": "gateway.device.agent",
    "edge-software": "gateway.device.installer",
}
"""Commands of a device, with the package that Python runs for each. `edge-fleet` is not for devices."""
LAUNCHER = """#!/bin/sh
# The interpreter is next to this file: this tree may be moved.
# Nothing is imported from the working directory, and ONNX Runtime sends no usage data to its vendor.
export PYTHONSAFEPATH=1 ORT_DISABLE_TELEMETRY="${ORT_DISABLE_TELEMETRY-1}"
{state}exec "$(dirname -- "$(readlink -f -- "$0")")/python3" -I -m {package} "$@"
"""
STATE = """# Commands of an operator use the store of the unit, unless another one is set.
if [ -z "${STATE_DIRECTORY-}${XDG_STATE_HOME-}" ]; then export STATE_DIRECTORY=/var/lib/edge-agent; fi
"""
PIP_OPTIONS = ("--quiet", "--no-deps", "--no-compile", "--disable-pip-version-check")


def interpreter(environment: Path) -> Path:
    """Return the path of the environment's Python."""
    return environment / "bin" / "python3"


def creation(python: str, stage: Path) -> tuple[str, ...]:
    """Return the command that makes an empty environment at `stage`."""
    return (python, "-m", "venv", "--without-pip", "--symlinks", str(stage))


def installation(stage: Path, pip: Path, requirements: Path) -> tuple[str, ...]:
    """Return the command that installs wheels from the disk, without network, each checked against its hash.

    `pip`: the wheel of pip, which runs without being installed. `requirements`: the wheels and hashes.
    """
    options = (*PIP_OPTIONS, "--isolated", "--no-cache-dir", "--root-user-action=ignore")
    command = (str(interpreter(stage)), "-I", f"{pip}/pip", "install", *options)
    return (*command, "--no-index", "--require-hashes", "--only-binary=:all:", "-r", str(requirements))


def compilation(stage: Path, final: Path) -> tuple[str, ...]:
    """Return the command that compiles an environment under its final path.

    It ends with 1 if a dependency contains a template that is not Python. Byte code is not compared with its source:
    copying an image changes times, and the daemon may not write.
    """
    names = ("-s", str(stage), "-p", str(final), "--invalidation-mode", "unchecked-hash")
    return (str(interpreter(stage)), "-m", "compileall", "-qq", "-f", "-j", "0", *names, str(stage / "lib"))


def requirements_text(wheels: Sequence[tuple[Path, str]]) -> str:
    """Return pip's list of wheels on the disk, each with its SHA-256."""
    return "".join(f"{wheel} --hash=sha256:{digest}\n" for wheel, digest in wheels)


def launcher_text(name: str, package: str) -> str:
    """Return the program `name`, which runs a package in the environment that holds it."""
    return LAUNCHER.replace("{package}", package).replace("{state}", STATE if name == "edge-agent" else "")


def make_relocatable(stage: Path) -> None:
    """Remove what names the staging folder, and add launchers.

    Removed are activate scripts, console scripts and the command in pyvenv.cfg.
    """
    programs = stage / "bin"
    for program in programs.iterdir():
        if not re.fullmatch(r"python[\d.]*", program.name):
            program.unlink()
    for name, package in PROGRAMS.items():
        launcher = programs / name
        launcher.write_text(launcher_text(name, package))
        launcher.chmod(0o755)
    settings = stage / "pyvenv.cfg"
    lines = settings.read_text().splitlines(keepends=True)
    settings.write_text("".join(line for line in lines if not line.startswith("command")))
