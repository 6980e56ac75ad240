"""Verification of a requested version, from the installer's own root of trust and the bytes of the store.

Requests come from the agent's user, which is not trusted: it chooses what to pass, and cannot forge it. Expiry is not
checked, as in `gateway.common.trust.chain`: the agent checked it at a trusted time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.routing import version_order
from gateway.common.domain.software_release import (
    SOFTWARE_LIMIT_BYTES,
    Machine,
    SoftwareRelease,
    SoftwareVariant,
    fitting,
)
from gateway.common.trust.chain import Proof, newest_root, trusted_root
from gateway.common.trust.distrust import Distrust, Reason
from gateway.common.trust.paths import release_path
from gateway.common.trust.settings import DEFAULTS
from gateway.common.trust.targets import check_software

if TYPE_CHECKING:
    from gateway.device.domain.software_request import InstallRequest
    from gateway.device.installer.record import InstallRecords

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
    evidence = f"the evidence for {wanted.target}"
    proof = Proof(key, root, evidence, lambda digest: read(digest, DEFAULTS.metadata_limit_bytes), DEFAULTS)
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


def pin(records: InstallRecords, content: bytes, *, replace: bool = False) -> int:
    """Keep `content` as the root of trust if there is none yet. Return the version that is trusted then.

    Root makes the pin once; later only signed rotations replace it. Raise Distrust if it is not signed by itself,
    ConfigurationError if another root is trusted that neither precedes nor follows it, StoreError.
    """
    version = trusted_root(content, (), 1).version
    known = records.root(DEFAULTS.metadata_limit_bytes)
    if known is None or replace:
        records.keep_root(content)
        return version
    if known == content or _follows(known, content) or _follows(content, known):
        return newest_root(known, ())[0].version
    problem = "another root is trusted already; edge-software trust --replace ROOT.json trusts this one"
    raise ConfigurationError(problem, file=str(records.folder))


def _follows(known: bytes, content: bytes) -> bool:
    try:
        return newest_root(known, [content])[1] == content
    except Distrust:
        return False
