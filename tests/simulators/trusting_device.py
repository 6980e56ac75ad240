"""Device reduced to its trust: verified metadata, floors and blobs, in memory.

It gets files of the repository from `fetch`, decides by `gateway.common.trust`, and stores the result only if all of it
verified.

The order of TUF's workflow is tuf's own (`TrustedMetadataSet`). Only the floors protect against rollback, as after a
loss of everything that a stock client stores.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, cast

from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import Metadata, TargetFile, Targets
from tuf.ngclient._internal.trusted_metadata_set import TrustedMetadataSet
from tuf.ngclient.config import EnvelopeType

from gateway.common.domain.activation import Activation
from gateway.common.domain.assignment import Assignment, Target
from gateway.common.trust.assignment import DIRECTOR, read_signers, verify_assignment
from gateway.common.trust.chain import Chain
from gateway.common.trust.distrust import Distrust
from gateway.common.trust.floors import ASSIGNMENT, RoleKeys, check_role_floor, keys_of, raised_floors, role_floor
from gateway.common.trust.signatures import signers
from gateway.common.trust.targets import check_hardware, check_offer, check_release, check_target, find_target, floor_of

Fetch = Callable[[str], bytes]
"""Return a file of the repository. Raise KeyError if it is withheld or does not exist."""
REFUSALS = (Distrust, RepositoryError, KeyError)
"""Exceptions of a sync that accepted nothing. Any other exception is a defect."""


def folder_files(folder: Path) -> dict[str, bytes]:
    """Return all files that a repository serves now."""
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@dataclass
class TrustingDevice:
    """Device. `slots`: what is committed; `accepted`: (role, keys of its floor, version) of all documents, in order."""

    name: str
    pinned: bytes
    accelerators: tuple[str, ...] = ("cpu",)
    roots: list[bytes] = field(default_factory=list)
    floors: dict[str, int] = field(default_factory=dict)
    model_floors: dict[str, str] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    slots: dict[str, Activation] = field(default_factory=dict)
    last: bytes = b""
    accepted: list[tuple[str, tuple[str, ...], int]] = field(default_factory=list)

    def sync(self, fetch: Fetch, now: datetime) -> Assignment:
        """Verify everything, then install it. Raise one of REFUSALS and change nothing but the roots."""
        run = Sync(self, fetch, now)
        run.refresh()
        assignment = run.assignment()
        for target in assignment.slots.values():
            check_offer(target, run.lookup(target.path), run.floor)
        for target in assignment.files:
            check_target(target, run.lookup(target.path))
        slots = {slot: run.install(slot, target) for slot, target in assignment.slots.items()}
        self.floors |= run.floors
        self.model_floors |= {name: floor for name, floor in run.model_floors.items() if floor}
        self.blobs |= run.blobs
        self.accepted += run.versions
        self.slots, self.last = slots, run.contents[ASSIGNMENT]
        return assignment

    def boot(self) -> None:
        """Verify every committed release from the disk only, as the daemon does. Raise Distrust."""
        for activation in self.slots.values():
            release = Chain(self.pinned, self.roots, self.blobs.__getitem__).activation(activation)
            for artifact in release.files(activation.variants):
                assert _digest(self.blobs[artifact.sha256]) == artifact.sha256


class Sync:
    """One synchronisation: what it has verified and not stored yet."""

    def __init__(self, device: TrustingDevice, fetch: Fetch, now: datetime) -> None:
        self.device, self.fetch, self.now = device, fetch, now
        self.contents: dict[str, bytes] = {}
        self.floors: dict[str, int] = {}
        self.model_floors: dict[str, str] = {}
        self.blobs: dict[str, bytes] = {}
        self.versions: list[tuple[str, tuple[str, ...], int]] = []
        self._roles: dict[tuple[str, str], Targets] = {}
        self._trusted = self._newest_root()

    def refresh(self) -> None:
        """Verify timestamp, snapshot and targets."""
        trusted = self._trusted
        self._take("timestamp", "metadata/timestamp.json", trusted.update_timestamp)
        version = trusted.timestamp.snapshot_meta.version
        self._take("snapshot", f"metadata/{version}.snapshot.json", trusted.update_snapshot)
        version = trusted.snapshot.meta["targets.json"].version
        self._take("targets", f"metadata/{version}.targets.json", trusted.update_targets)

    def assignment(self) -> Assignment:
        """Return the device's assignment. Its targets are not looked up yet."""
        name, director = self.device.name, self._trusted.targets
        content, keys = self.fetch(f"assignments/{name}.json"), keys_of(director, DIRECTOR)
        assignment = verify_assignment(
            content,
            director,
            device=name,
            now=self.now,
            last_version=role_floor(ASSIGNMENT, keys, self.device.floors),
            last_digest=_digest(self.device.last),
        )
        self._seen(ASSIGNMENT, assignment.version, keys, read_signers(content, director, name))
        self.contents[ASSIGNMENT] = content
        return assignment

    def lookup(self, path: str) -> TargetFile | None:
        """Return the signed target of a path, or None."""
        found = find_target(path, self._role)
        return found and found[1]

    def floor(self, owner: str, model: str) -> str:
        """Return the oldest version that the owner allows."""
        role, name = self._role(f"models-{owner}", "targets"), f"{owner}/{model}"
        assert role
        self.model_floors[name] = floor_of(role, owner, model, self.device.model_floors.get(name, ""))
        return self.model_floors[name]

    def install(self, slot: str, target: Target) -> Activation:
        """Fetch a suitable release and its evidence."""
        folder, _, name = target.path.rpartition("/")
        document = self.fetch(f"targets/{folder}/{target.sha256}.{name}")
        release = check_release(document, target)
        fitting = [v.name for v in release.variants if set(v.accelerators) & set(self.device.accelerators)]
        check_hardware(release, fitting)
        signed = find_target(target.path, self._role)
        assert signed
        evidence = [self.contents[role] for role in signed[0]]
        artifacts = [self._blob(artifact.sha256) for artifact in release.files(fitting)]
        self.blobs |= {_digest(content): content for content in (document, *evidence, *artifacts)}
        digests, root = tuple(map(_digest, evidence)), self._trusted.root.version
        return Activation(slot, target.path, target.sha256, tuple(fitting), digests, root)

    def _newest_root(self) -> TrustedMetadataSet:
        device = self.device
        trusted = TrustedMetadataSet((device.roots or [device.pinned])[-1], EnvelopeType.METADATA)
        trusted.reference_time = self.now
        while True:
            try:
                content = self.fetch(f"metadata/{trusted.root.version + 1}.root.json")
            except KeyError:
                return trusted
            trusted.update_root(content)
            device.roots.append(content)

    def _take(self, role: str, path: str, update: Callable[[bytes], Any]) -> Targets:
        """Verify a document as TUF does, and its version against its floor.

        The floor belongs to the keys of the role itself; for targets and delegated roles, to the snapshot's keys.
        """
        self.contents[role] = self.fetch(path)
        found, root = update(self.contents[role]), self._trusted.root
        vouching = "timestamp" if role == "timestamp" else "snapshot"
        keys = keys_of(root, vouching)
        check_role_floor(role, found.version, keys, self.device.floors)
        metadata: Metadata[Any] = Metadata.from_bytes(self.contents[vouching])
        self._seen(role, found.version, keys, signers(root, vouching, metadata, role))
        return cast("Targets", found)

    def _seen(self, role: str, version: int, keys: RoleKeys, who: frozenset[str]) -> None:
        self.floors |= raised_floors(role, version, who, self.device.floors)
        self.versions.append((role, tuple(sorted(keys.keyids)), version))

    def _role(self, name: str, delegator: str) -> Targets | None:
        if name == "targets":
            return self._trusted.targets
        meta = self._trusted.snapshot.meta.get(f"{name}.json")
        if meta and (name, delegator) not in self._roles:
            path = f"metadata/{meta.version}.{name}.json"
            take = partial(self._trusted.update_delegated_targets, role_name=name, delegator_name=delegator)
            self._roles[name, delegator] = self._take(name, path, take)
        return self._roles.get((name, delegator))

    def _blob(self, sha256: str) -> bytes:
        content = self.fetch(f"blobs/sha256/{sha256}")
        if _digest(content) != sha256:
            raise KeyError(sha256)
        return content


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
