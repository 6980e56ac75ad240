"""Removal of devices from the fleet.

The row of a removed device stays, empty and marked, and is not shown. It carries what must outlive the device: the
version of its assignments, which never falls for a name, and its certificates, revoked, until they expire.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy import Connection

from fleet.controller.database import desired
from fleet.controller.database.devices import Device, EnrolmentState, empty, get
from fleet.controller.database.errors import ConflictError
from fleet.controller.database.rows import chunks
from fleet.controller.database.tables import devices

EMPTY: dict[str, object] = {
    "serial": None,
    "profile": "",
    "accelerators": [],
    "site": "",
    "inventory": {},
    "health": "",
    "health_details": {},
    "enrolled": None,
    "revoked": None,
    "revoked_because": "",
    "machine": {},
    "used_twice": None,
}


def check(device: Device) -> None:
    """Raise ConflictError for a device that is not revoked, unless it was never enrolled."""
    if device.state is not EnrolmentState.REVOKED and device.enrolled:
        raise _let_in(device)


def remove(connection: Connection, device: str, now: datetime) -> None:
    """Remove a device; its name and serial are free then.

    The caller deletes telemetry and tokens, and revokes certificates. Raise AbsentError, ConflictError as `check` does.
    """
    desired.clear(connection, device)
    never = sa.and_(devices.c.state == EnrolmentState.PRE_REGISTERED, devices.c.enrolled.is_(None))
    out = sa.or_(devices.c.state == EnrolmentState.REVOKED, never)
    change = sa.update(devices).where(devices.c.id == device, devices.c.removed.is_(None), out)
    if connection.execute(change.values(state=EnrolmentState.REVOKED, removed=now, **EMPTY)).rowcount != 1:
        raise _let_in(get(connection, device))
    empty(connection, device)


def gone(connection: Connection, named: Iterable[str]) -> frozenset[str]:
    """Return those of these devices that were removed and did not come back."""
    found: set[str] = set()
    for ids in chunks(named):
        wanted = sa.select(devices.c.id).where(devices.c.id.in_(ids), devices.c.removed.is_not(None))
        found |= set(connection.execute(wanted).scalars())
    return frozenset(found)


def _let_in(device: Device) -> ConflictError:
    problem = f"the device {device.id!r:.140} is {device.state}, and only what is revoked or never enrolled is removed"
    return ConflictError(f"{problem}; revoke it first")
