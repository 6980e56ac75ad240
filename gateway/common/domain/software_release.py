"""Release document of a program: a set of wheels for each kind of device, and the oldest version still allowed.

It is the repository's target `software/<name>/<version>/release`; every file that it names is a blob by digest. A set
is complete: it is installed without network and without resolving anything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gateway.common.domain.assignment import SOFTWARE_SLOT
from gateway.common.domain.manifest import Artifact
from gateway.common.domain.manifest_toml import DIGEST_PATTERN, NAME_PATTERN
from gateway.common.domain.release_form import (
    SCHEMA,
    TIME_FORMAT,
    document_bytes,
    read_form,
    read_list,
    read_text,
    read_time,
)
from gateway.common.domain.release_paths import reserved_path

PROGRAM = "edge-gateway"
"""Name of the only program that a fleet distributes: gateway, agent and installer are one distribution."""
DISTRIBUTION = "edge_inference_gateway"
"""Normalised name of that distribution, as its wheel's file name begins."""
INSTALLER = "pip"
"""Distribution that is not installed itself: its wheel installs the others."""
SOFTWARE_LIMIT_BYTES = 262_144
"""Largest release document that is read."""
VARIANTS_LIMIT = 32
WHEELS_LIMIT = 200
"""Wheels of one variant."""
WHEEL_LIMIT_BYTES = 4 * 2**30
NAME_LIMIT_CHARS = 200
MACHINES = ("x86_64", "aarch64")
_WHEEL = re.compile(r"([A-Za-z0-9][A-Za-z0-9._]*)-([A-Za-z0-9][A-Za-z0-9._+!]*)(-\d\w*)?-[\w.]+-[\w.]+-[\w.]+\.whl")
_PYTHON = re.compile(r"3\.[0-9]{1,2}")
_GLIBC = re.compile(r"(2\.[0-9]{1,3})?")


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts of a device that decide which wheels it can install. `glibc` is "" if it has another C library."""

    machine: str
    python: str
    glibc: str


@dataclass(frozen=True, slots=True)
class SoftwareVariant:
    """Wheels for one kind of device. `glibc`: oldest version of the C library that they run on ("": any)."""

    machine: str
    python: str
    glibc: str
    wheels: tuple[Artifact, ...]

    @property
    def size_bytes(self) -> int:
        """Return the size of all wheels together."""
        return sum(wheel.size_bytes for wheel in self.wheels)

    def installer(self) -> Artifact:
        """Return the wheel that installs the others."""
        return next(wheel for wheel in self.wheels if wheel_parts(wheel.path)[0] == INSTALLER)

    def installed(self) -> tuple[Artifact, ...]:
        """Return the wheels that are installed."""
        return tuple(wheel for wheel in self.wheels if wheel_parts(wheel.path)[0] != INSTALLER)


@dataclass(frozen=True, slots=True)
class SoftwareRelease:
    """Release of the programs. `floor`: the oldest version that devices may install once they know this release."""

    name: str
    version: str
    floor: str
    released_at: datetime
    variants: tuple[SoftwareVariant, ...]

    @property
    def target(self) -> str:
        """Return its path in the repository."""
        return reserved_path(SOFTWARE_SLOT, self.name, self.version)


def wheel_parts(name: str) -> tuple[str, str]:
    """Return normalised distribution and version of a wheel's file name (PEP 427, 503). Raises ValueError."""
    found = _WHEEL.fullmatch(name) if len(name) <= NAME_LIMIT_CHARS else None
    if found is None:
        raise ValueError(f"{name!r:.220} is no file name of a wheel")
    return re.sub(r"[-_.]+", "_", found[1]).lower(), found[2]


def obstacle(variant: SoftwareVariant, machine: Machine) -> str:
    """Return why `machine` cannot install `variant`, or ""."""
    if variant.machine != machine.machine:
        return f"it is for {variant.machine}, this device is {machine.machine}"
    if variant.python != machine.python:
        return f"it is for Python {variant.python}, this device has {machine.python}"
    if variant.glibc and _numbers(machine.glibc) < _numbers(variant.glibc):
        return f"it needs glibc {variant.glibc}, this device has {machine.glibc or 'another C library'}"
    return ""


