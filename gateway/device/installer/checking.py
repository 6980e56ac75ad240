"""Trial of a release on the publisher's machine: build and self-test as on a device, in a temporary folder."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

from gateway.common.domain.errors import VariantError
from gateway.common.domain.manifest import Artifact
from gateway.common.domain.software_release import DISTRIBUTION, SoftwareVariant, check_wheels, wheel_parts
from gateway.common.store.plain import file_digest
from gateway.device.installer import environment
from gateway.device.installer.building import build, self_test
from gateway.device.installer.commands import ENVIRONMENT, CommandError
from gateway.device.installer.places import VersionFolder
from gateway.device.installer.settings import SoftwareSettings
from gateway.device.store.this_machine import this_machine

ABSENT = ("openvino-telemetry", "polyfactory")
"""Requirements that are left out on purpose: a package that reports OpenVINO's use to its vendor, and one that invents
data for examples, which litestar imports only for those."""
_MISSING = re.compile(r" requires (\S+), which is not installed")


def check(folder: Path, settings: SoftwareSettings) -> list[str]:
    """Build and try the wheels in `folder` as a device would. Return the problems ([]: none)."""
    try:
        variant, version = _read(folder)
    except (ValueError, OSError) as error:
        return [str(error)]
    with tempfile.TemporaryDirectory(prefix="edge-software-check.") as made:
        place = Path(made)
        blobs = place / "store" / "blobs" / "sha256"
        blobs.mkdir(parents=True)
        for wheel in variant.wheels:
            (blobs / wheel.sha256).symlink_to((folder / wheel.path).resolve())
        here = replace(settings, store=str(place / "store"), gateway_config="", test_user="")
        home = VersionFolder(place / "lib")
        home.folder.mkdir()
        try:
            build(variant, version, home, here, private=home.folder, alive=bool)
            self_test(version, version, home, here, bool)
        except (CommandError, VariantError, OSError) as error:
            return [str(error)]
        return _unresolved(home.environment(version), variant, here)


def _unresolved(place: Path, variant: SoftwareVariant, settings: SoftwareSettings) -> list[str]:
    """Return requirements of installed wheels that are not in the set."""
    installer = variant.installer()
    pip = Path(settings.store) / installer.path
    pip.symlink_to(Path(settings.store) / "blobs" / "sha256" / installer.sha256)
    command = [str(environment.interpreter(place)), "-I", f"{pip}/pip", "check", "--disable-pip-version-check"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=ENVIRONMENT, timeout=settings.test_timeout_s
    )
    if not done.returncode:
        return []
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    wrong = [line for line in lines if not ((found := _MISSING.search(line)) and found[1] in ABSENT)]
    return wrong if lines else [f"pip check ended with {done.returncode}: {done.stderr.strip()[-300:]}"]


def _read(folder: Path) -> tuple[SoftwareVariant, str]:
    """Return the wheels as a variant for this machine, and their version. Raise ValueError, OSError."""
    files = sorted(folder.glob("*.whl"))
    parts = [wheel_parts(file.name) for file in files]
    version = next((version for distribution, version in parts if distribution == DISTRIBUTION), "")
    if not version:
        problem = f"holds no wheel of {DISTRIBUTION}; build one there, and collect those that it needs: pip wheel"
        raise ValueError(f"{folder}: {problem}")
    check_wheels([file.name for file in files], version)
    wheels = tuple(Artifact(file.name, file_digest(file), file.stat().st_size) for file in files)
    here = this_machine()
    return SoftwareVariant(here.machine, here.python, here.glibc, wheels), version
