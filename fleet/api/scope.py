"""Who asks about which devices: the role first, then the device's tags, so that nobody learns of what is beyond its
scope, not even whether it is there."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from fleet.access import Caller, DeviceCaller, Identity
from fleet.api.identity import Call, allow, identify
from fleet.database import devices
from fleet.database.devices import Device
from fleet.database.engine import Connection
from fleet.database.errors import AbsentError
from gateway.domain.errors import Fault, RequestError


def caller_of(request: Call) -> Identity:
    """Whoever asks, where its role may do this to a device at all. Ask before a transaction is opened: this reads the
    database, too. Raises RequestError UNAUTHENTICATED, DENIED."""
    identity = identify(request)
    allow(request, scope_of(identity) or None, identity=identity)
    return identity


def scope_of(identity: Identity) -> frozenset[str]:
    """Tags, one of which a device must bear; empty: all devices."""
    return frozenset() if isinstance(identity, DeviceCaller) else identity.tags


def known_device(request: Call, connection: Connection, identity: Identity, name: str) -> Device:
    """The device, where it is within the caller's scope. Raises RequestError DENIED, AbsentError."""
    with unseen(request, identity):
        found = devices.get(connection, name)
    allow(request, found.tags, identity=identity)
    return found


@contextmanager
def unseen(request: Call, identity: Identity) -> Iterator[None]:
    """To a caller with a scope what is not there looks as what is beyond it: RequestError DENIED for AbsentError."""
    try:
        yield
    except AbsentError:
        allow(request, frozenset(), identity=identity)
        raise


def allow_tags(request: Call, identity: Identity, tags: Collection[str]) -> None:
    """Whether the caller may give a device these tags: with a scope, only tags of it, one at least. Raises
    RequestError DENIED."""
    allow(request, tags, identity=identity)
    beyond = sorted(set(tags) - scope_of(identity)) if scope_of(identity) else []
    if beyond and isinstance(identity, Caller):
        problem = f"{identity.name!r:.80} may give only its own tags, not {', '.join(beyond):.200}"
        raise RequestError(Fault.DENIED, problem)
