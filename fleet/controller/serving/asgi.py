"""ASGI types, and the values that this package's middleware passes on in a scope."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from fleet.controller.authority.certificate import DeviceCertificate
from fleet.controller.problems import plain_problem
from gateway.common.domain.access import BEARER
from gateway.common.domain.addresses import address_group
from gateway.common.domain.errors import RequestError
from gateway.common.domain.problem import Problem
from gateway.common.wire import asgi
from gateway.common.wire.asgi import Application, Headers, Message, Receive, Scope, Send


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


__all__ = (
    "ZERO_COPY", "Application", "Message", "Receive", "Scope", "Send", "bearer", "header_values", "logged_path",
    "name_caller", "peer_of", "plain", "request_id", "respond", "without_headers",
)  # fmt: skip

PATH_LIMIT_CHARACTERS = 200
ZERO_COPY = "http.response.zerocopysend"
"""ASGI extension for sendfile: {"file", "offset", "count", "more_body"}."""


def peer_of(scope: Scope) -> RequestPeer:
    """Return the peer that `identity` has set."""
    peer: RequestPeer = scope["state"]["peer"]
    return peer


def request_id(scope: Scope) -> str:
    """Return the request's id in the log."""
    return str(scope.get("state", {}).get("request_id", ""))


def logged_path(scope: Scope) -> str:
    """Return the request's path for the log: percent-encoded, so it contains no line break, and bounded."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw[:PATH_LIMIT_CHARACTERS].decode("ascii", "replace")


def name_caller(scope: Scope, name: str) -> None:
    """Set the caller's name in the access log, for callers with an API token. Never pass the token itself."""
    scope["state"]["caller"] = name


def bearer(authorization: str) -> str:
    """Return the API token in a value of the header Authorization, or "" if it has none."""
    return authorization[len(BEARER) :].strip() if authorization.lower().startswith(BEARER) else ""


def header_values(scope: Scope, name: str) -> list[str]:
    """Return all values of a header, in order."""
    wanted = name.lower().encode()
    return [value.decode("latin-1") for key, value in scope["headers"] if key == wanted]


def without_headers(scope: Scope, names: Iterable[str]) -> None:
    """Remove headers, so that inner layers do not see them."""
    gone = {name.lower().encode() for name in names}
    scope["headers"] = [(key, value) for key, value in scope["headers"] if key not in gone]


async def respond(problem: Problem, scope: Scope, send: Send) -> None:
    """Send an error response."""
    instance = request_id(scope)
    await asgi.respond(replace(problem, instance=f"urn:uuid:{instance}" if instance else ""), send)


def plain(status: int, detail: str, headers: Headers = ()) -> asgi.AsgiRefusal:
    """Return an error response for a connection without a request id."""
    return plain_problem(status, detail, headers)