def fitting(release: SoftwareRelease, machine: Machine) -> SoftwareVariant:
    """Return the first variant that `machine` can install. Raise ValueError with the reason for each other one."""
    reasons = []
    for variant in release.variants:
        if not (reason := obstacle(variant, machine)):
            return variant
        reasons.append(reason)
    raise ValueError(f"no variant fits this device: {'; '.join(reasons) or 'the release has none'}")


def software_bytes(release: SoftwareRelease) -> bytes:
    """Return the document that is signed, as `document_bytes` writes it."""
    document = {
        "schema": SCHEMA,
        "name": release.name,
        "version": release.version,
        "floor": release.floor,
        "released_at": release.released_at.strftime(TIME_FORMAT),
        "variants": [_variant_document(variant) for variant in release.variants],
    }
    return document_bytes(document)


def read_software(content: bytes) -> SoftwareRelease:
    """Parse a release document. Raise ValueError with the problem; unknown keys are ignored."""
    release = read_form(content, SOFTWARE_LIMIT_BYTES, "the release document", _release)
    for variant in release.variants:
        check_wheels([wheel.path for wheel in variant.wheels], release.version)
    return release


def _release(document: Mapping[str, Any]) -> SoftwareRelease:
    return SoftwareRelease(
        name=read_text(document["name"], NAME_PATTERN),
        version=read_text(document["version"], NAME_PATTERN),
        floor=read_text(document["floor"], NAME_PATTERN),
        released_at=read_time(document["released_at"]),
        variants=tuple(_variant(entry) for entry in read_list(document["variants"], VARIANTS_LIMIT)),
    )


def check_wheels(names: Sequence[str], version: str) -> None:
    """Raise ValueError unless the set has each distribution once, this program in `version`, and its installer."""
    versions: dict[str, str] = {}
    for name in names:
        distribution, found = wheel_parts(name)
        if distribution in versions:
            raise ValueError(f"two wheels of {distribution}: {versions[distribution]} and {found}; keep one")
        versions[distribution] = found
    if versions.get(DISTRIBUTION) != version:
        listed = versions.get(DISTRIBUTION, "none")
        raise ValueError(f"the wheel of {DISTRIBUTION} must have version {version}; found: {listed}")
    if INSTALLER not in versions:
        raise ValueError(f"the wheel of {INSTALLER} is missing, which installs the others")


def _variant_document(variant: SoftwareVariant) -> dict[str, Any]:
    requires = {"machine": variant.machine, "python": variant.python, "glibc": variant.glibc}
    wheels = [{"path": one.path, "sha256": one.sha256, "bytes": one.size_bytes} for one in variant.wheels]
    return {"requires": requires, "wheels": wheels}


def _variant(document: Mapping[str, Any]) -> SoftwareVariant:
    requires = document["requires"]
    if requires["machine"] not in MACHINES:
        raise ValueError(f"machine is {requires['machine']!r:.40}, known are {', '.join(MACHINES)}")
    return SoftwareVariant(
        machine=requires["machine"],
        python=read_text(requires["python"], _PYTHON),
        glibc=read_text(requires["glibc"], _GLIBC),
        wheels=tuple(_wheel(entry) for entry in read_list(document["wheels"], WHEELS_LIMIT)),
    )


def _wheel(document: Mapping[str, Any]) -> Artifact:
    path, size = document["path"], document["bytes"]
    if not isinstance(path, str):
        raise TypeError(f"a wheel's path is {path!r:.80}")
    wheel_parts(path)
    if type(size) is not int or not 0 < size <= WHEEL_LIMIT_BYTES:
        raise ValueError(f"{size!r:.80} of {path} is no size from 1 to {WHEEL_LIMIT_BYTES} bytes")
    return Artifact(path, read_text(document["sha256"], DIGEST_PATTERN), size)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())
