"""What each device is to run, by slot. The director signs assignments from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy import Connection

from fleet.database.engine import adding
from fleet.database.rows import bounded, chunks
from fleet.database.settings import DatabaseSettings
from fleet.database.tables import desired, desired_revisions


@dataclass(frozen=True, slots=True)
class Desired:
    """`rollout`: because of which ("": an operator's own doing). `digest`, `size_bytes`: of the release document."""

    device: str
    slot: str
    target: str
    digest: str
    size_bytes: int
    rollout: str
    at: datetime


@dataclass(frozen=True, slots=True)
class DesiredState:
    """Of one device. `revision` grows with every change; 0: nothing was ever desired."""

    revision: int
    slots: tuple[Desired, ...]


def put(connection: Connection, wanted: Iterable[Desired], settings: DatabaseSettings) -> None:
    """Set slots of devices, all or none. What they run already counts as a change too; ask first.

    Raises ConflictError for a device that is unknown.
    """
    rows = bounded(wanted, settings.facts_limit_rows, "changes of what devices are to run")
    if not rows:
        return
    _revise(connection, {row.device for row in rows})
    add = adding(connection, desired)
    changed = {name: add.excluded[name] for name in ("target", "digest", "size_bytes", "rollout", "at")}
    statement = add.on_conflict_do_update(index_elements=[desired.c.device, desired.c.slot], set_=changed)
    connection.execute(statement, [{name: getattr(row, name) for name in Desired.__slots__} for row in rows])


def remove(connection: Connection, device: str, slot: str) -> bool:
    """The slot is to be empty; whether it was not."""
    _revise(connection, {device})
    mine = sa.delete(desired).where(desired.c.device == device, desired.c.slot == slot)
    return connection.execute(mine).rowcount > 0


def of_device(connection: Connection, device: str) -> DesiredState:
    """The revision is read first: a change that comes between leaves it too low, and so is signed once more."""
    mine = sa.select(desired_revisions.c.revision).where(desired_revisions.c.device == device)
    revision = connection.execute(mine).scalar_one_or_none() or 0
    slots = sa.select(desired).where(desired.c.device == device).order_by(desired.c.slot)
    return DesiredState(revision, tuple(Desired(*row) for row in connection.execute(slots)))


def of_devices(connection: Connection, devices: Sequence[str], slot: str) -> dict[str, Desired]:
    """What these devices are to run in one slot, by device; those without are left out."""
    found: dict[str, Desired] = {}
    for ids in chunks(devices):
        mine = sa.select(desired).where(desired.c.slot == slot, desired.c.device.in_(ids))
        found |= {row.device: Desired(*row) for row in connection.execute(mine)}
    return found


def _revise(connection: Connection, devices: set[str]) -> None:
    """First, and in one order everywhere: whoever changes the same devices waits here, and not in a ring."""
    add = adding(connection, desired_revisions).values(device=sa.bindparam("named"), revision=1)
    more = {"revision": desired_revisions.c.revision + 1}
    statement = add.on_conflict_do_update(index_elements=[desired_revisions.c.device], set_=more)
    connection.execute(statement, [{"named": device} for device in sorted(devices)])
