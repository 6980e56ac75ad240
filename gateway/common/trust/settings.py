"""Bounds of signed documents, each with its unit."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.common.domain.settings import VAST


@dataclass(frozen=True, slots=True)
class TrustSettings:
    """`[trust]`: bounds of what a stolen key, or a server on the way, could otherwise stretch."""

    metadata_limit_bytes: int = 4_194_304  # 4 MiB: largest signed document of the repository that is read
    assignment_limit_bytes: int = 262_144  # largest assignment that is read
    values_limit: int = 250_000  # commas and brackets in it: a value of two bytes takes a hundred once it is parsed
    nesting_limit: int = 32  # how deep a signed document may nest
    version_limit: int = field(default=2**53 - 1, metadata=VAST)  # what every JSON reader and SQLite hold exactly
    slots_limit: int = 256  # targets in one assignment
    roots_limit: int = 1024  # roots between the pinned one and the one that signs the evidence
    evidence_limit: int = 8  # signed documents between a root and the target
    delegations_limit: int = 32  # roles that are searched for one target, as many as tuf.ngclient searches
    lifetime_limit_d: float = 35.0  # longest time between issue and expiry of an assignment
    offline_validity_d: float = 30.0  # time after expiry for which documents of online keys are accepted from a medium
    attested_validity_h: float = (
        24.0  # how long an attested time is continued within a boot; then a nonce is sent again
    )
    poll_low_s: int = 1  # shortest pause that an assignment may ask for
    poll_high_s: int = 604_800  # 7 d: longest pause; beyond, a stolen director key could silence a device for years


DEFAULTS = TrustSettings()
