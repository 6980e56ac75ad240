"""Authentication and authorisation of REST's requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.common.domain.errors import RequestError
from gateway.common.domain.rights import NOTHING, Needs, Rights, check_model
from gateway.common.wire.asgi import Scope
from gateway.serving.frontends.authentication import Authentication
from gateway.serving.frontends.http.admission import Admitted
from gateway.serving.frontends.http.browsers import check_host, header
from gateway.serving.frontends.peer import Peer

if TYPE_CHECKING:
    from litestar.connection import ASGIConnection
    from litestar.handlers.base import BaseRouteHandler

OPEN_PATHS = frozenset({"/v2/health/live", "/v2/health/ready"})
"""Paths for supervisors without a token; they are never refused for load, or a busy device would seem dead."""


def admit(scope: Scope, authentication: Authentication, names: tuple[str, ...]) -> Admitted:
    """Return the caller and keep its rights in the scope's state: by token, client certificate, uid or address.

    Raises RequestError UNAUTHENTICATED or THROTTLED. Raises DENIED if a caller without a token names another host than
    `names`, over TCP without TLS.
    """
    state = scope.setdefault("state", {})
    peer = peer_of_scope(scope)
    caller = authentication.admit(peer, header(scope, b"authorization"))
    if not (caller.by_token or peer.uid is not None or scope.get("scheme") == "https"):
        try:
            check_host(header(scope, b"host"), names)
        except RequestError:
            authentication.count("host")
            raise
    state["rights"] = caller.rights
    return Admitted(caller.name, peer.share_of(caller), peer.local)


def peer_of_scope(scope: Scope) -> Peer:
    """Return the peer of a request's connection."""
    peer: Peer = scope.get("state", {}).get("peer", Peer())
    client = scope.get("client")
    return peer if peer.name or not client else Peer(address=str(client[0]))


def check_rights(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Check every endpoint before its body is read: the scopes of its `needs`, and the model of its path.

    Raises RequestError DENIED. Raises KeyError for an endpoint without `needs`: a defect, answered 500.
    """
    if connection.scope.get("method") == "OPTIONS":  # Litestar adds these; they list methods only
        return
    state: Any = connection.scope["state"]
    caller, rights = state.get("caller", ""), rights_of(state)
    needs: Needs = handler.opt["needs"]
    authentication: Authentication = connection.app.state.ports.authentication
    authentication.check(caller, rights, needs)
    if model := connection.path_params.get("model", ""):
        check_model(caller, rights, model)


def rights_of(state: Any) -> Rights:
    """Return the rights that `admit` kept; none for the open paths."""
    rights: Rights = state.get("rights", NOTHING)
    return rights
