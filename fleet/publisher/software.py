"""Releases of the programs on devices: from folders of wheels to the document that the software keys sign.

Only `read_variant` reads a folder; the rest is pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from fleet.disk import file_digest
from fleet.publisher.releases import Planned, model_files, next_floor, target_of
from fleet.publisher.roles import owner_role
from fleet.publisher.signing import Drafting, add_targets
from gateway.common.domain.assignment import SOFTWARE_SLOT
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest import Artifact
from gateway.common.domain.release_documents import ReleaseDocument
from gateway.common.domain.release_paths import ReleasePath
from gateway.common.domain.routing import newest_version
from gateway.common.domain.settings_release import SettingsRelease
from gateway.common.domain.software_release import (
    DISTRIBUTION,
    MACHINES,
    PROGRAM,
    SoftwareRelease,
    SoftwareVariant,
    check_wheels,
    read_software,
    software_bytes,
    wheel_parts,
)

_TAGS = re.compile(r"-(?P<python>[\w.]+)-(?P<abi>[\w.]+)-(?P<platform>[\w.]+)\.whl$")
_GLIBC = re.compile(r"manylinux_(\d+)_(\d+)_(\w+)")
LEGACY = {"manylinux1": "2.5", "manylinux2010": "2.12", "manylinux2014": "2.17"}
"""Older names of platform tags, with the version of glibc that they stand for (PEP 600)."""


def read_variant(folder: Path, python: str | None = None, machine: str | None = None) -> SoftwareVariant:
    """Return the wheels in `folder` with their requirements. Raise ConfigurationError.

    `python` and `machine` are used if the wheels' names do not state them.
    """
    files = sorted(folder.glob("*.whl"))
    if not files:
        raise ConfigurationError("holds no wheels; collect them with pip download", file=str(folder))
    try:
        names = [file.name for file in files]
        check_wheels(names, _version(names))
        wheels = tuple(Artifact(file.name, file_digest(file), file.stat().st_size) for file in files)
        platforms = [tag["platform"] for name in names if (tag := _TAGS.search(name)) and tag["platform"] != "any"]
        tags = [found for name in names if (found := _TAGS.search(name)) and found["abi"].startswith("cp")]
        return SoftwareVariant(
            machine=_only(
                {machine for platform in platforms for machine in MACHINES if platform.endswith(machine)},
                machine,
                "machine",
                MACHINES,
            ),
            python=_only({f"3.{tag['abi'][3:]}" for tag in tags}, python, "python", ()),
            glibc=newest_version(_glibcs(names)) or "",
            wheels=wheels,
        )
    except (ValueError, OSError) as error:
        raise ConfigurationError(str(error), file=str(folder)) from error


def plan_software(
    drafting: Drafting, variants: Sequence[SoftwareVariant], floor: str | None
) -> Planned[SoftwareRelease]:
    """Return these wheels as the next release. Raise ConfigurationError if devices could not install it."""
    versions = {_version([wheel.path for wheel in variant.wheels]) for variant in variants}
    if len(versions) != 1:
        raise ConfigurationError(f"the folders hold the versions {', '.join(sorted(versions))}; name one version's")
    (version,) = versions
    path = ReleasePath(SOFTWARE_SLOT, PROGRAM, version)
    chosen = next_floor(drafting, path, floor, "release another version")
    release = SoftwareRelease(PROGRAM, version, chosen, drafting.now.replace(microsecond=0), tuple(variants))
    content = software_bytes(release)
    read_software(content)
    target = target_of(path.path, content, {"floor": chosen})
    return Planned(release, target, content, add_targets(drafting, owner_role(SOFTWARE_SLOT), [(target, content)]))


def software_files(release: SoftwareRelease) -> tuple[Artifact, ...]:
    """Return every wheel of every variant, each digest once."""
    return tuple({wheel.sha256: wheel for variant in release.variants for wheel in variant.wheels}.values())


def named_files(release: ReleaseDocument) -> tuple[Artifact, ...]:
    """Return every file that a release names, each digest once."""
    if isinstance(release, SettingsRelease):
        return ()
    return software_files(release) if isinstance(release, SoftwareRelease) else model_files(release)


def software_line(release: SoftwareRelease) -> str:
    """Return a release in one line, for its signer."""
    kinds = ", ".join(
        f"{one.machine} Python {one.python}{f' glibc {one.glibc}' if one.glibc else ''} ({len(one.wheels)} wheels)"
        for one in release.variants
    )
    return f"{release.name} {release.version}, floor {release.floor}, for {kinds}: RUNS AS ROOT on every device"


def _version(names: Iterable[str]) -> str:
    found = [version for distribution, version in map(wheel_parts, names) if distribution == DISTRIBUTION]
    if len(found) != 1:
        raise ValueError(f"{len(found)} wheels of {DISTRIBUTION}; exactly one is needed")
    return found[0]


def _only(found: set[str], named: str | None, what: str, known: Sequence[str]) -> str:
    """Return the only value, from the wheels or from an option. Raise ValueError."""
    if named and found - {named}:
        raise ValueError(f"--{what} is {named}, the wheels are for {', '.join(sorted(found))}")
    values = found or ({named} if named else set())
    if len(values) != 1:
        listed = ", ".join(sorted(values)) or "none at all"
        raise ValueError(f"the wheels name {listed} as {what}; one folder is for one {what}, --{what} names it")
    (value,) = values
    if known and value not in known:
        raise ValueError(f"{what} {value} is not known; there are {', '.join(known)}")
    return value


def _glibcs(names: Iterable[str]) -> set[str]:
    """Return, for each wheel, the oldest glibc that one of its tags permits."""
    found = set()
    for name in names:
        tag = _TAGS.search(name)
        allowed = [f"{one[1]}.{one[2]}" for one in map(_GLIBC.match, tag["platform"].split(".")) if one] if tag else []
        allowed += [glibc for legacy, glibc in LEGACY.items() if tag and legacy in tag["platform"]]
        found |= {min(allowed, key=lambda version: int(version.partition(".")[2]))} if allowed else set()
    return found
