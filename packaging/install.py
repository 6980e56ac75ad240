"""`make install` and `make uninstall`, by the standard library alone: the gateway under DESTDIR/PREFIX, and away again.

The virtual environment is built beside its place and moved in, so that an upgrade is whole or absent; nothing in it
names DESTDIR or the build's folders, so that an image may be assembled anywhere.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from layout import PROGRAMS, UNITS, Layout
from record import Record, digest

SOURCE = Path(__file__).resolve().parent.parent
DISTRIBUTION = "edge-inference-gateway"
LAUNCHER = """#!/bin/sh
# Finds its interpreter beside itself: this tree may be moved.
# The working directory is no place to import from, and ONNX Runtime is not to collect usage for its vendor.
export PYTHONSAFEPATH=1 ORT_DISABLE_TELEMETRY="${ORT_DISABLE_TELEMETRY-1}"
{state}exec "$(dirname -- "$(readlink -f -- "$0")")/python3" -m {package} "$@"
"""
STATE = """# What an operator types means the store of the unit, unless told otherwise.
if [ -z "${STATE_DIRECTORY-}${XDG_STATE_HOME-}" ]; then export STATE_DIRECTORY=/var/lib/edge-agent; fi
"""
PRIVATE = ("/root/", "/home/")
"""Where the service may not look (ProtectHome=yes)."""


class InstallError(Exception):
    """What happened, and what to do next."""


def main() -> int:
    """Install or uninstall; 0 fine, 2 usage, 3 something needed is missing."""
    arguments = _parser().parse_args()
    try:
        layout = Layout(arguments.destdir, arguments.prefix)
    except ValueError as error:
        return _complain(str(error), 2)
    try:
        if arguments.action == "install":
            install(layout, arguments)
        else:
            uninstall(layout)
    except (InstallError, OSError) as error:
        return _complain(str(error), 3)
    except subprocess.CalledProcessError as error:
        return _complain(f"'{' '.join(map(str, error.cmd[:6]))} …' ended with {error.returncode}; see above", 3)
    return 0


def install(layout: Layout, options: argparse.Namespace) -> None:
    """Put everything in place; a second time, upgrade. Raises InstallError, OSError, CalledProcessError."""
    record = Record.read(layout)
    record.make_folders(layout)
    with tempfile.TemporaryDirectory(prefix="edge-gateway-build.") as build:
        _build_environment(layout, Path(build), options)
    _place_files(layout, record)
    for place, sample in layout.configurations.items():
        _place_configuration(layout, record, place, sample)
    record.write(layout)
    _swap(layout)
    _tell_the_system(layout)


def uninstall(layout: Layout) -> None:
    """Take away what `install` put there; state and a changed configuration stay. Raises InstallError, OSError."""
    record = Record.read(layout)
    if not record.files:
        raise InstallError(
            f"nothing is installed under {layout.real(layout.prefix)}; name the PREFIX and DESTDIR used then"
        )
    if layout.live:
        _run_if_booted("systemctl", "disable", "--now", "--quiet", *UNITS)
    kept = [path for path, known in record.files.items() if not _remove(layout.real(Path(path)), known)]
    shutil.rmtree(layout.real(layout.venv))
    record.remove_folders(layout)
    if layout.live:
        _run_if_booted("systemctl", "daemon-reload")
    for path in kept:
        _say(f"kept {path}, because it was changed")
    for state, what in {layout.profiles: "your device profiles", **layout.states}.items():
        if layout.real(state).exists():
            _say(f"kept {state} ({what}); remove it with: rm -r {state}")
    if layout.live:
        users = "edge-agent and edge-gateway"
        _say(f"kept the users {users}, which may own files; remove them with: userdel edge-agent; userdel edge-gateway")


# ---- the virtual environment ----------------------------------------------------------------------------------------


def _build_environment(layout: Layout, build: Path, options: argparse.Namespace) -> None:
    """Build it at `layout.staging`: dependencies by hash, our wheel, byte code, launchers."""
    stage, python = layout.real(layout.staging), _interpreter(options.python)
    shutil.rmtree(stage, ignore_errors=True)
    _say("building the wheel")
    tools = options.tools or _tools(build)
    _run(tools, "-m", "hatchling", "build", "-t", "wheel", "-d", str(build / "wheel"), cwd=SOURCE)
    _say(f"installing the runtimes for {python} (about 500 MB on disk)")
    _run(python, "-m", "venv", "--without-pip", "--symlinks", str(stage))
    pip = (
        str(tools),
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--python",
        str(stage / "bin" / "python3"),
        "install",
    )
    quietly = ("--quiet", "--no-deps", "--no-compile")
    _run(*pip, *quietly, "--require-hashes", "-r", str(options.lock))
    _run(*pip, *quietly, "--no-index", "--find-links", str(build / "wheel"), DISTRIBUTION)
    _make_relocatable(stage)
    _compile(layout, stage)


def _tools(build: Path) -> Path:
    """An interpreter that has pip and hatchling, for as long as this takes."""
    made = subprocess.run([sys.executable, "-m", "venv", str(build / "tools")], check=False)
    if made.returncode:
        raise InstallError("python3-venv is needed: sudo apt-get install python3-venv")
    python = build / "tools" / "bin" / "python3"
    lock = SOURCE / "packaging" / "build.txt"
    pip = ("-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    _run(python, *pip, "--no-deps", "--require-hashes", "-r", str(lock))
    return python


def _make_relocatable(stage: Path) -> None:
    """Remove whatever names the staging folder: activate scripts, console scripts and the command in pyvenv.cfg."""
    programs = stage / "bin"
    for program in programs.iterdir():
        if not re.fullmatch(r"python[\d.]*", program.name):
            program.unlink()
    for name, package in PROGRAMS.items():
        launcher = programs / name
        launcher.write_text(_launcher(name, package))
        launcher.chmod(0o755)
    settings = stage / "pyvenv.cfg"
    lines = settings.read_text().splitlines(keepends=True)
    settings.write_text("".join(line for line in lines if not line.startswith("command")))


def _launcher(name: str, package: str) -> str:
    return LAUNCHER.replace("{package}", package).replace("{state}", STATE if name == "edge-agent" else "")


def _compile(layout: Layout, stage: Path) -> None:
    """Byte code under its final path; unchecked, since copying an image changes times and the daemon may not write."""
    _say("compiling")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPYCACHEPREFIX"}
    names = ("-s", str(stage), "-p", str(layout.venv), "--invalidation-mode", "unchecked-hash")
    command = [str(stage / "bin" / "python3"), "-m", "compileall", "-qq", "-f", "-j", "0", *names, str(stage / "lib")]
    subprocess.run(command, check=False, env=environment)  # 1 where a dependency carries a template that is no Python


def _swap(layout: Layout) -> None:
    """Move the new environment into its place; a daemon that runs keeps what it has loaded until it is restarted."""
    place, old = layout.real(layout.venv), layout.real(layout.retired)
    shutil.rmtree(old, ignore_errors=True)
    if place.exists():
        place.rename(old)
    layout.real(layout.staging).rename(place)
    shutil.rmtree(old, ignore_errors=True)


def _interpreter(named: str) -> str:
    """The interpreter that the service will run: the real file of `named`, unless only its owner could reach it."""
    asked = "import sys; print(sys._base_executable); sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))"
    for candidate in (named, "/usr/bin/python3"):
        if shutil.which(candidate) is None:
            continue
        answer = subprocess.run([candidate, "-c", asked], capture_output=True, text=True, check=False)
        real = os.path.realpath(answer.stdout.strip())
        if not answer.returncode and not real.startswith(PRIVATE):
            return real
        _say(f"not {real}: the service needs Python 3.11 to 3.14, and cannot look into /root and /home")
    raise InstallError("no suitable Python; install one that every user can read and name it: make install PYTHON=…")


# ---- files ----------------------------------------------------------------------------------------------------------


def _place_files(layout: Layout, record: Record) -> None:
    for source, place in layout.files.items():
        text = (SOURCE / source).read_text()
        _write(layout, record, place, text.replace("/usr/local", str(layout.prefix)))
    for place, target in layout.links.items():
        real = layout.real(place)
        real.unlink(missing_ok=True)
        real.symlink_to(os.path.relpath(_packaged(layout, target), place.parent))
        record.files[str(place)] = ""


def _packaged(layout: Layout, target: str) -> Path:
    """Final path of `target` in the environment; `*` stands for the Python version."""
    stage = layout.real(layout.staging)
    found = next(iter(stage.glob(target)))
    return layout.venv / found.relative_to(stage)


def _place_configuration(layout: Layout, record: Record, place: Path, sample: str) -> None:
    """The sample, unless the operator has written over the one that was installed."""
    real = layout.real(place)
    if real.exists() and digest(real) != record.files.get(str(place)):
        _say(f"kept {place}, because it was changed; all settings of this version: {layout.share / sample}")
        record.files.setdefault(str(place), "changed")
        return
    _write(layout, record, place, (SOURCE / "packaging" / sample).read_text())


def _write(layout: Layout, record: Record, place: Path, text: str) -> None:
    """Write whole or not at all, so that systemd never reads half a unit."""
    real = layout.real(place)
    temporary = real.with_name(f".{real.name}.new")
    temporary.write_text(text)
    temporary.chmod(0o644)
    temporary.replace(real)
    record.files[str(place)] = digest(real)


def _remove(real: Path, known: str) -> bool:
    """Remove a link, or a file that is still as installed; False where it was changed."""
    if real.is_symlink() or not real.exists():
        real.unlink(missing_ok=True)
        return True
    if digest(real) != known:
        return False
    real.unlink()
    return True


# ---- the running system ---------------------------------------------------------------------------------------------


def _tell_the_system(layout: Layout) -> None:
    for name in PROGRAMS:
        _say(f"installed {layout.real(layout.bin / name)}")
    if not layout.live:
        _say("an image needs its user at first boot: systemd-sysusers makes it there")
        return
    if shutil.which("systemd-sysusers"):
        _run("systemd-sysusers", str(layout.units / "sysusers.d" / "edge-gateway.conf"))
    _run_if_booted("systemctl", "daemon-reload")
    _run_if_booted("udevadm", "control", "--reload")
    _run_if_booted("udevadm", "trigger", "--subsystem-match=powercap", "--action=add")
    _say("next: look at /etc/edge-gateway/edge-gateway.toml, then: systemctl enable --now edge-gateway")
    _say("in a fleet: edge-agent bootstrap DIR, then: systemctl enable --now edge-agent")
    _say("after an upgrade: systemctl restart edge-gateway, and try-restart edge-agent")


def _run_if_booted(*command: str) -> None:
    """Ask systemd where it runs; what it refuses is no reason to fail, and it says why itself."""
    if Path("/run/systemd/system").is_dir() and shutil.which(command[0]):
        subprocess.run(command, check=False)


def _run(*command: str | Path, cwd: Path | None = None) -> None:
    subprocess.run([str(part) for part in command], check=True, cwd=cwd)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()  # before what the programs we start print


def _complain(message: str, code: int) -> int:
    sys.stderr.write(f"packaging/install.py: {message}\n")
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("install", "uninstall"))
    parser.add_argument("--destdir", default="", help="root of the image; empty: this system")
    parser.add_argument("--prefix", default="/usr/local", help="absolute path inside it")
    parser.add_argument("--python", default="python3", help="interpreter that the service will run")
    parser.add_argument("--lock", type=Path, default=SOURCE / "requirements" / "runtime.txt", help="locked runtimes")
    parser.add_argument("--tools", type=Path, help="interpreter that has pip and hatchling; else one is made for this")
    return parser


if __name__ == "__main__":
    sys.exit(main())
