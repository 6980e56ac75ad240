"""Who asks, and whether that one may: asked by every route before it does anything."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

from litestar import Request
from litestar.connection import ASGIConnection
from litestar.handlers.base import BaseRouteHandler

from fleet.access import Action, DeviceCaller, Identity, may
from fleet.control.control import Control
from fleet.database import tokens
from fleet.database.tokens import ApiToken
from fleet.serving.asgi import Scope, name_caller, peer_of
from gateway.domain.access import BEARER
from gateway.domain.errors import Fault, RequestError

Call = Request[Any, Any, Any]
Guarded = ASGIConnection[Any, Any, Any, Any]
ACTION = "action"
"""A route says under this key of its `opt` what it does."""


def control_of(request: Call) -> Control:
    """What the routes work with."""
    control: Control = request.app.state.control
    return control


def named(connection: Guarded, handler: BaseRouteHandler) -> None:
    """Litestar's guard, before anything of a request is read: somebody says who asks. Raises RequestError
    UNAUTHENTICATED."""
    anybody = connection.headers.get("authorization") or peer_of(cast("Scope", connection.scope)).device
    if ACTION in handler.opt and not anybody:
        raise _nobody()


def identify(request: Call) -> Identity:
    """By an API token, else by the certificate. Raises RequestError UNAUTHENTICATED, AwayError."""
    device = peer_of(cast("Scope", request.scope)).device
    if device and not request.headers.get("authorization"):
        return DeviceCaller(device)
    return known_token(request).caller


def known_token(request: Call) -> ApiToken:
    """Return the API token of the caller. Raises RequestError UNAUTHENTICATED, AwayError."""
    text, control = bearer_of(request), control_of(request)
    if not text:
        raise _nobody()
    with control.database.glance() as connection:
        known = tokens.identify(connection, text, control.clock())
    if known is None:
        problem = "this token is unknown, revoked or expired; an admin makes another: edge-fleet tokens create"
        raise RequestError(Fault.UNAUTHENTICATED, problem)
    name_caller(cast("Scope", request.scope), known.name)
    return known


def bearer_of(request: Call) -> str:
    """Return the text of the API token, "" where none is shown."""
    said: str = request.headers.get("authorization", "")
    return said[len(BEARER) :].strip() if said.lower().startswith(BEARER) else ""


def _nobody() -> RequestError:
    problem = "a token is required: send 'Authorization: Bearer TOKEN'; devices show their certificate"
    return RequestError(Fault.UNAUTHENTICATED, problem)


def allow(
    request: Call, tags: Collection[str] | None = None, *, device: str = "", identity: Identity | None = None
) -> Identity:
    """The caller, where it may do what this route does (`opt["action"]`) to a device that bears `tags`; see
    `fleet.access.may`. `identity`: where it is known already.

    Raises RequestError UNAUTHENTICATED, DENIED.
    """
    identity = identity or identify(request)
    answer = may(identity, action_of(request), tags, device=device)
    if not answer:
        raise RequestError(Fault.DENIED, answer.reason)
    return identity


def allow_self(request: Call) -> str:
    """For a device's own routes: the serial of the certificate by which it asks. Raises as `allow`."""
    certificate = peer_of(cast("Scope", request.scope)).certificate
    if certificate is not None:
        allow(request, device=certificate.device, identity=DeviceCaller(certificate.device))
        return certificate.serial
    identify(request)
    raise RequestError(Fault.DENIED, f"{action_of(request)} is for devices, by their certificate")


def actor(identity: Identity) -> str:
    """How the audit log names who asked."""
    return f"device:{identity.device}" if isinstance(identity, DeviceCaller) else identity.name


def action_of(request: Call) -> Action:
    """What this route does."""
    action: Action = request.route_handler.opt[ACTION]
    return action
