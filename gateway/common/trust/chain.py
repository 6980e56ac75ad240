"""Verification of a committed release before the daemon serves it, from bytes on disk, without network and clock.

Expiry is ignored on purpose, here only. Expiry limits how long an attacker between device and repository can hold back
updates. The agent checked it, at a trusted time, when the release was installed. A device without network or clock for
a year must still boot into what its owner signed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from gateway.common.domain.activation import Activation
from gateway.common.domain.assignment import SETTINGS_SLOT, Target
from gateway.common.domain.manifest_toml import DIGEST_PATTERN
from gateway.common.domain.release_paths import is_model, reserved_slot
from gateway.common.domain.settings_release import SETTINGS_LIMIT_BYTES, SettingsRelease
from gateway.common.domain.signed_release import RELEASE_LIMIT_BYTES, SignedRelease
from gateway.common.trust.distrust import Distrust, Reason
from gateway.common.trust.paths import is_file, release_path
from gateway.common.trust.reading import read_metadata
from gateway.common.trust.settings import DEFAULTS, TrustSettings
from gateway.common.trust.signatures import signers
from gateway.common.trust.targets import ROOT, TARGETS, check_content, check_release, check_settings, delegates

if TYPE_CHECKING:
    from tuf.api.metadata import Metadata, Root, Targets

    T = TypeVar("T", Root, Targets)

Blob = Callable[[str], bytes]
"""Function from a blob's SHA-256 (hex, already checked) to its content. The caller handles its errors (OSError)."""


class Chain:
    """Chain of trust of one device: what its owners signed, from the pinned root on.

    `pinned`: the root that this device was given. `roots`: those that followed, oldest first. The caller checks the
    manifest and the artifacts of a verified release by their digests.

    Pass items with the same evidence one after the other. A device has as many releases as slots, and a few documents
    of megabytes each prove all of them. Such documents are read and verified once. At most one chain of evidence is in
    memory.
    """

    def __init__(self, pinned: bytes, roots: Sequence[bytes], blob: Blob, settings: TrustSettings = DEFAULTS) -> None:
        self._pinned, self._roots, self._blob, self._settings = pinned, roots, blob, settings
        self._trusted: dict[int, Root] = {}
        self._proof: Proof | None = None

    def activation(self, activation: Activation) -> SignedRelease:
        """Return the release that its owner signed. Raise Distrust."""
        if not is_model(activation.target):
            raise Distrust(Reason.BAD_PATH, f"the target {activation.target}", "it is no model")
        target = self._signed(activation)
        where = f"the release document {target.path}"
        return check_release(_content(activation.release, self._blob, where, RELEASE_LIMIT_BYTES), target)

    def settings(self, activation: Activation) -> SettingsRelease:
        """Return the settings that the fleet's settings role signed. Raises Distrust."""
        where = f"the settings {activation.target}"
        if reserved_slot(activation.target) != SETTINGS_SLOT:
            raise Distrust(Reason.BAD_PATH, where, "they are no settings")
        target = self._signed(activation)
        return check_settings(_content(activation.release, self._blob, where, SETTINGS_LIMIT_BYTES), target)

    def file(self, target: Target, evidence: Sequence[str], root_version: int) -> bytes:
        """Return the content of an installed profile or policy, or raise Distrust."""
        where = f"the file {target.path}"
        if not is_file(target.path):
            raise Distrust(Reason.BAD_PATH, where, "it is neither a profile nor a policy")
        signed = self._vouched(target.path, evidence, root_version)
        if signed != target:
            raise Distrust(Reason.SWAPPED, where, f"{signed.sha256:.12} is signed, {target.sha256:.12} is installed")
        content = _content(target.sha256, self._blob, where, self._settings.metadata_limit_bytes)
        check_content(content, target, where)
        return content

    def _signed(self, activation: Activation) -> Target:
        """Return what is signed of the activation's path, if that is the release that is installed."""
        release_path(activation.target)
        target = self._vouched(activation.target, activation.evidence, activation.root)
        if target.sha256 != activation.release:
            digests = f"{target.sha256:.12} is signed, {activation.release:.12} is installed"
            raise Distrust(Reason.SWAPPED, f"the release of slot {activation.slot}", digests)
        return target

    def _vouched(self, path: str, evidence: Sequence[str], root_version: int) -> Target:
        key: tuple[int | str, ...] = (root_version, *evidence)
        if self._proof is None or self._proof.key != key:
            self._proof = None  # free its memory before the next one is read
            if root_version not in self._trusted:
                root = trusted_root(self._pinned, self._roots, root_version, self._settings)
                self._trusted[root_version] = root
            where = f"the evidence for {path}"
            self._proof = Proof(key, self._trusted[root_version], where, self._blob, self._settings)
        return self._proof.vouched(path)


