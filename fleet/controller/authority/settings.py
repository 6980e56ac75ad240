"""Settings of the device CA: validity of certificates, and the size limit of requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gateway.common.domain.settings import check_above_zero

VALIDITY_LIMIT_D = 36_500.0
"""A hundred years: X.509 has no time after the year 9999."""


@dataclass(frozen=True, slots=True)
class AuthoritySettings:
    """Table `[authority]`: the CA that signs devices."""

    validity_d: float = 90.0  # a device's certificate; devices renew it at two thirds
    authority_validity_d: float = 7300.0  # the CA's own if `serve` creates it: 20 years
    server_validity_d: float = 90.0  # a certificate for this server's own port, if the CA signs it
    backdate_s: ClassVar[float] = 300.0  # largest difference between the clocks of two replicas
    request_limit_bytes: ClassVar[int] = 16_384  # largest certificate request that is read

    def __post_init__(self) -> None:
        """Check the values. Raise ConfigurationError."""
        days = ("validity_d", "authority_validity_d", "server_validity_d")
        check_above_zero(self, "authority", *days, high=VALIDITY_LIMIT_D)
