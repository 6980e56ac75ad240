"""Paths of releases in the repository, of models and of the programs, and the slots that they may take.

models/<owner>/<model>/<version>/release    written OWNER/MODEL/VERSION
software/<program>/<version>/release        written @software/PROGRAM/VERSION; its slot is @software
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.domain.manifest_toml import NAME_PATTERN
from gateway.domain.signed_release import target_path
from gateway.domain.software_release import KIND, SLOT, software_path

MODELS, SOFTWARE = "models/", f"{KIND}/"
"""Prefixes of paths of both kinds."""


@dataclass(frozen=True, slots=True)
class ReleasePath:
    """Parts of a release's path. The owner of the programs is "@software", a name that no owner of models can have."""

    owner: str
    model: str
    version: str

    @property
    def path(self) -> str:
        """Complete path."""
        if self.owner == SLOT:
            return software_path(self.model, self.version)
        return target_path(self.owner, self.model, self.version)

    @property
    def written(self) -> str:
        """Release as people write it."""
        return f"{self.owner}/{self.model}/{self.version}"


def parse_path(path: str) -> ReleasePath:
    """Return the parts of a release's path. Raise ValueError for any other path, such as one with `..` in it."""
    parts = path.split("/")
    found = ReleasePath(SLOT, *parts[1:3]) if len(parts) == 4 else None
    if len(parts) == 5:
        found = ReleasePath(*parts[1:4])
    if found is None or found.path != path or not all(NAME_PATTERN.fullmatch(part) for part in parts):
        raise ValueError(f"{path!r:.200} is no release's path: models/<owner>/<model>/<version>/release")
    return found


def parse_written(text: str) -> ReleasePath:
    """Return the release that is written OWNER/MODEL/VERSION or @software/PROGRAM/VERSION. Raise ValueError."""
    parts = text.split("/")
    found = ReleasePath(*parts) if len(parts) == 3 else None
    if found is None or not all(map(NAME_PATTERN.fullmatch, parts[1:] if parts[0] == SLOT else parts)):
        raise ValueError(f"{text!r:.200} is no release; write OWNER/MODEL/VERSION or {SLOT}/PROGRAM/VERSION")
    return found


def is_release(path: str) -> bool:
    """Return True if a path begins as that of a release of either kind."""
    return path.startswith((MODELS, SOFTWARE))


def is_software(path: str) -> bool:
    """Return True if a path begins as that of a release of the programs."""
    return path.startswith(SOFTWARE)


def release_prefix(owner: str, model: str) -> str:
    """Return the prefix of the paths of all releases of a model or program."""
    return f"{SOFTWARE}{model}/" if owner == SLOT else f"{MODELS}{owner}/{model}/"


def is_slot(name: object) -> bool:
    """Return True if it is the name of a slot: of a model, or the reserved one of the programs."""
    return isinstance(name, str) and (name == SLOT or NAME_PATTERN.fullmatch(name) is not None)


def fits_slot(path: str, slot: str) -> bool:
    """Return True if a release may take a slot by its kind: programs the reserved slot, models any other."""
    return is_software(path) == (slot == SLOT)
