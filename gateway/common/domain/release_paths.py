"""Paths of releases in the repository, of models, programs and settings, and the slots that they may take.

models/<owner>/<model>/<version>/release    written OWNER/MODEL/VERSION
software/<program>/<version>/release        written @software/PROGRAM/VERSION; its slot is @software
settings/<name>/<version>/release           written @settings/NAME/VERSION; its slot is @settings
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.common.domain.assignment import RESERVED_SLOTS, SETTINGS_SLOT, SOFTWARE_SLOT
from gateway.common.domain.manifest_toml import NAME_PATTERN
from gateway.common.domain.signed_release import target_path

MODELS = "models"
WRITTEN = f"OWNER/MODEL/VERSION, {SOFTWARE_SLOT}/PROGRAM/VERSION or {SETTINGS_SLOT}/NAME/VERSION"
"""Forms in which people write a release, for error messages."""
HOLDS = f"{', '.join(f'{slot} holds {kind}' for slot, kind in RESERVED_SLOTS.items())}, other slots hold models"
"""Contents of slots, for error messages."""
FORMS = " or ".join(["models/<owner>", *RESERVED_SLOTS.values()]) + ", then /<name>/<version>/release"
"""Forms of the paths of releases, for error messages."""


@dataclass(frozen=True, slots=True)
class ReleasePath:
    """The parts of a release's path. The owner is "@software" or "@settings" where it is no model."""

    owner: str
    model: str
    version: str

    @property
    def path(self) -> str:
        """Return the whole path."""
        if self.owner in RESERVED_SLOTS:
            return reserved_path(self.owner, self.model, self.version)
        return target_path(self.owner, self.model, self.version)

    @property
    def written(self) -> str:
        """Return the release as people write it."""
        return f"{self.owner}/{self.model}/{self.version}"


def reserved_path(slot: str, name: str, version: str) -> str:
    """Return the path of a release that takes a reserved slot. Raises KeyError for another slot."""
    return f"{RESERVED_SLOTS[slot]}/{name}/{version}/release"


def parse_path(path: str) -> ReleasePath:
    """Return the parts of a release's path. Raise ValueError for any other path, such as one with `..` in it."""
    parts = path.split("/")
    found = ReleasePath(reserved_slot(path), *parts[1:3]) if len(parts) == 4 else None
    if len(parts) == 5:
        found = ReleasePath(*parts[1:4])
    if found is None or found.path != path or not all(NAME_PATTERN.fullmatch(part) for part in parts):
        raise ValueError(f"{path!r:.200} is no release's path: {FORMS}")
    return found


def parse_written(text: str) -> ReleasePath:
    """Return the release that people write in one of the forms `WRITTEN`. Raises ValueError."""
    parts = text.split("/")
    found = ReleasePath(*parts) if len(parts) == 3 else None
    if found is None or not all(map(NAME_PATTERN.fullmatch, parts[1:] if parts[0] in RESERVED_SLOTS else parts)):
        raise ValueError(f"{text!r:.200} is no release; write {WRITTEN}")
    return found


def is_release(path: str) -> bool:
    """Return whether a path begins as that of a release of any kind."""
    return is_model(path) or bool(reserved_slot(path))


def is_model(path: str) -> bool:
    """Return whether a path begins as that of a model's release."""
    return path.startswith(f"{MODELS}/")


def reserved_slot(path: str) -> str:
    """Return the reserved slot of a release by how its path begins; "" for models and everything else."""
    return next((slot for slot, kind in RESERVED_SLOTS.items() if path.startswith(f"{kind}/")), "")


def release_prefix(owner: str, model: str) -> str:
    """Return how the paths of all releases of a model, of a program, or of settings of one name, begin."""
    return f"{RESERVED_SLOTS[owner]}/{model}/" if owner in RESERVED_SLOTS else f"{MODELS}/{owner}/{model}/"


def is_slot(name: object) -> bool:
    """Return whether it is the name of a slot: of a model, or a reserved one."""
    return isinstance(name, str) and (name in RESERVED_SLOTS or NAME_PATTERN.fullmatch(name) is not None)


def fits_slot(path: str, slot: str) -> bool:
    """Return whether a release may take a slot by its kind: a reserved slot takes one kind, and no other takes that."""
    return reserved_slot(path) == (slot if slot in RESERVED_SLOTS else "")
