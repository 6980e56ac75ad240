"""Who is at the other end, as far as connection and trusted proxies tell."""

from __future__ import annotations

from dataclasses import dataclass

from fleet.authority.certificate import DeviceCertificate
from gateway.domain.addresses import address_group
from gateway.domain.errors import RequestError


@dataclass(frozen=True, slots=True)
class Peer:
    """`address` is "" behind a UNIX socket; `certificate` was verified and holds; `proxied`: a trusted proxy says so.

    `refusal`: a certificate was shown that does not hold; `rates` refuses the request, once it is counted.
    """

    address: str = ""
    certificate: DeviceCertificate | None = None
    proxied: bool = False
    refusal: RequestError | None = None

    @property
    def device(self) -> str:
        """The device that asks, "" where it is none."""
        return self.certificate.device if self.certificate else ""

    @property
    def caller(self) -> str:
        """By what is counted what one caller may have: a device, or an address (IPv6: its /64)."""
        return f"device {self.device}" if self.device else address_group(self.address)
