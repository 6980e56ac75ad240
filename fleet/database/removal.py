"""Devices that are taken out of the fleet. The row of one stays, empty and marked, and nobody is shown it: by it hold
what must outlive the device. That is the version of its assignments, which never falls for a name; its certificates,
revoked, until they expire.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy import Connection

from fleet.database import desired
from fleet.database.devices import Device, State, empty, get
from fleet.database.errors import ConflictError
from fleet.database.rows import chunks
from fleet.database.tables import devices

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
}


def check(device: Device) -> None:
    """Raises ConflictError for a device that is let in, or was and may come again."""
    if device.state is State.ENROLLED or (device.state is State.PRE_REGISTERED and device.enrolled):
        raise _let_in(device)


def remove(connection: Connection, device: str, now: datetime) -> None:
    """It is there no more, and its name and serial are free. See to telemetry, tokens and certificates, too. Raises
    AbsentError, ConflictError as `check` does."""
    desired.clear(connection, device)
    never = sa.and_(devices.c.state == State.PRE_REGISTERED, devices.c.enrolled.is_(None))
    out = sa.or_(devices.c.state == State.REVOKED, never)
    change = sa.update(devices).where(devices.c.id == device, devices.c.removed.is_(None), out)
    if connection.execute(change.values(state=State.REVOKED, removed=now, **EMPTY)).rowcount != 1:
        raise _let_in(get(connection, device))
    empty(connection, device)


def gone(connection: Connection, named: Iterable[str]) -> frozenset[str]:
    """Those of these devices that were removed, and did not come back."""
    found: set[str] = set()
    for ids in chunks(named):
        wanted = sa.select(devices.c.id).where(devices.c.id.in_(ids), devices.c.removed.is_not(None))
        found |= set(connection.execute(wanted).scalars())
    return frozenset(found)


def _let_in(device: Device) -> ConflictError:
    problem = f"the device {device.id!r:.140} is {device.state}, and only what is revoked or never enrolled is removed"
    return ConflictError(f"{problem}; revoke it first")
