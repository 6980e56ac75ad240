"""Settings of publication: validity of signatures and size limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from gateway.common.domain.settings import VAST, check_above_zero

TIMESTAMP_LIMIT_D = 14.0
EXPIRY_LIMIT_D = 36_500.0
"""A hundred years: times after the year 9999 cannot be written."""


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """Settings of publication. Validity starts when a document is made; for offline keys, when it is drafted."""

    url: str = ""  # URL of `public` for devices; `bootstrap` writes it for them
    root_expiry_d: float = 365.0  # document of the roles and their keys
    targets_expiry_d: float = 180.0  # document of the owners
    owner_expiry_d: float = 180.0  # an owner's releases, profiles and policies
    snapshot_expiry_d: float = 7.0  # document of the versions that belong together
    timestamp_expiry_d: float = 1.0  # greatest age of news: up to 14 for fleets that are rarely connected
    assignment_expiry_h: float = 24.0  # validity of an assignment
    release_file_limit_bytes: int = field(default=17_179_869_184, metadata=VAST)  # largest artifact of a release
    expiry_notice_share: ClassVar[float] = 0.25  # `status` marks documents with less than this share of their life left
    document_limit_bytes: ClassVar[int] = 4_194_304  # largest signed document, draft or key file that is read
    check_timeout_s: ClassVar[float] = 1800.0  # for `edge-gateway models check` of one release

    def __post_init__(self) -> None:
        """Check the values. Raise ConfigurationError."""
        offline = ("root_expiry_d", "targets_expiry_d", "owner_expiry_d", "snapshot_expiry_d")
        check_above_zero(self, "", *offline, high=EXPIRY_LIMIT_D)
        check_above_zero(self, "", "assignment_expiry_h", high=24 * EXPIRY_LIMIT_D)
        check_above_zero(self, "", "timestamp_expiry_d", high=TIMESTAMP_LIMIT_D)