class Proof:
    """Metadata documents from the top-level targets role, which `root` names, down to an owner's role."""

    def __init__(self, key: tuple[int | str, ...], root: Root, where: str, blob: Blob, settings: TrustSettings) -> None:
        """Read and verify the documents. `key`: the root's version, then the digests. Raise Distrust."""
        evidence = [str(digest) for digest in key[1:]]
        if not 2 <= len(evidence) <= settings.evidence_limit:
            counted = f"it has {len(evidence)} documents, 2 to {settings.evidence_limit} are read"
            raise Distrust(Reason.UNSIGNED, where, counted)
        self.key = key
        self._documents = [_read_targets(digest, blob, where, settings) for digest in evidence]
        self._payloads = [document.signed_bytes for document in self._documents]
        self._signed: set[tuple[int, str]] = set()
        signers(root, TARGETS, self._documents[0], where, payload=self._payloads[0])

    def vouched(self, path: str) -> Target:
        """Return the target that the last role signs for `path`, or raise Distrust.

        Every role on the way must delegate exactly this path. The top-level targets role only delegates: a target that
        it signs alone does not count.
        """
        where = f"the evidence for {path}"
        for place in range(1, len(self._documents)):
            self._check_delegated(place, path, where)
        file = self._documents[-1].signed.targets.get(path)
        if file is None:
            raise Distrust(Reason.UNSIGNED, where, "the last of its documents does not name it")
        digest = file.hashes.get("sha256", "")
        if not DIGEST_PATTERN.fullmatch(digest) or type(file.length) is not int:
            raise Distrust(Reason.DAMAGED, where, "it is signed without SHA-256 or size")
        return Target(path, file.length, digest)

    def _check_delegated(self, place: int, path: str, where: str) -> None:
        """Raise Distrust unless a role that may sign `path` signed the document at `place`.

        As in TUF, no role after a terminating delegation counts.
        """
        above, below = self._documents[place - 1].signed, self._documents[place]
        refusal = Distrust(Reason.FORGED, where, "no role is named that may sign it")
        for role in delegates(above, path)[0]:
            if (place, role) in self._signed:
                return
            try:
                signers(above, role, below, where, payload=self._payloads[place])
            except Distrust as error:
                refusal = error
            else:
                self._signed.add((place, role))
                return
        raise refusal


def trusted_root(pinned: bytes, roots: Sequence[bytes], version: int, settings: TrustSettings = DEFAULTS) -> Root:
    """Return root `version`. Each root is signed by its predecessor's threshold and by its own (TUF 5.3.4).

    If the pinned root is newer than `version`, return the pinned root. Raise Distrust if the chain is broken.
    """
    if len(roots) > settings.roots_limit:
        raise Distrust(Reason.TOO_LARGE, "the chain of roots", f"it has {len(roots)}, over {settings.roots_limit}")
    first = _read_root(pinned, "the pinned root", settings)
    signers(first.signed, ROOT, first, "the pinned root")
    root = first.signed
    for content in roots:
        if root.version >= version:
            break
        root = _next_root(root, content, settings)
    if root.version < version:
        raise Distrust(Reason.DAMAGED, "the chain of roots", f"it ends with {root.version}; {version} is not there")
    return root


def newest_root(pinned: bytes, roots: Sequence[bytes], settings: TrustSettings = DEFAULTS) -> tuple[Root, bytes]:
    """Return the last of `roots` that follows from the pinned one, and its document. Raise Distrust."""
    if len(roots) > settings.roots_limit:
        raise Distrust(Reason.TOO_LARGE, "the chain of roots", f"it has {len(roots)}, over {settings.roots_limit}")
    root = trusted_root(pinned, (), 1, settings)
    for content in roots:
        following = _next_root(root, content, settings)
        if following is not root:
            root, pinned = following, content
    return root, pinned


def _next_root(root: Root, content: bytes, settings: TrustSettings) -> Root:
    where = f"the root after {root.version}"
    following = _read_root(content, where, settings)
    if following.signed.version <= root.version:
        return root
    if following.signed.version != root.version + 1:
        raise Distrust(Reason.DAMAGED, where, f"it has version {following.signed.version}; those between are not there")
    signers(root, ROOT, following, where)
    signers(following.signed, ROOT, following, where)
    return following.signed


def _read_root(content: bytes, where: str, settings: TrustSettings) -> Metadata[Root]:
    from tuf.api.metadata import Root

    return read_metadata(content, Root, where, settings.metadata_limit_bytes, settings)


def _read_targets(digest: str, blob: Blob, where: str, settings: TrustSettings) -> Metadata[Targets]:
    from tuf.api.metadata import Targets

    limit_bytes = settings.metadata_limit_bytes
    return read_metadata(_content(digest, blob, where, limit_bytes), Targets, where, limit_bytes, settings)


def _content(digest: str, blob: Blob, where: str, limit_bytes: int) -> bytes:
    """Return a blob whose digest matches. The digest's form is checked first, because it becomes a file name."""
    if not DIGEST_PATTERN.fullmatch(digest):
        raise Distrust(Reason.DAMAGED, where, f"{digest!r:.80} is no SHA-256 digest")
    content = blob(digest)
    if len(content) > limit_bytes:
        raise Distrust(Reason.TOO_LARGE, where, f"the blob {digest:.12} has {len(content)} bytes, over {limit_bytes}")
    if hashlib.sha256(content).hexdigest() != digest:
        raise Distrust(Reason.DAMAGED, where, f"the blob {digest:.12} does not match its digest; the disk damaged it")
    return content
