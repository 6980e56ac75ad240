"""Authentication and authorisation of callers: every route checks both before it does anything."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

from litestar import Request
from litestar.connection import ASGIConnection
from litestar.handlers.base import BaseRouteHandler

from fleet.controller.access import RULES, Action, DeviceCaller, Identity, Reach, may, may_at_all
from fleet.controller.control.control import Control
from fleet.controller.database import tokens
from fleet.controller.database.tokens import ApiToken
from fleet.controller.serving.asgi import Scope, bearer, name_caller, peer_of
from gateway.common.domain.errors import Fault, RequestError

Call = Request[Any, Any, Any]
Guarded = ASGIConnection[Any, Any, Any, Any]
ACTION = "action"
"""Key in a route's `opt`: the action that it performs."""
_KNOWN = "known_token"
"""Key in a request's state: its API token, once that is read."""


def control_of(request: Guarded) -> Control:
    """Return the context of the routes."""
    control: Control = request.app.state.control
    return control


def named(connection: Guarded, handler: BaseRouteHandler) -> None:
    """Refuse a caller that may not perform the route's action, before the body is read; a guard of litestar.

    Raise RequestError UNAUTHENTICATED, DENIED, AwayError.
    """
    action: Action | None = handler.opt.get(ACTION)
    certificate = peer_of(cast("Scope", connection.scope)).certificate
    if action is None or (certificate and RULES[action].reach is Reach.SELF):
        return  # `allow_self` checks devices
    answer = may_at_all(identify(connection), action)
    if not answer:
        raise RequestError(Fault.DENIED, answer.reason)


def identify(request: Guarded) -> Identity:
    """Return the caller: by an API token, else by the certificate. Raise RequestError UNAUTHENTICATED, AwayError."""
    device = peer_of(cast("Scope", request.scope)).device
    if device and not request.headers.get("authorization"):
        return DeviceCaller(device)
    return known_token(request).caller


def known_token(request: Guarded) -> ApiToken:
    """Return the API token of the caller, which is read once. Raise RequestError UNAUTHENTICATED, AwayError."""
    if isinstance(read := request.scope["state"].get(_KNOWN), ApiToken):
        return read
    text, control = bearer_of(request), control_of(request)
    if not text:
        problem = "a token is required: send 'Authorization: Bearer TOKEN'; devices send their certificate"
        raise RequestError(Fault.UNAUTHENTICATED, problem)
    with control.database.glance() as connection:
        known = tokens.identify(connection, text, control.clock())
    if known is None:
        problem = "this token is unknown, revoked or expired; an admin creates another: edge-fleet tokens create"
        raise RequestError(Fault.UNAUTHENTICATED, problem)
    name_caller(cast("Scope", request.scope), known.name)
    request.scope["state"][_KNOWN] = known
    return known


def bearer_of(request: Guarded) -> str:
    """Return the text of the API token, or "" if the request has none."""
    return bearer(request.headers.get("authorization", ""))


def allow(
    request: Call, tags: Collection[str] | None = None, *, device: str = "", identity: Identity | None = None
) -> Identity:
    """Return the caller, if it may perform the route's action on a device with `tags` (`fleet.controller.access.may`).

    `identity`: the caller, if it is known already. Raise RequestError UNAUTHENTICATED, DENIED.
    """
    identity = identity or identify(request)
    answer = may(identity, action_of(request), tags, device=device)
    if not answer:
        raise RequestError(Fault.DENIED, answer.reason)
    return identity


def allow_self(request: Call) -> str:
    """Return the serial of the caller's certificate, on devices' own routes. Raise what `allow` raises."""
    certificate = peer_of(cast("Scope", request.scope)).certificate
    if certificate is not None:
        allow(request, device=certificate.device, identity=DeviceCaller(certificate.device))
        return certificate.serial
    identify(request)
    raise RequestError(Fault.DENIED, f"{action_of(request)} is for devices, by their certificate")


def actor(identity: Identity) -> str:
    """Return the caller's name in the audit log."""
    return f"device:{identity.device}" if isinstance(identity, DeviceCaller) else identity.name


def action_of(request: Call) -> Action:
    """Return the route's action."""
    action: Action = request.route_handler.opt[ACTION]
    return action
