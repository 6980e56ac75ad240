"""How long signatures hold and how much is read at most."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.domain.errors import ConfigurationError
from gateway.domain.settings import VAST, check_above_zero

TIMESTAMP_LIMIT_D = 14.0
EXPIRY_LIMIT_D = 36_500.0
"""A hundred years: times beyond 9999 cannot be written."""


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """Expiries count from the moment a document is made; one that an offline key signs is made when it is drafted."""

    url: str = ""  # where devices find `public`; what `bootstrap` writes down for them
    root_expiry_d: float = 365.0  # the roles and their keys
    targets_expiry_d: float = 180.0  # who the owners are
    owner_expiry_d: float = 180.0  # an owner's releases; profiles and policies likewise
    snapshot_expiry_d: float = 7.0  # which versions belong together
    timestamp_expiry_d: float = 1.0  # how old news may be: up to 14 for fleets that are rarely connected
    assignment_expiry_h: float = 24.0  # how long a device goes by an assignment
    expiry_notice_share: float = 0.25  # `status` marks what has less than this share of its time left
    document_limit_bytes: int = 4_194_304  # largest signed document, draft or key file that is read
    release_file_limit_bytes: int = field(default=17_179_869_184, metadata=VAST)  # largest artifact of a release
    check_timeout_s: float = 1800.0  # for `edge-gateway models check` of one release

    def __post_init__(self) -> None:
        """Raises ConfigurationError."""
        offline = ("root_expiry_d", "targets_expiry_d", "owner_expiry_d", "snapshot_expiry_d")
        check_above_zero(self, "", *offline, high=EXPIRY_LIMIT_D)
        check_above_zero(self, "", "assignment_expiry_h", high=24 * EXPIRY_LIMIT_D)
        if not 0 < self.timestamp_expiry_d <= TIMESTAMP_LIMIT_D:
            problem = f"must be above 0 and at most {TIMESTAMP_LIMIT_D:g} days, not {self.timestamp_expiry_d:g}"
            raise ConfigurationError(problem, key="timestamp_expiry_d")
