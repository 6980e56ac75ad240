"""Bounds of signed documents, each with its unit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class TrustSettings:
    """`[trust]`: bounds of what a stolen key, or a server on the way, could otherwise stretch."""

    lifetime_limit_d: float = 35.0  # longest time between issue and expiry of an assignment
    offline_validity_d: float = 30.0  # time after expiry for which documents of online keys are accepted from a medium
    attested_validity_h: float = 24.0  # how long an attested time is continued within a boot; then a nonce is sent

    metadata_limit_bytes: ClassVar[int] = 4_194_304  # 4 MiB: largest signed document of the repository that is read
    assignment_limit_bytes: ClassVar[int] = 262_144  # largest assignment that is read
    values_limit: ClassVar[int] = 250_000  # commas and brackets in it: two bytes of a value take a hundred in memory
    nesting_limit: ClassVar[int] = 32  # how deep a signed document may nest
    version_limit: ClassVar[int] = 2**53 - 1  # what every JSON reader and SQLite hold exactly
    slots_limit: ClassVar[int] = 256  # targets in one assignment
    roots_limit: ClassVar[int] = 1024  # roots between the pinned one and the one that signs the evidence
    evidence_limit: ClassVar[int] = 8  # signed documents between a root and the target
    delegations_limit: ClassVar[int] = 32  # roles that are searched for one target, as many as tuf.ngclient searches
    poll_low_s: ClassVar[int] = 1  # shortest pause that an assignment may ask for
    poll_high_s: ClassVar[int] = 604_800  # 7 d: longest; beyond, a stolen director key could silence a device for years


DEFAULTS = TrustSettings()
