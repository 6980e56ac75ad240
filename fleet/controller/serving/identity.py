"""Identity of the device: its certificate on this connection, or in the header of a trusted proxy."""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import datetime

from cryptography import x509

from fleet.controller.authority.certificate import DeviceCertificate, check_holds, verified
from fleet.controller.problems import ProblemError
from fleet.controller.serving.asgi import (
    Application,
    Receive,
    RequestPeer,
    Scope,
    Send,
    bearer,
    header_values,
    without_headers,
)
from fleet.controller.serving.proxies import ForwardedError, Proxies, forwarded_address, forwarded_certificate
from fleet.controller.serving.settings import ProxySettings
from gateway.common.domain.errors import Fault, RequestError

VERIFIED_LIMIT = 16_384
"""Verified certificates that are cached: one takes about 1 KiB to cache and 0.2 ms to verify."""


class Recognition:
    """Verifier of certificates. `revoked` returns the revoked serials (hex) at the time of the call.

    `token_name`: returns the name of a valid API token, "" for any other text, without asking the database.
    """

    def __init__(
        self,
        trusted: Sequence[x509.Certificate],
        revoked: Callable[[], Collection[str]],
        now: Callable[[], datetime],
        token_name: Callable[[str], str] = lambda _text: "",
    ) -> None:
        self._trusted, self._revoked, self._now, self.token_name = tuple(trusted), revoked, now, token_name
        self._known: OrderedDict[bytes, DeviceCertificate] = OrderedDict()

    def device(self, certificate_der: bytes) -> DeviceCertificate:
        """Verify a certificate. Raise RequestError UNAUTHENTICATED: not of this CA, expired, revoked."""
        now, digest = self._now(), hashlib.sha256(certificate_der).digest()
        known = self._known.get(digest)
        if known is None:
            try:
                certificate = x509.load_der_x509_certificate(certificate_der)
            except ValueError as error:
                problem = f"the client certificate cannot be read ({error!s:.200}); enrol the device again"
                raise RequestError(Fault.UNAUTHENTICATED, problem) from None
            known = verified(certificate, self._trusted, now)
            self._known[digest] = known
            if len(self._known) > VERIFIED_LIMIT:
                self._known.popitem(last=False)
        check_holds(known, self._revoked(), now)
        return known


class PeerMiddleware:
    """ASGI middleware that sets `scope["state"]["peer"]`. `counts` counts ignored headers of untrusted senders."""

    def __init__(
        self,
        app: Application,
        recognition: Recognition,
        proxies: Proxies,
        settings: ProxySettings,
        counts: Counter[str],
    ) -> None:
        self._app, self._recognition, self._proxies = app, recognition, proxies
        self._settings, self._counts = settings, counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Identify the peer. Raise ProblemError 400 for unreadable headers of a trusted proxy."""
        state = scope.setdefault("state", {})
        peer = self._peer(scope, str((scope.get("client") or ("",))[0]), state.get("client_certificate"))
        if token := bearer("".join(header_values(scope, "authorization")[:1])):
            peer = replace(peer, token=self._recognition.token_name(token))
        state["peer"] = peer
        await self._app(scope, receive, send)

    def _peer(self, scope: Scope, address: str, token: bytes | None) -> RequestPeer:
        values = header_values(scope, self._settings.certificate_header)
        hops = header_values(scope, self._settings.address_header)
        without_headers(scope, (self._settings.certificate_header, self._settings.address_header))
        if token is None and self._proxies.trusts(address):
            return self._forwarded(values, hops, address)
        if values:
            self._counts["certificate_header_ignored"] += 1
        if hops:
            self._counts["address_header_ignored"] += 1
        return self._recognised(token, address)

    def _forwarded(self, values: Sequence[str], hops: Sequence[str], address: str) -> RequestPeer:
        try:
            certificate = forwarded_certificate(values, self._settings.certificate_form)
        except ForwardedError as error:
            self._counts["certificate_header_unreadable"] += 1
            header = self._settings.certificate_header
            problem = f"the proxy's header {header} cannot be used: {error}; see [serve.proxy]"
            raise ProblemError(400, problem) from None
        return self._recognised(certificate, forwarded_address(hops, self._proxies) or address, proxied=True)

    def _recognised(self, token: bytes | None, address: str, *, proxied: bool = False) -> RequestPeer:
        if token is None:
            return RequestPeer(address, proxied=proxied)
        try:
            return RequestPeer(address, self._recognition.device(token), proxied)
        except RequestError as error:
            self._counts["certificate_refused"] += 1
            return RequestPeer(address, None, proxied, error)
