"""Peer of a connection, as the connection and trusted proxies identify it."""

from __future__ import annotations

from dataclasses import dataclass

from fleet.controller.authority.certificate import DeviceCertificate
from gateway.common.domain.addresses import address_group
from gateway.common.domain.errors import RequestError


@dataclass(frozen=True, slots=True)
class RequestPeer:
    """Peer of one request.

    `address` is "" for a UNIX socket. `certificate` was verified and is valid; `proxied`: a trusted proxy sent it.
    `refusal`: the certificate that was presented is not valid; `rates` counts the request, then refuses it.
    `token`: name of the API token, if it was valid when tokens were read last; the routes check it again.
    """

    address: str = ""
    certificate: DeviceCertificate | None = None
    proxied: bool = False
    refusal: RequestError | None = None
    token: str = ""

    @property
    def device(self) -> str:
        """Return the name of the device, or "" if the peer is none."""
        return self.certificate.device if self.certificate else ""

    @property
    def caller(self) -> str:
        """Return the key by which limits count the caller: a device, a token, or an address (IPv6: its /64)."""
        if self.device:
            return f"device {self.device}"
        return f"token {self.token}" if self.token else address_group(self.address)
