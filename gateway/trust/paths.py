"""Paths of targets that are understood. TUF matches patterns by parts; what the parts may be is said here."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.domain.manifest_toml import NAME_PATTERN
from gateway.domain.signed_release import target_path
from gateway.domain.software_release import KIND, SLOT, software_path
from gateway.trust.distrust import Distrust, Reason

FILE_KINDS = ("profiles", "policy")
"""First part of the targets that are single files."""


@dataclass(frozen=True, slots=True)
class ReleasePath:
    """The parts of `models/<owner>/<model>/<version>/release`.

    Of a release of the programs, `software/<name>/<version>/release`, the owner is "@software", which no owner of
    models can be called.
    """

    owner: str
    model: str
    version: str


def release_path(path: str) -> ReleasePath:
    """Take a release's path apart. Raises Distrust for any other path, such as one with `..` in it."""
    parts = path.split("/")
    if is_software(path) and len(parts) == 4 and all(NAME_PATTERN.fullmatch(part) for part in parts):
        software = ReleasePath(SLOT, parts[1], parts[2])
        if path == software_path(software.model, software.version):
            return software
    if len(parts) == 5 and all(NAME_PATTERN.fullmatch(part) for part in parts):
        found = ReleasePath(*parts[1:4])
        if path == target_path(found.owner, found.model, found.version):
            return found
    raise Distrust(Reason.BAD_PATH, f"the target {path!r:.200}", "it is no release's path")


def is_software(path: str) -> bool:
    """Return whether it begins as the path of a release of the programs."""
    return path.startswith(f"{KIND}/")


def release_prefix(owner: str, model: str) -> str:
    """Return how the paths of all releases of a model, or of a program, begin."""
    return f"{KIND}/{model}/" if owner == SLOT else f"models/{owner}/{model}/"


def named_path(named: str) -> str:
    """Return the path of a release that is written OWNER/MODEL/VERSION or @software/PROGRAM/VERSION; no other is one.

    Raises ValueError.
    """
    owner, _, rest = named.partition("/")
    model, _, version = rest.partition("/")
    names = (model, version) if owner == SLOT else (owner, model, version)
    if not all(NAME_PATTERN.fullmatch(name) for name in names):
        raise ValueError(f"{named!r:.200} is no release; write OWNER/MODEL/VERSION or {SLOT}/PROGRAM/VERSION")
    return f"{release_prefix(owner, model)}{version}/release"


def is_slot(name: object) -> bool:
    """Return whether it is the name of a slot: of a model, or the reserved one of the programs."""
    return isinstance(name, str) and (name == SLOT or NAME_PATTERN.fullmatch(name) is not None)


def is_file(path: str) -> bool:
    """Whether it is the path of a profile or policy."""
    kind, _, name = path.partition("/")
    return kind in FILE_KINDS and NAME_PATTERN.fullmatch(name) is not None


def check_path(path: str) -> None:
    """Raise Distrust for what is the path of no release, profile or policy."""
    if not is_file(path):
        release_path(path)
