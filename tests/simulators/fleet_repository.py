"""Publisher with all keys in memory: a complete signed repository in milliseconds, and an attacker's forgeries.

It uses the fleet's own modules; only the keys are not files. `keys[role]` are signers. An attacker with some of them
(`snapshot`, `timestamp` and `director` are online) can sign anything with `sign` and `forge`.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from securesystemslib.signer import CryptoSigner
from tuf.api.metadata import Metadata, TargetFile, Targets

from fleet.publisher import releases, signing
from fleet.publisher.assignments import assigned, next_assignment
from fleet.publisher.device_settings import plan_settings, settings_path
from fleet.publisher.drafts import Draft
from fleet.publisher.keys import keep_key
from fleet.publisher.publish import Publication, plan_publication
from fleet.publisher.releases import Model, Terms, plan_release, release_target, target_of
from fleet.publisher.repository import Published, assignment_file, blob_file, metadata_file, target_file
from fleet.publisher.roles import (
    DIRECTOR,
    NAME_FIELD,
    POLICY,
    PROFILES,
    ROOT,
    SNAPSHOT,
    TARGETS,
    TIMESTAMP,
    owner_role,
)
from fleet.publisher.settings import FleetSettings
from fleet.publisher.software import plan_software, read_variant
from fleet.publisher.workspace import Workspace
from gateway.common.domain.assignment import SETTINGS_SLOT, SOFTWARE_SLOT, Assignment, Target
from gateway.common.domain.manifest import Artifact
from gateway.common.domain.signed_release import SignedRelease, SignedVariant, target_path
from gateway.common.trust.assignment_form import assignment_metadata
from gateway.common.trust.targets import Withdrawal

MANIFEST = """schema = 1
name = "{model}"
version = "{version}"
{inputs}[[output]]
name = "y"
datatype = "FP32"
shape = [-1, 3]
"""
INPUT = """[[input]]
name = "{name}"
datatype = "FP32"
shape = {shape}
"""
VARIANT = """[[variant]]
name = "{name}"
runtime = "{runtime}"
precision = "fp32"
accelerators = {accelerators}
artifacts = [{{path = "{path}", sha256 = "{sha256}", bytes = {size}}}]
"""


def manifest_text(model: str, version: str, inputs: Sequence[tuple[str, tuple[int, ...]]] = (("x", (-1, 3)),)) -> str:
    """Return a manifest without variants. `inputs`: names and shapes."""
    listed = "".join(INPUT.format(name=name, shape=list(shape)) for name, shape in inputs)
    return MANIFEST.format(model=model, version=version, inputs=listed)


def model_folder(
    folder: Path,
    model: str,
    version: str,
    contents: Mapping[str, bytes],
    *,
    inputs: Sequence[tuple[str, tuple[int, ...]]] = (("x", (-1, 3)),),
    accelerators: Sequence[str] = ("cpu",),
    runtime: str = "reference",
) -> Path:
    """Write a model with these bytes by variant, as its owner has it. Return its folder."""
    text = manifest_text(model, version, inputs)
    for name, content in contents.items():
        path = f"{name}/model.npz"
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
        text += VARIANT.format(
            name=name,
            runtime=runtime,
            accelerators=json.dumps(list(accelerators)),
            path=path,
            sha256=hashlib.sha256(content).hexdigest(),
            size=len(content),
        )
    (folder / "manifest.toml").write_text(text)
    return folder


def new_key(name: str = "") -> CryptoSigner:
    """Return an Ed25519 key in memory."""
    signer = CryptoSigner.generate_ed25519()
    signer.public_key.unrecognized_fields[NAME_FIELD] = name or signer.public_key.keyid[:8]
    return signer


class FleetRepository:
    """Repository. Devices read `public`; everything is published and signed when a method returns."""

    def __init__(self, folder: Path, *, now: datetime | None = None, settings: FleetSettings | None = None) -> None:
        self.workspace = Workspace(folder, settings or FleetSettings())
        self.public = self.workspace.public
        self.now = now or datetime.now(timezone.utc)
        self.keys: dict[str, list[CryptoSigner]] = {ROOT: [new_key(f"root-{i}") for i in range(3)]}
        for role in (TARGETS, SNAPSHOT, TIMESTAMP, DIRECTOR):
            self.keys[role] = [new_key(role)]
        self.keys[PROFILES] = self.keys[POLICY] = self.keys[TARGETS]
        self.retired: list[CryptoSigner] = []
        """Keys that were rotated out, which an attacker may have."""
        self.assignment_versions: dict[str, int] = {}
        self._begin()

    # ---- publisher

    @property
    def published(self) -> Published:
        """The newest metadata."""
        return self.workspace.published()

    def root_bytes(self, version: int | None = None) -> bytes:
        """Return a published root, by default the newest. Bootstrap pins it."""
        root = self.published.root
        assert root
        return (self.public / metadata_file(ROOT, version or root.signed.version)).read_bytes()

    def add_owner(self, owner: str, *, keys: int = 1, threshold: int = 1) -> None:
        """Delegate to an owner; `keys["models-OWNER"]` are its keys."""
        role = owner_role(owner)
        self.keys[role] = [new_key(f"{owner}-{i}") for i in range(keys)]
        self._publish(signing.delegate(self.drafting(), role, self._public(role), threshold))

    def add_model(self, folder: Path, owner: str = "acme", terms: Terms | None = None) -> str:
        """Publish a model's folder (…/<name>/<version> with a manifest.toml). Return its target path."""
        model = releases.read_model(folder, self.workspace.settings)
        return self._add(model, owner, terms or Terms())

    def withdraw(self, model: str, version: str, withdrawal: str, owner: str = "acme") -> None:
        """Withdraw a release, with "offer" or "remove"."""
        self.withdraw_path(target_path(owner, model, version), Withdrawal(withdrawal))

    def withdraw_path(self, path: str, withdrawal: Withdrawal) -> None:
        """Withdraw the release at `path`, of any kind."""
        self._publish([releases.plan_withdrawal(self.drafting(), path, withdrawal)])

    def add_release(
        self,
        model: str,
        version: str,
        owner: str = "acme",
        *,
        variants: Mapping[str, bytes] | None = None,
        accelerators: Sequence[str] = ("cpu",),
        runtime: str = "reference",
        floor: str | None = None,
        slots: tuple[str, ...] = (),
        changes_signature: bool = False,
        inputs: Sequence[tuple[str, tuple[int, ...]]] = (("x", (-1, 3)),),
    ) -> str:
        """Publish a release with these bytes by variant (any content). Return its target path."""
        folder = self.workspace.folder / "made" / owner / model / version
        contents = variants or {"only": f"{model} {version}".encode()}
        model_folder(folder, model, version, contents, inputs=inputs, accelerators=accelerators, runtime=runtime)
        return self.add_model(folder, owner, Terms(floor, slots, changes_signature))

    def add_software(self, variants: Sequence[Path], floor: str | None = None) -> str:
        """Publish folders of wheels as a release, signed by `keys["software"]`. Return its target path."""
        self._add_reserved(SOFTWARE_SLOT)
        python, machine = f"3.{sys.version_info.minor}", platform.machine()
        read = [read_variant(folder, python, machine) for folder in variants]
        planned = plan_software(self.drafting(), read, floor)
        for folder in variants:
            for file in sorted(folder.glob("*.whl")):
                content = file.read_bytes()
                self.workspace.stage_blob(file, Artifact(file.name, hashlib.sha256(content).hexdigest(), len(content)))
        self.workspace.stage(planned.target, planned.content)
        self._publish([planned.draft])
        return planned.target.path

    def add_settings(self, name: str, text: str, version: str | None = None, floor: str | None = None) -> str:
        """Publish settings for devices, signed by `keys["settings"]`. Return their target path."""
        self._add_reserved(SETTINGS_SLOT)
        path = settings_path(self.drafting(), name, version)
        planned = plan_settings(self.drafting(), path, text, floor)
        self.workspace.stage(planned.target, planned.content)
        self._publish([planned.draft])
        return planned.target.path

    def add_file(self, path: str, content: bytes) -> str:
        """Publish `profiles/NAME.toml` or `policy/NAME.json`."""
        target = target_of(path, content)
        self.workspace.stage(target, content)
        role = path.split("/", maxsplit=1)[0]
        self._publish([signing.add_targets(self.drafting(), role, [(target, content)])])
        return path

    def publish(self) -> None:
        """Publish a new timestamp, and a new snapshot if the old one expires soon. `now` may have been changed."""
        self._publish([])

    def renew(self, role: str) -> None:
        """Sign the same document of an offline role again, with a later expiry."""
        self._publish([signing.renew(self.drafting(), role)])

    def rotate(self, role: str, *, keys: int | None = None, threshold: int | None = None, lost: bool = False) -> None:
        """Replace a role's keys. Old keys move to `retired`, unless they are lost and cannot sign the change."""
        old = self.keys[role]
        self.keys[role] = [new_key(f"{role}-new-{i}") for i in range(keys or len(old))]
        threshold = threshold or (2 if role == ROOT else 1)
        drafts = signing.rotate(self.drafting(), role, self._public(role), threshold)
        self.retired += [] if lost else old
        self._publish(drafts)

    def assign(
        self, device: str, slots: Mapping[str, str | Target], files: Sequence[str] = (), **changes: Any
    ) -> bytes:
        """Publish and return an assignment of target paths by slot. `changes`: see `assignment`."""
        return self.put_assignment(device, self.assignment(device, slots, files, **changes))

    def assignment(
        self,
        device: str,
        slots: Mapping[str, str | Target],
        files: Sequence[str] = (),
        *,
        signers: Sequence[CryptoSigner] | None = None,
        **changes: Any,
    ) -> bytes:
        """Return a signed, unpublished assignment. `changes`: fields of `Assignment` to replace.

        A slot's value is a path of a published target, or any `Target`.
        """
        published, version = self.published, self.assignment_versions.get(device, 0) + 1
        named = {slot: t if isinstance(t, Target) else assigned(published, t) for slot, t in slots.items()}
        made = next_assignment(
            device,
            named,
            [assigned(published, path) for path in files],
            version=version,
            now=self.now,
            settings=self.workspace.settings,
        )
        made = replace(made, **changes)
        self.assignment_versions[device] = max(version, made.version)
        return self.sign(assignment_metadata(made), signers or self.keys[DIRECTOR])

    def put_assignment(self, device: str, content: bytes) -> bytes:
        """Publish this content as the device's assignment."""
        path = self.public / assignment_file(device)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        return content

    # ---- attacker

    @staticmethod
    def sign(metadata: Metadata[Any], signers: Sequence[CryptoSigner]) -> bytes:
        """Sign any document with any keys."""
        metadata.signatures.clear()
        for signer in signers:
            metadata.sign(signer, append=True)
        return metadata.to_bytes()

    def forge(self, role: str, metadata: Metadata[Any], signers: Sequence[CryptoSigner]) -> None:
        """Replace a role's published metadata with the same or a later version.

        Snapshot and timestamp confirm it, since their keys are online. `signers` are the attacker's keys.
        """
        content = self.sign(metadata, signers)
        published = self.published
        assert published.snapshot
        assert published.timestamp
        (self.public / metadata_file(role, metadata.signed.version)).write_bytes(content)
        snapshot, timestamp = published.snapshot, published.timestamp
        snapshot.signed.version += 1
        snapshot.signed.meta[f"{role}.json"].version = metadata.signed.version
        name = metadata_file(SNAPSHOT, snapshot.signed.version)
        (self.public / name).write_bytes(self.sign(snapshot, self.keys[SNAPSHOT]))
        timestamp.signed.version += 1
        timestamp.signed.snapshot_meta.version = snapshot.signed.version
        (self.public / "metadata" / "timestamp.json").write_bytes(self.sign(timestamp, self.keys[TIMESTAMP]))

    def forge_release(self, model: str, version: str, content: bytes, owner: str = "acme") -> tuple[Target, bytes]:
        """Return a target and document of a well-formed release that no owner signed; its files are on the server."""
        manifest = manifest_text(model, version).encode()
        digest = hashlib.sha256(content).hexdigest()
        only = SignedVariant("only", "reference", "fp32", ("cpu",), (Artifact("only/model.npz", digest, len(content)),))
        file = Artifact("manifest.toml", hashlib.sha256(manifest).hexdigest(), len(manifest))
        at = self.now.replace(microsecond=0)
        release = SignedRelease(owner, model, version, version, at, file, None, (only,))
        target, document = release_target(release)
        for blob in (manifest, content):
            self.put_blob(blob)
        self.put_target(target, document)
        return Target(target.path, target.length, target.hashes["sha256"]), document

    def put_blob(self, content: bytes) -> str:
        """Store any bytes on the server; return their digest."""
        digest = hashlib.sha256(content).hexdigest()
        path = self.public / blob_file(digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return digest

    def put_target(self, target: TargetFile, content: bytes) -> None:
        """Store any content of a target on the server."""
        path = self.public / target_file(target)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    # ---- internals

    def drafting(self) -> signing.Drafting:
        """Return the inputs of the next draft."""
        return self.workspace.drafting(self.now)

    def owner_targets(self, owner: str = "acme") -> Metadata[Targets]:
        """Return a copy of the owner's published metadata, to be modified and forged."""
        return self.published.roles[owner_role(owner)]

    def keep_keys(self) -> None:
        """Write all keys, unencrypted, to the publisher's folder `keys`, for use by `edge-fleet`."""
        for signer in {s.public_key.keyid: s for signers in self.keys.values() for s in signers}.values():
            private = load_pem_private_key(signer.private_bytes, None)
            assert isinstance(private, Ed25519PrivateKey)
            keep_key(self.workspace.keys, signer.public_key.keyid, private, None)

    def _begin(self) -> None:
        beginning = signing.Beginning(
            self._public(ROOT), self._public(TARGETS), self._public(SNAPSHOT), self._public(DIRECTOR)
        )
        root, targets = signing.begin(self.drafting(), beginning)
        self.workspace.save(map(self._signed, (root, targets)))
        self.keys[TIMESTAMP] = self.keys[SNAPSHOT]
        self._publish([])

    def _public(self, role: str) -> list[Any]:
        return [signer.public_key for signer in self.keys[role]]

    def draft_rotation(self, role: str) -> None:
        """Rotate keys as `rotate` does, but do not publish."""
        old = self.keys[role]
        self.keys[role] = [new_key(f"{role}-next-{i}") for i in range(len(old))]
        drafts = signing.rotate(self.drafting(), role, self._public(role), 2 if role == ROOT else 1)
        self.retired += old
        self.workspace.save(map(self._signed, drafts))

    def _add(self, model: Model, owner: str, terms: Terms) -> str:
        role = owner_role(owner)
        if role not in self.keys:
            self.add_owner(owner)
        planned = plan_release(self.drafting(), model, owner, terms)
        for artifact in releases.model_files(planned.release):
            self.workspace.stage_blob(model.folder / artifact.path, artifact)
        self.workspace.stage(planned.target, planned.content)
        self._publish([planned.draft])
        return planned.target.path

    def _add_reserved(self, slot: str) -> None:
        """Delegate to the role of a reserved slot unless it has keys."""
        if (role := owner_role(slot)) not in self.keys:
            self.keys[role] = [new_key(role)]
            self._publish(signing.delegate(self.drafting(), role, self._public(role), 1))

    def _signed(self, draft: Draft) -> Draft:
        for signer in {id(s): s for signers in (*self.keys.values(), self.retired) for s in signers}.values():
            if signer.public_key.keyid in draft.keys:
                draft = signing.signed_with(draft, signer)
        return draft

    def _publish(self, drafts: Sequence[Draft]) -> None:
        self.workspace.save(map(self._signed, drafts))
        self.write(self.plan())

    def plan(self) -> Publication:
        """Return what publishing the drafts would write."""
        signers = [signer for signers in (*self.keys.values(), self.retired) for signer in signers]
        drafts = list(self.workspace.drafts().values())
        return plan_publication(self.published, drafts, signers, self.now, self.workspace.settings)

    def write(self, publication: Publication) -> None:
        """Publish it. Tests of interruptions override this."""
        self.workspace.publish(publication)


__all__ = ["Assignment", "FleetRepository", "new_key"]
