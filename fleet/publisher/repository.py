"""The published repository: names of its files, and its newest metadata as values.

It is a plain directory: `metadata/{N.root,N.snapshot,N.targets,N.<role>,timestamp}.json`, targets under their digest
(TUF's consistent snapshots), `blobs/sha256/<digest>`, `assignments/<device>.json`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import Metadata, Root, Signed, Snapshot, TargetFile, Targets, Timestamp

from fleet.disk import read_bounded
from fleet.publisher.roles import ROOT, TARGETS, check_targets, delegated_roles
from gateway.common.domain.errors import ConfigurationError

METADATA, TARGET_FILES, BLOBS, ASSIGNMENTS = "metadata", "targets", "blobs/sha256", "assignments"
TIMESTAMP_FILE = "timestamp.json"


@dataclass(frozen=True, slots=True)
class Published:
    """The newest root, and the metadata that the timestamp leads to. None or missing in `roles`: not published yet."""

    root: Metadata[Root] | None = None
    timestamp: Metadata[Timestamp] | None = None
    snapshot: Metadata[Snapshot] | None = None
    targets: Metadata[Targets] | None = None
    roles: Mapping[str, Metadata[Targets]] = field(default_factory=dict)

    def document(self, role: str) -> Metadata[Root] | Metadata[Targets] | None:
        """Return the published document of a role signed offline, or None."""
        return {ROOT: self.root, TARGETS: self.targets}.get(role, self.roles.get(role))

    def target(self, path: str) -> TargetFile | None:
        """Return the target `path` of the role whose paths match it, or None."""
        for name, role in delegated_roles(self.targets.signed if self.targets else None).items():
            if role.is_delegated_path(path) and name in self.roles:
                return self.roles[name].signed.targets.get(path)
        return None


def publication_mark(public: Path) -> tuple[int, ...]:
    """Return a value that changes with every publication except of a root; () if nothing is published or readable."""
    try:
        found = (public / METADATA / TIMESTAMP_FILE).stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino


def metadata_file(role: str, version: int) -> str:
    """Return the path of a role's metadata, relative to the repository."""
    return f"{METADATA}/{version}.{role}.json"


def target_file(target: TargetFile) -> str:
    """Return the path of a target's content, relative to the repository."""
    folder, _, name = target.path.rpartition("/")
    return f"{TARGET_FILES}/{folder}/{target.hashes['sha256']}.{name}"


def blob_file(sha256: str) -> str:
    """Return the path of a blob, relative to the repository."""
    return f"{BLOBS}/{sha256}"


def assignment_file(device: str) -> str:
    """Return the path of a device's assignment, relative to the repository."""
    return f"{ASSIGNMENTS}/{device}.json"


def root_versions(folder: Path) -> list[int]:
    """Return the published versions of root, ascending."""
    names = (re.fullmatch(r"([1-9][0-9]*)\.root\.json", file.name) for file in (folder / METADATA).glob("*.root.json"))
    return sorted(int(match[1]) for match in names if match)


def read_published(folder: Path, limit_bytes: int) -> Published:
    """Read the newest metadata without verification. Raise ConfigurationError if a file is missing or damaged."""
    versions = root_versions(folder)
    root = read_metadata(folder, metadata_file(ROOT, versions[-1]), Root, limit_bytes) if versions else None
    if not (folder / METADATA / TIMESTAMP_FILE).exists():
        return Published(root=root)
    timestamp = read_metadata(folder, f"{METADATA}/{TIMESTAMP_FILE}", Timestamp, limit_bytes)
    name = metadata_file("snapshot", timestamp.signed.snapshot_meta.version)
    snapshot = read_metadata(folder, name, Snapshot, limit_bytes)
    roles = {
        role: read_metadata(folder, metadata_file(role, version), Targets, limit_bytes)
        for role, version in _versions(snapshot.signed)
    }
    targets = roles.pop(TARGETS, None)
    return Published(root, timestamp, snapshot, targets, roles)


def read_metadata(folder: Path, name: str, kind: type[Signed], limit_bytes: int) -> Any:
    """Read one metadata file of the repository in `folder`. Raise ConfigurationError."""
    content = read_bounded(folder / name, limit_bytes)
    try:
        metadata: Metadata[Any] = Metadata.from_bytes(content)
        if isinstance(metadata.signed, Targets):
            check_targets(metadata.signed)
    except (RepositoryError, ValueError) as error:
        problem = f"is damaged: {error!s:.200}; restore it from a mirror or a backup"
        raise ConfigurationError(problem, file=str(folder / name)) from None
    if not isinstance(metadata.signed, kind):
        problem = f"is of type {metadata.signed.type}, not {kind.type}; restore it from a mirror or a backup"
        raise ConfigurationError(problem, file=str(folder / name))
    return metadata


def read_assignments(folder: Path, limit_bytes: int) -> dict[str, Metadata[Targets]]:
    """Read all assignments of the repository in `folder`, by device, without verification. Raise ConfigurationError."""
    files = sorted((folder / ASSIGNMENTS).glob("[!.]*.json"))
    return {file.stem: read_metadata(folder, f"{ASSIGNMENTS}/{file.name}", Targets, limit_bytes) for file in files}


def _versions(snapshot: Snapshot) -> Iterator[tuple[str, int]]:
    for name, meta in snapshot.meta.items():
        yield name.removesuffix(".json"), meta.version
