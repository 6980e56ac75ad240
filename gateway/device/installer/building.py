"""Build and self-test of an environment from signed wheels. The environment in use is not touched.

Wheels are copied from the agent's store into a folder that only root may enter, and hashed while they are copied.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from gateway.common.domain.runtimes import RUNTIMES
from gateway.common.domain.software_release import SoftwareVariant
from gateway.common.store.private_copies import private_copies
from gateway.device.installer import environment
from gateway.device.installer.commands import CommandError, run
from gateway.device.installer.places import VersionFolder
from gateway.device.installer.settings import SoftwareSettings

IMPORTS = "import importlib.util, sys; importlib.util.find_spec(sys.argv[1]) and __import__(sys.argv[1])"
"""Python program that imports the package whose name it gets, if it is installed."""


def check_size(variant: SoftwareVariant, home: VersionFolder, settings: SoftwareSettings) -> None:
    """Raise CommandError if the wheels are larger than allowed, or the disk has no space for their environment."""
    size = variant.size_bytes
    if size > settings.wheels_limit_bytes:
        raise CommandError(f"the wheels have {size} bytes; raise wheels_limit_bytes ({settings.wheels_limit_bytes})")
    wanted = int(size * (1 + settings.unpacked_factor)) + settings.keep_free_bytes
    free = shutil.disk_usage(home.folder).free
    if free < wanted:
        raise CommandError(
            f"{wanted} bytes of the disk are needed, {free} are free; free some, or lower keep_free_bytes"
        )


def build(
    variant: SoftwareVariant,
    name: str,
    home: VersionFolder,
    settings: SoftwareSettings,
    *,
    private: Path,
    alive: Callable[[], object],
) -> None:
    """Build the environment `name`; wheels are copied to a folder in `private`.

    Raise CommandError, OSError, and VariantError if a wheel does not match its digest.
    """
    stage = home.stage()
    python = os.path.realpath(sys._base_executable)  # type: ignore[attr-defined]  # the interpreter that this environment was made from
    blobs = Path(settings.store) / "blobs" / "sha256"
    with private_copies([replace(wheel, path=wheel.sha256) for wheel in variant.wheels], blobs, private) as copies:
        for wheel in variant.wheels:
            (copies / wheel.sha256).rename(copies / wheel.path)
        listed = copies / "requirements.txt"
        installed = [(copies / wheel.path, wheel.sha256) for wheel in variant.installed()]
        listed.write_text(environment.requirements_text(installed))
        run(environment.creation(python, stage), settings.build_timeout_s, alive=alive)
        pip = copies / variant.installer().path
        run(environment.installation(stage, pip, listed), settings.build_timeout_s, alive=alive)
    environment.make_relocatable(stage)
    try:
        run(environment.compilation(stage, home.environment(name)), settings.build_timeout_s, alive=alive)
    except CommandError as error:
        if "ended with 1:" not in str(error):  # 1: a file is a template and not Python
            raise
    _readable(stage)
    home.adopt(stage, name)


def self_test(
    name: str, version: str, home: VersionFolder, settings: SoftwareSettings, alive: Callable[[], object]
) -> None:
    """Run the new programs as the user of the gateway's unit. Raise CommandError for the first that fails."""
    place = home.environment(name)
    for program in environment.PROGRAMS:
        output = _try((str(place / "bin" / program), "--version"), settings, alive)
        if output.split() != [program, version]:
            raise CommandError(f"{program} --version says {output.strip()!r:.100}, {program} {version} was expected")
    if Path(settings.gateway_config).exists():
        _try((str(place / "bin" / "edge-gateway"), "config", "check", settings.gateway_config), settings, alive)
    python = str(environment.interpreter(place))
    for runtime in RUNTIMES.values():
        for package in runtime.packages:
            _try((python, "-I", "-c", IMPORTS, package.module), settings, alive)


def _try(command: Sequence[str], settings: SoftwareSettings, alive: Callable[[], object]) -> str:
    return run(command, settings.test_timeout_s, user=settings.test_user, alive=alive)


def _readable(stage: Path) -> None:
    """Make the environment readable for every user, whatever modes the wheels state."""
    stage.chmod(0o755)
    for folder, names, files in os.walk(stage):
        for name in (*names, *files):
            path = Path(folder, name)
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
