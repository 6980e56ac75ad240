"""What the daemon asks before it serves a committed release: nothing but bytes on its disk, no network, no clock.

Expiry is ignored on purpose, here only. It bounds how long an attacker between device and repository can hold back
news; that was judged by the agent, with a time it could trust, when the release was installed. A device that has been
without a link or a clock for a year must still boot into what its owner signed.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from gateway.domain.activation import Activation
from gateway.domain.assignment import Target
from gateway.domain.signed_release import RELEASE_LIMIT_BYTES, SignedRelease
from gateway.trust.assignment_form import DIGEST
from gateway.trust.distrust import Distrust, Reason
from gateway.trust.paths import is_file, release_path
from gateway.trust.reading import read_metadata
from gateway.trust.settings import DEFAULTS, TrustSettings
from gateway.trust.signatures import signers
from gateway.trust.targets import ROOT, TARGETS, check_content, check_release, delegates

if TYPE_CHECKING:
    from tuf.api.metadata import Metadata, Root, TargetFile, Targets

    T = TypeVar("T", Root, Targets)

Blob = Callable[[str], bytes]
"""The content of a blob by its SHA-256 as hex, checked to be one. What it raises (OSError) is the caller's."""


def verify_activation(
    activation: Activation, pinned: bytes, roots: Sequence[bytes], blob: Blob, settings: TrustSettings = DEFAULTS
) -> SignedRelease:
    """The release that its owner signed, or Distrust. Manifest and artifacts are then checked by its digests.

    `pinned` is the root that this device was given, `roots` those that followed, oldest first.
    """
    release_path(activation.target)
    root = trusted_root(pinned, roots, activation.root, settings)
    target = _vouched(activation.target, activation.evidence, root, blob, settings)
    if target.sha256 != activation.release:
        shown = f"{target.sha256:.12} is signed, {activation.release:.12} is installed"
        raise Distrust(Reason.SWAPPED, f"the release of slot {activation.slot}", shown)
    where = f"the release document {target.path}"
    return check_release(_content(activation.release, blob, where, RELEASE_LIMIT_BYTES), target)


def verify_file(
    target: Target,
    evidence: Sequence[str],
    root_version: int,
    *,
    pinned: bytes,
    roots: Sequence[bytes],
    blob: Blob,
    settings: TrustSettings = DEFAULTS,
) -> bytes:
    """The content of an installed profile or policy, signed by whom its path is delegated to, or Distrust."""
    where = f"the file {target.path}"
    if not is_file(target.path):
        raise Distrust(Reason.BAD_PATH, where, "it is neither a profile nor a policy")
    root = trusted_root(pinned, roots, root_version, settings)
    signed = _vouched(target.path, evidence, root, blob, settings)
    if signed != target:
        raise Distrust(Reason.SWAPPED, where, f"{signed.sha256:.12} is signed, {target.sha256:.12} is installed")
    content = _content(target.sha256, blob, where, settings.metadata_limit_bytes)
    check_content(content, target, where)
    return content


def trusted_root(pinned: bytes, roots: Sequence[bytes], version: int, settings: TrustSettings = DEFAULTS) -> Root:
    """Root `version`, each on the way signed by its predecessor's threshold and by its own (TUF 5.3.4).

    Where the pinned root is newer than `version`, it is the one. Raises Distrust where the chain is broken.
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


def _vouched(path: str, evidence: Sequence[str], root: Root, blob: Blob, settings: TrustSettings) -> Target:
    """What the role at the end of `evidence` signs of `path`, each link a delegation of just this path.

    The top-level targets role delegates only: alone it vouches for nothing, whoever holds its keys.
    """
    where = f"the evidence for {path}"
    if not 2 <= len(evidence) <= settings.evidence_limit:
        counted = f"it has {len(evidence)} documents, 2 to {settings.evidence_limit} are read"
        raise Distrust(Reason.UNSIGNED, where, counted)
    documents = [_read_targets(digest, blob, where, settings) for digest in evidence]
    signers(root, TARGETS, documents[0], where)
    for above, below in itertools.pairwise(documents):
        _check_delegated(above.signed, below, path, where)
    file = documents[-1].signed.targets.get(path)
    if file is None:
        raise Distrust(Reason.UNSIGNED, where, "the last of its documents does not name it")
    return _target(path, file, where)


def _check_delegated(above: Targets, below: Metadata[Targets], path: str, where: str) -> None:
    """Raises Distrust unless one of the roles that may sign `path` signed `below`; as TUF, none after a terminating."""
    refusal = Distrust(Reason.FORGED, where, "no role is named that may sign it")
    for role in delegates(above, path)[0]:
        try:
            signers(above, role, below, where)
        except Distrust as error:
            refusal = error
        else:
            return
    raise refusal


def _target(path: str, file: TargetFile, where: str) -> Target:
    digest = file.hashes.get("sha256", "")
    if not DIGEST.fullmatch(digest) or type(file.length) is not int:
        raise Distrust(Reason.DAMAGED, where, "it is signed without SHA-256 or size")
    return Target(path, file.length, digest)


def _read_targets(digest: str, blob: Blob, where: str, settings: TrustSettings) -> Metadata[Targets]:
    from tuf.api.metadata import Targets

    limit_bytes = settings.metadata_limit_bytes
    return read_metadata(_content(digest, blob, where, limit_bytes), Targets, where, limit_bytes, settings)


def _content(digest: str, blob: Blob, where: str, limit_bytes: int) -> bytes:
    """A blob that is what its name says. The digest is checked first: it becomes a file's name."""
    if not DIGEST.fullmatch(digest):
        raise Distrust(Reason.DAMAGED, where, f"{digest!r:.80} is no SHA-256 digest")
    content = blob(digest)
    if len(content) > limit_bytes:
        raise Distrust(Reason.TOO_LARGE, where, f"the blob {digest:.12} has {len(content)} bytes, over {limit_bytes}")
    if hashlib.sha256(content).hexdigest() != digest:
        raise Distrust(Reason.DAMAGED, where, f"the blob {digest:.12} is not what its name says; the disk spoilt it")
    return content
