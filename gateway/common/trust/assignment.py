"""Verification of the assignment that the director signed for this device."""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from gateway.common.domain.assignment import Assignment
from gateway.common.trust.assignment_form import read_assignment
from gateway.common.trust.distrust import Distrust, Reason
from gateway.common.trust.reading import read_metadata
from gateway.common.trust.settings import DEFAULTS, TrustSettings
from gateway.common.trust.signatures import signers

if TYPE_CHECKING:
    from tuf.api.metadata import Metadata, Targets

DIRECTOR = "director"
"""Role that signs assignments, delegated by the top-level targets role."""


def verify_assignment(
    content: bytes,
    director: Targets,
    *,
    device: str,
    now: datetime,
    last_version: int = 0,
    last_digest: str = "",
    offline_validity_d: float | None = None,
    settings: TrustSettings = DEFAULTS,
) -> Assignment:
    """Return the assignment in `content`, or raise Distrust.

    Its targets are not looked up here: see `targets.check_target`.

    `director` is the verified top-level targets role. `last_version` is the floor of assignments under the director's
    present keys (`floors.role_floor`), `last_digest` the SHA-256 of the bytes that were accepted last. The same version
    is accepted again only as the same bytes. A document that is signed again, with another time, nonce or expiry, needs
    a version of its own. Two documents of one version mean that two signers use this key; then the device's assignment
    would depend on which document came first.

    `now` is the reference time (`clock.reference_time`), or the least possible time (`clock.least_time`) if a nonce was
    sent because no time is trusted. The caller checks that nonce. `offline_validity_d`: days after its expiry for which
    the document is still accepted (from a medium); None: it is not accepted.

    A time of issue in the future is no reason to refuse: this device's clock may be wrong.
    """
    where = f"the assignment for {device}"
    metadata = read_metadata(content, _targets(), where, settings.assignment_limit_bytes, settings)
    assignment_signers(metadata, director, device)
    assignment = read_assignment(metadata.signed, where, settings)
    if assignment.device != device:
        raise Distrust(Reason.OTHER_DEVICE, where, f"it is addressed to {assignment.device}")
    _check_version(content, assignment, last_version, last_digest, where)
    _check_time(assignment, now, timedelta(days=offline_validity_d or 0.0), where, settings)
    return assignment


def assignment_signers(metadata: Metadata[Targets], director: Targets, device: str) -> frozenset[str]:
    """Return ids of the director's keys that validly signed.

    Raise Distrust (WRONG_KEY) below the role's threshold.
    """
    where = f"the assignment for {device}"
    found = signers(director, DIRECTOR, metadata, where, Reason.WRONG_KEY)
    delegated = director.delegations.roles if director.delegations else None
    if not delegated or not delegated[DIRECTOR].is_delegated_path(f"assignments/{device}.json"):
        raise Distrust(Reason.WRONG_KEY, where, "the director's role may not sign for this device")
    return found


def read_signers(content: bytes, director: Targets, device: str, settings: TrustSettings = DEFAULTS) -> frozenset[str]:
    """Return the result of `assignment_signers` for bytes.

    Floors of these keys rise when an assignment is accepted (`floors.raised_floors`).
    """
    where = f"the assignment for {device}"
    metadata = read_metadata(content, _targets(), where, settings.assignment_limit_bytes, settings)
    return assignment_signers(metadata, director, device)


def _targets() -> type[Targets]:
    from tuf.api.metadata import Targets

    return Targets


def _check_version(content: bytes, assignment: Assignment, last_version: int, last_digest: str, where: str) -> None:
    version = assignment.version
    if version < last_version:
        raise Distrust(Reason.REPLAYED, where, f"its version {version} is below {last_version}, accepted before")
    if version == last_version and hashlib.sha256(content).hexdigest() != last_digest:
        raise Distrust(Reason.AMBIGUOUS, where, f"another document of version {version} was accepted before")


def _check_time(a: Assignment, now: datetime, grace: timedelta, where: str, settings: TrustSettings) -> None:
    if not a.issued < a.expires:
        raise Distrust(Reason.DAMAGED, where, f"it expires at {a.expires:%FT%TZ}, before it was issued")
    if a.expires - a.issued > timedelta(days=settings.lifetime_limit_d):
        times = f"it would be valid from {a.issued:%FT%TZ} to {a.expires:%FT%TZ}"
        raise Distrust(Reason.WRONG_TIME, where, f"{times}, longer than {settings.lifetime_limit_d:g} days")
    if now - grace >= a.expires:
        raise Distrust(
            Reason.EXPIRED, where, f"it expired at {a.expires:%FT%TZ}; the time here is {now:%FT%TZ} (EG-808)"
        )
