"""A device's store in the agent's format, filled from a signed repository without network and agent."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from fleet.publisher.repository import blob_file, metadata_file, root_versions, target_file
from fleet.publisher.roles import TARGETS
from gateway.common.domain.activation import Activation, Installed
from gateway.common.domain.assignment import Target
from gateway.common.domain.signed_release import read_release
from gateway.common.store.active import Active, committed, read_active, write_active
from gateway.common.store.blobs import LocalBlobs
from gateway.device.store.materialised import materialise
from tests.simulators.fleet_repository import FleetRepository


class DeviceStore:
    """Store in `folder` (`[fleet] store`). The pinned root is the repository's first."""

    def __init__(self, folder: Path, repository: FleetRepository) -> None:
        self.folder, self.repository = folder, repository
        self.blobs = LocalBlobs(folder / "blobs")
        self.blobs.prepare()
        self.active_file = folder / "active.json"
        (folder / "root.json").write_bytes(repository.root_bytes(1))
        self._keep_roots()

    @property
    def active(self) -> Active:
        """The committed activations."""
        return read_active(self.active_file)

    @property
    def config(self) -> str:
        """Return the gateway's configuration for the store."""
        return f'[fleet]\nstore = "{self.folder}"\n'

    def fetch(self, slot: str, path: str, variants: Sequence[str] | None = None) -> Activation:
        """Copy a release (all variants by default) and its evidence to the store, without a commit."""
        target = self._target(path)
        content = (self.repository.public / target_file(target)).read_bytes()
        release = read_release(content)
        names = tuple(variant.name for variant in release.variants) if variants is None else tuple(variants)
        for artifact in release.files(names):
            self.blobs.put((self.repository.public / blob_file(artifact.sha256)).read_bytes())
        digest = self.blobs.put(content)
        materialise(digest, release, names, self.blobs, self.folder / "releases")
        evidence, root = self._proof(path)
        return Activation(slot, path, digest, names, evidence, root)

    def commit(self, activation: Activation) -> Activation:
        """Commit an activation, as the agent does."""
        write_active(self.active_file, committed(self.active, activation))
        return activation

    def install(self, slot: str, path: str, variants: Sequence[str] | None = None) -> Activation:
        """Fetch and commit a release."""
        return self.commit(self.fetch(slot, path, variants))

    def install_file(self, path: str) -> Installed:
        """Install a device profile or a policy."""
        target = self._target(path)
        content = (self.repository.public / target_file(target)).read_bytes()
        self.blobs.put(content)
        installed = Installed(Target(path, target.length, target.hashes["sha256"]), *self._proof(path))
        active, others = self.active, [one for one in self.active.files if one.target.path != path]
        write_active(self.active_file, Active(active.slots, active.previous, (*others, installed)))
        return installed

    def release_folder(self, activation: Activation) -> Path:
        """Return the folder with a release's files."""
        return self.folder / "releases" / activation.release

    def _target(self, path: str):  # type: ignore[no-untyped-def]
        target = self.repository.published.target(path)
        assert target, path
        return target

    def _proof(self, path: str) -> tuple[tuple[str, ...], int]:
        """Store the evidence for `path`.

        Return the digests of top-level targets and the role that signs `path`, and the version of their root.
        """
        self._keep_roots()
        published, kind = self.repository.published, path.split("/")
        role = f"models-{kind[1]}" if kind[0] == "models" else kind[0]
        assert published.root
        assert published.targets
        versions = {TARGETS: published.targets.signed.version, role: published.roles[role].signed.version}
        files = [self.repository.public / metadata_file(name, version) for name, version in versions.items()]
        return tuple(self.blobs.put(file.read_bytes()) for file in files), published.root.signed.version

    def _keep_roots(self) -> None:
        history = self.folder / "metadata" / "root_history"
        history.mkdir(parents=True, exist_ok=True)
        for version in root_versions(self.repository.public):
            (history / f"{version}.root.json").write_bytes(self.repository.root_bytes(version))


def flip_bit(file: Path, place: float = 0.5) -> None:
    """Flip one bit of a file, at this share of its length. Its hard links keep the old content."""
    content = bytearray(file.read_bytes())
    content[int(len(content) * place)] ^= 0x01
    mode = file.stat().st_mode
    file.unlink()
    file.write_bytes(content)
    file.chmod(mode)


def digest_of(file: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()
