"""Attacker with every online key, with a name space of its own and one of acme's two keys, as a man in the middle.

It serves a copy of the repository's files; it cannot change the repository itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from securesystemslib.signer import CryptoSigner
from tuf.api.metadata import DelegatedRole, Delegations, Metadata, MetaFile, TargetFile, Targets

from fleet.publisher.roles import DIRECTOR, SNAPSHOT, TIMESTAMP
from gateway.common.domain.assignment import Assignment, Target
from gateway.common.trust.assignment_form import assignment_metadata
from tests.simulators.fleet_repository import FleetRepository, new_key
from tests.simulators.trusting_device import folder_files

Files = dict[str, bytes]
LEAP = 2**53 - 1
"""The greatest possible version."""
OWN = "mallory"


class OnlineThief:
    """Attacker. Methods return the files that a device gets; `stolen`: the online keys at the last theft."""

    def __init__(self, repository: FleetRepository) -> None:
        self.repository = repository
        self.own_role = new_key("own")
        self.stolen: dict[str, list[CryptoSigner]] = {}
        self.steal()

    def steal(self) -> None:
        """Copy the present online keys."""
        self.stolen = {role: list(self.repository.keys[role]) for role in (SNAPSHOT, TIMESTAMP, DIRECTOR)}

    @property
    def online(self) -> list[CryptoSigner]:
        """Return all online keys, each once."""
        return list({key.public_key.keyid: key for keys in self.stolen.values() for key in keys}.values())

    def forged_release(self, model: str, version: str) -> tuple[Target, bytes, Files]:
        """Return a release of acme that acme never signed, and its files."""
        before = folder_files(self.repository.public)
        target, document = self.repository.forge_release(model, version, b"of the thief")
        served = folder_files(self.repository.public)
        for name in served.keys() - before.keys():
            (self.repository.public / name).unlink()
        return target, document, served

    def listing(self, files: Files, roles: Mapping[str, Metadata[Any]], *, leap: str = "") -> Files:
        """Return files with a snapshot and timestamp of this metadata; the role `leap` gets version LEAP."""
        published = self.repository.published
        assert published.snapshot
        assert published.timestamp
        snapshot, timestamp, made = published.snapshot, published.timestamp, dict(files)
        for role, metadata in roles.items():
            made[f"metadata/{metadata.signed.version}.{role}.json"] = metadata.to_bytes()
            snapshot.signed.meta[f"{role}.json"] = MetaFile(metadata.signed.version)
        snapshot.signed.version = LEAP if leap == SNAPSHOT else snapshot.signed.version + 1
        made[f"metadata/{snapshot.signed.version}.snapshot.json"] = _signed(snapshot, self.stolen[SNAPSHOT])
        timestamp.signed.version = LEAP if leap == TIMESTAMP else timestamp.signed.version + 1
        timestamp.signed.snapshot_meta.version = snapshot.signed.version
        made["metadata/timestamp.json"] = _signed(timestamp, self.stolen[TIMESTAMP])
        return made

    def assigning(self, files: Files, device: str, slots: Mapping[str, Target], /, **changes: Any) -> Files:
        """Return an assignment signed with the stolen director's key, or with `signers`; `changes`: its fields."""
        signers: Sequence[CryptoSigner] = changes.pop("signers", self.stolen[DIRECTOR])
        now, version = self.repository.now, self.repository.assignment_versions.get(device, 0) + 1
        made = Assignment(device, version, now, now + timedelta(days=1), slots)
        metadata = assignment_metadata(replace(made, **changes))
        return files | {f"assignments/{device}.json": _signed(metadata, signers)}

    def acme_with(self, target: Target, document: bytes, signers: Sequence[CryptoSigner]) -> Metadata[Targets]:
        """Return acme's metadata with this release, signed by others than acme."""
        metadata = self.repository.owner_targets("acme")
        metadata.signed.targets[target.path] = TargetFile.from_data(target.path, document, ["sha256"])
        metadata.signed.version += 1
        old = dict(metadata.signatures)
        _signed(metadata, signers)
        metadata.signatures |= {keyid: kept for keyid, kept in old.items() if keyid not in metadata.signatures}
        return metadata

    def own_with(self, target: Target, document: bytes, *, below: bool) -> dict[str, Metadata[Targets]]:
        """Return the attacker's valid metadata with acme's release in it, or (`below`) in a role it delegates to."""
        file = {target.path: TargetFile.from_data(target.path, document, ["sha256"])}
        own = self.repository.owner_targets(OWN)
        own.signed.version += 1
        if not below:
            own.signed.targets |= file
            return {f"models-{OWN}": _metadata(own, self.repository.keys[f"models-{OWN}"])}
        public = self.own_role.public_key
        role = DelegatedRole("mine", [public.keyid], 1, terminating=False, paths=["models/acme/*/*/*"])
        own.signed.delegations = Delegations({public.keyid: public}, {"mine": role})
        mine = _metadata(Metadata(Targets(expires=own.signed.expires, targets=file)), [self.own_role])
        return {f"models-{OWN}": _metadata(own, self.repository.keys[f"models-{OWN}"]), "mine": mine}


def _metadata(metadata: Metadata[Any], signers: Sequence[CryptoSigner]) -> Metadata[Any]:
    _signed(metadata, signers)
    return metadata


def _signed(metadata: Metadata[Any], signers: Sequence[CryptoSigner]) -> bytes:
    return FleetRepository.sign(metadata, signers)
