"""Check of a release against its slot: the running release and the policies in force, read from the store."""

from __future__ import annotations

from gateway.agent.state.policy import read_policies
from gateway.agent.state.storage import Storage
from gateway.domain.activation import Activation
from gateway.domain.manifest import ModelManifest
from gateway.domain.manifest_toml import read_manifest
from gateway.domain.signed_release import RELEASE_LIMIT_BYTES, SignedRelease, read_release
from gateway.trust.slots import check_signature, check_slot


def check_activation(storage: Storage, activation: Activation) -> None:
    """Raise Distrust unless the release may take its slot. Its documents must be here. Raise StoreError."""
    slot, running = activation.slot, storage.active().slots.get(activation.slot)
    policies, _ = read_policies(storage)  # one that cannot be read holds every change
    release, manifest = _documents(storage, activation)
    if running is None:
        check_slot(slot, release, None, policies.values())
        return
    present, present_manifest = _documents(storage, running)
    check_slot(slot, release, present, policies.values())
    check_signature(release, manifest, present, present_manifest)


def _documents(storage: Storage, activation: Activation) -> tuple[SignedRelease, ModelManifest]:
    release = read_release(storage.blobs.read(activation.release, RELEASE_LIMIT_BYTES))
    text = storage.blobs.read(release.manifest.sha256, RELEASE_LIMIT_BYTES).decode("utf-8", "replace")
    return release, read_manifest(text, f"the manifest of {release.target}")
