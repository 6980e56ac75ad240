"""`make install` and `make uninstall`, by the standard library alone: the gateway under DESTDIR/PREFIX, and away again.

Each version is an environment of its own, and a link leads to the one that counts: an upgrade is whole or absent. The
fleet's updates use the same layout and the same code (`gateway/device/installer`). Nothing in an environment names
DESTDIR or the build's folders, so that an image may be assembled anywhere.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(SOURCE))

from layout import KEPT, UNITS, Layout  # noqa: E402
from record import Record, digest  # noqa: E402

from gateway.device.installer import environment  # noqa: E402
from gateway.device.installer.places import CONFIRMED, CURRENT  # noqa: E402

DISTRIBUTION = "edge-inference-gateway"
PRIVATE = ("/root/", "/home/")
"""Folders that the service may not read (ProtectHome=yes)."""


class InstallError(Exception):
    """Failure of the installation: what happened, and what to do next."""


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
    before = layout.home.leads_to(CURRENT)
    with tempfile.TemporaryDirectory(prefix="edge-gateway-build.") as build:
        name = _build_environment(layout, Path(build), options)
        made = {place: Path(build, "share", source).read_text() for source, place in layout.made.items()}
    for link in (CONFIRMED, CURRENT):
        layout.home.point(link, name)
    _place_files(layout, record, name)
    for place, text in made.items():
        _write(layout, record, place, text)
    for place, sample in layout.configurations.items():
        _place_configuration(layout, record, place, sample)
    record.write(layout)
    _remove_older(layout, before)
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
    shutil.rmtree(layout.home.folder)
    record.remove_folders(layout)
    if layout.live:
        _run_if_booted("systemctl", "daemon-reload")
    for path in kept:
        say(f"kept {path}, because it was changed")
    limits = Path("/etc/systemd/system/edge-gateway.service.d")
    own = {layout.profiles: "your device profiles", layout.more_settings: "your settings", limits: "your drop-ins"}
    own[layout.more_settings.with_name("tokens")] = "tokens of callers"
    for state, what in {**own, **layout.states}.items():
        if layout.real(state).exists():
            say(f"kept {state} ({what}); remove it with: rm -r {state}")
    if layout.live:
        users = "edge-agent and edge-gateway"
        say(f"kept the users {users}, which may own files; remove them with: userdel edge-agent; userdel edge-gateway")


# ---- the virtual environment ----------------------------------------------------------------------------------------


def _build_environment(layout: Layout, build: Path, options: argparse.Namespace) -> str:
    """Build a new version: dependencies by hash, our wheel, byte code, launchers. Return its name."""
    stage, python = layout.home.stage(), _interpreter(options.python)
    say("building the wheel")
    tools = options.tools or make_tools(build)
    run(tools, "-m", "hatchling", "build", "-t", "wheel", "-d", str(build / "wheel"), cwd=SOURCE)
    run(tools, "-B", "-m", "docs.terminal", build / "share", "", *environment.PROGRAMS, cwd=SOURCE)
    say(f"installing the runtimes for {python} (about 500 MB on disk)")
    run(*environment.creation(python, stage))
    pip = (
        str(tools),
        "-m",
        "pip",
        "--python",
        str(environment.interpreter(stage)),
        "install",
        *environment.PIP_OPTIONS,
    )
    run(*pip, "--require-hashes", "-r", str(options.lock))
    run(*pip, "--no-index", "--find-links", str(build / "wheel"), DISTRIBUTION)
    environment.make_relocatable(stage)
    (wheel,) = (build / "wheel").glob("*.whl")
    name = _name(layout, wheel, options.lock)
    _compile(stage, layout.lib / "versions" / name)
    layout.home.adopt(stage, name)
    return name


def _name(layout: Layout, wheel: Path, lock: Path) -> str:
    """Return `<version>-<digest>`: of wheel, lock and the present name, so that what may still run is not replaced."""
    content = wheel.read_bytes() + lock.read_bytes() + layout.home.leads_to(CURRENT).encode()
    return f"{wheel.name.split('-')[1]}-{hashlib.sha256(content).hexdigest()[:8]}"


def make_tools(build: Path) -> Path:
    """Return an interpreter that has pip, hatchling and shtab, for as long as this takes."""
    made = subprocess.run([sys.executable, "-m", "venv", str(build / "tools")], check=False)
    if made.returncode:
        raise InstallError("python3-venv is needed: sudo apt-get install python3-venv")
    python = build / "tools" / "bin" / "python3"
    lock = SOURCE / "packaging" / "build.txt"
    pip = ("-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    run(python, *pip, "--no-deps", "--require-hashes", "-r", str(lock))
    return python


def _compile(stage: Path, final: Path) -> None:
    say("compiling")
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPYCACHEPREFIX"}
    subprocess.run(environment.compilation(stage, final), check=False, env=variables)


def _remove_older(layout: Layout, before: str) -> None:
    """Remove all versions but the new one and the one before, and the rest of an environment without versions.

    Programs may still run the one before.
    """
    layout.home.keep({before})
    for entry in layout.home.folder.iterdir():
        if entry.name in KEPT:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _interpreter(named: str) -> str:
    """Return the interpreter for the service: the real file of `named`, unless only its owner could reach it."""
    asked = "import sys; print(sys._base_executable); sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 15))"
    for candidate in (named, "/usr/bin/python3"):
        if shutil.which(candidate) is None:
            continue
        answer = subprocess.run([candidate, "-c", asked], capture_output=True, text=True, check=False)
        real = os.path.realpath(answer.stdout.strip())
        if not answer.returncode and not real.startswith(PRIVATE):
            return real
        say(f"not {real}: the service needs Python 3.10 to 3.14, and cannot look into /root and /home")
    raise InstallError("no suitable Python; install one that every user can read and name it: make install PYTHON=…")


# ---- files ----------------------------------------------------------------------------------------------------------


def _place_files(layout: Layout, record: Record, name: str) -> None:
    for source, place in layout.files.items():
        text = (SOURCE / source).read_text()
        _write(layout, record, place, text.replace("/usr/local", str(layout.prefix)))
    for place, (link, inside) in layout.links.items():
        found = next(layout.home.environment(name).glob(inside)).relative_to(layout.home.environment(name))
        staged = layout.real(place).with_name(f".{place.name}.new")
        staged.unlink(missing_ok=True)
        staged.symlink_to(os.path.relpath(layout.lib / link / found, place.parent))
        staged.replace(layout.real(place))
        record.files[str(place)] = ""


def _place_configuration(layout: Layout, record: Record, place: Path, sample: str) -> None:
    """Write the sample, unless the operator has written over the one that was installed."""
    real = layout.real(place)
    if real.exists() and digest(real) != record.files.get(str(place)):
        say(f"kept {place}, because it was changed; what this version brings: {layout.share / sample}")
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
    for name in environment.PROGRAMS:
        say(f"installed {layout.real(layout.bin / name)}")
    if not layout.live:
        say("an image needs its user and folders at first boot: systemd-sysusers and systemd-tmpfiles make them there")
        return
    if shutil.which("systemd-sysusers"):
        run("systemd-sysusers", str(layout.units / "sysusers.d" / "edge-gateway.conf"))
        run("systemd-tmpfiles", "--create", str(layout.units / "tmpfiles.d" / "edge-gateway.conf"))
    _run_if_booted("systemctl", "daemon-reload")
    _run_if_booted("udevadm", "control", "--reload")
    nodes = [f"--subsystem-match={name}" for name in ("powercap", "accel", "apex", "hailo_chardev")]
    _run_if_booted("udevadm", "trigger", "--action=add", "--settle", *nodes)
    say("next: edge-gateway setup, then: systemctl enable --now edge-gateway")
    say("in a fleet: edge-agent bootstrap DIR, then: systemctl enable --now edge-agent")
    say("after an upgrade: systemctl restart edge-gateway, and try-restart edge-agent")


def _run_if_booted(*command: str) -> None:
    """Ask systemd where it runs; what it refuses is no reason to fail, and it says why itself."""
    if Path("/run/systemd/system").is_dir() and shutil.which(command[0]):
        subprocess.run(command, check=False)


def run(*command: str | Path, cwd: Path | None = None) -> None:
    subprocess.run([str(part) for part in command], check=True, cwd=cwd)


def say(text: str) -> None:
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
    parser.add_argument(
        "--tools", type=Path, help="interpreter that has pip, hatchling and shtab; else one is made for this"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
