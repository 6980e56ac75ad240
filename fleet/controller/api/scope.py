"""Scopes: a request is checked by the caller's role first, then by the device's tags.

So a caller learns nothing of devices beyond its scope, not even whether they exist.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from fleet.controller.access import DeviceCaller, Identity, TokenCaller
from fleet.controller.api.identity import Call, allow, identify
from fleet.controller.database import devices
from fleet.controller.database.devices import Device
from fleet.controller.database.engine import Connection
from fleet.controller.database.errors import AbsentError
from gateway.common.domain.errors import Fault, RequestError


def caller_of(request: Call) -> Identity:
    """Return the caller, if its role may perform the action on any device.

    Call it before a transaction is opened, because it reads the database, too. Raise RequestError UNAUTHENTICATED,
    DENIED.
    """
    identity = identify(request)
    allow(request, scope_of(identity) or None, identity=identity)
    return identity


def scope_of(identity: Identity) -> frozenset[str]:
    """Return the tags of which a device must have one; empty: all devices."""
    return frozenset() if isinstance(identity, DeviceCaller) else identity.tags


def known_device(request: Call, connection: Connection, identity: Identity, name: str) -> Device:
    """Return the device, if it is within the caller's scope. Raise RequestError DENIED, AbsentError."""
    with unseen(request, identity):
        found = devices.get(connection, name)
    allow(request, found.tags, identity=identity)
    return found


@contextmanager
def unseen(request: Call, identity: Identity) -> Iterator[None]:
    """Raise RequestError DENIED instead of AbsentError for a caller with a scope.

    To such a caller an absent object looks like one beyond its scope.
    """
    try:
        yield
    except AbsentError:
        allow(request, frozenset(), identity=identity)
        raise


def allow_tags(request: Call, identity: Identity, tags: Collection[str]) -> None:
    """Check that the caller may give a device these tags: with a scope, one or more tags of it, and no others.

    Raise RequestError DENIED.
    """
    allow(request, tags, identity=identity)
    beyond = sorted(set(tags) - scope_of(identity)) if scope_of(identity) else []
    if beyond and isinstance(identity, TokenCaller):
        problem = f"{identity.name!r:.80} may give only its own tags, not {', '.join(beyond):.200}"
        raise RequestError(Fault.DENIED, problem)
