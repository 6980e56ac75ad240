"""Who calls over REST."""

from __future__ import annotations

from gateway.domain.access import Tokens
from gateway.frontends.peer import Peer
from gateway.wire.asgi import Scope

OPEN_PATHS = frozenset({"/v2/health/live", "/v2/health/ready"})
"""Asked by supervisors that hold no token; never refused for load, or a busy device would look dead."""


def caller_of(scope: Scope, tokens: Tokens | None) -> str:
    """Token, else client certificate, else peer uid, else address (contracts.md). UNAUTHENTICATED without a token."""
    if tokens is not None:
        return tokens.caller(_header(scope, b"authorization"))
    peer: Peer = scope.get("state", {}).get("peer", Peer())
    if peer.name:
        return peer.name
    client = scope.get("client")
    return str(client[0]) if client else ""


def _header(scope: Scope, name: bytes) -> str | None:
    found = next((value for key, value in scope["headers"] if key == name), None)
    return None if found is None else found.decode("latin-1")
