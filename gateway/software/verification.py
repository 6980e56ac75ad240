"""Verification of a requested version, from the installer's own root of trust and the bytes of the store.

Requests come from the agent's user, which is not trusted: it chooses what to pass, and cannot forge it. Expiry is not
checked, as in `gateway.trust.chain`: the agent checked it at a trusted time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.domain.routing import version_order
from gateway.domain.software_release import (
    SOFTWARE_LIMIT_BYTES,
    Machine,
    SoftwareRelease,
    SoftwareVariant,
    fitting,
)
from gateway.trust.chain import Proof, newest_root
from gateway.trust.distrust import Distrust, Reason
from gateway.trust.paths import release_path
from gateway.trust.settings import DEFAULTS
from gateway.trust.targets import check_software

if TYPE_CHECKING:
    from gateway.domain.software_request import InstallRequest

Read = Callable[[str, int], bytes]
"""Function from a blob's SHA-256 and a size limit to its content. The caller handles its errors (StoreError)."""


@dataclass(frozen=True, slots=True)
class VerifiedSoftware:
    """Release that the role `software` signed, the variant for this device, and the newest root in the chain."""

    release: SoftwareRelease
    variant: SoftwareVariant
    root: bytes
    floor: str


def verify(
    wanted: InstallRequest, pinned: bytes, roots: Sequence[bytes], read: Read, *, machine: Machine, floor: str
) -> VerifiedSoftware:
    """Return the release. Raise Distrust.

    `roots`: those in the store, oldest first. The newest root that follows from `pinned` decides, so that keys that
    were rotated out no longer count. `floor`: the oldest version that may be installed ("": any).
    """
    root, content = newest_root(pinned, roots)
    where = f"the software release {wanted.target}"
    version = release_path(wanted.target).version
    key: tuple[int | str, ...] = (root.version, *wanted.evidence)
    proof = Proof(key, root, f"the evidence for {wanted.target}", _reader(read), DEFAULTS)
    target = proof.vouched(wanted.target)
    if target.sha256 != wanted.release:
        raise Distrust(Reason.SWAPPED, where, f"{target.sha256:.12} is signed, {wanted.release:.12} is asked for")
    release = check_software(read(wanted.release, SOFTWARE_LIMIT_BYTES), target)
    if floor and version_order(version) < version_order(floor):
        raise Distrust(Reason.BELOW_FLOOR, where, f"{floor} and newer may be installed")
    try:
        variant = fitting(release, machine)
    except ValueError as error:
        raise Distrust(Reason.WRONG_HARDWARE, where, str(error)) from None
    return VerifiedSoftware(release, variant, content, max(floor, release.floor, key=version_order))


def _reader(read: Read) -> Callable[[str], bytes]:
    return lambda digest: read(digest, DEFAULTS.metadata_limit_bytes)
