"""Desired state: the release that each device is to run, by slot. The director signs assignments from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy import Connection

from fleet.controller.database.engine import adding
from fleet.controller.database.rows import bounded, chunks
from fleet.controller.database.settings import DatabaseSettings
from fleet.controller.database.tables import desired, desired_before, desired_revisions, removals, rollouts
from fleet.controller.database.tables import devices as known


@dataclass(frozen=True, slots=True)
class Desired:
    """Desired release of one slot of a device.

    `rollout`: its cause ("": an operator). `digest`, `size_bytes`: of the release document. `attempt`: number of this
    offer in the assignment (0: none). `signed`: version of the first assignment that carries it (0: none yet).
    """

    device: str
    slot: str
    target: str
    digest: str
    size_bytes: int
    rollout: str
    at: datetime
    attempt: int = 0
    signed: int = 0


@dataclass(frozen=True, slots=True)
class PreviousRelease:
    """Release that a device was to run in the slot of `rollout` before that rollout offered it something.

    `target` "": nothing. `because`: the rollout that had set it, at its `attempt`.
    """

    rollout: str
    device: str
    target: str = ""
    digest: str = ""
    size_bytes: int = 0
    because: str = ""
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class DesiredState:
    """Desired state of one device.

    `revision` grows with every change; 0: nothing was ever desired. `removed`: slots that the device is ordered to
    empty. A slot that is in neither keeps what it runs.
    """

    revision: int
    slots: tuple[Desired, ...]
    removed: frozenset[str] = frozenset()


def lock(connection: Connection, devices: Iterable[str]) -> None:
    """Lock the desired state of these devices until the transaction ends.

    Call it first, for all devices at once, if a change depends on what is read.
    """
    _revise(connection, devices, 0)


def put(connection: Connection, wanted: Iterable[Desired], settings: DatabaseSettings) -> None:
    """Set slots of devices, all or none.

    Setting a slot to what it already holds counts as a change too; check before. Raise ConflictError for an unknown
    device.
    """
    rows = bounded(wanted, settings.facts_limit_rows, "changes of what devices are to run")
    if not rows:
        return
    _revise(connection, (row.device for row in rows))
    add = adding(connection, desired)
    changed = {name: add.excluded[name] for name in Desired.__slots__ if name not in {"device", "slot"}}
    statement = add.on_conflict_do_update(index_elements=[desired.c.device, desired.c.slot], set_=changed)
    connection.execute(statement, [{name: getattr(row, name) for name in Desired.__slots__} for row in rows])
    for slot in sorted({row.slot for row in rows}):
        for ids in chunks(row.device for row in rows if row.slot == slot):
            connection.execute(sa.delete(removals).where(removals.c.device.in_(ids), removals.c.slot == slot))


def mark_signed(connection: Connection, carried: Iterable[Desired], version: int) -> None:
    """Record that this version is the first that carries these. One that was replaced since is not marked."""
    names = ("device", "slot", "target", "rollout", "attempt")
    for row in carried:
        same = [getattr(desired.c, name) == getattr(row, name) for name in names]
        connection.execute(sa.update(desired).where(*same, desired.c.signed == 0).values(signed=version))


def remove(connection: Connection, devices: Sequence[str], slot: str) -> int:
    """Order these devices to empty the slot. Return how many were to run something in it."""
    _revise(connection, devices)
    gone = 0
    for ids in chunks(devices):
        mine = sa.delete(desired).where(desired.c.device.in_(ids), desired.c.slot == slot)
        gone += connection.execute(mine).rowcount
        ordered = [{"device": device, "slot": slot} for device in ids]
        connection.execute(adding(connection, removals).on_conflict_do_nothing(), ordered)
    return gone


def clear(connection: Connection, device: str) -> None:
    """Delete the desired state of a device, and what it was before."""
    _revise(connection, {device})
    for table in (desired, desired_before, removals):
        connection.execute(sa.delete(table).where(table.c.device == device))


def remember(connection: Connection, before: Iterable[PreviousRelease], settings: DatabaseSettings) -> None:
    """Store what devices had, in the transaction that offers them something else. It replaces older records."""
    rows = bounded(before, settings.facts_limit_rows, "changes of what devices are to run")
    if not rows:
        return
    add = adding(connection, desired_before)
    changed = {name: add.excluded[name] for name in ("target", "digest", "size_bytes", "because", "attempt")}
    keys = [desired_before.c.rollout, desired_before.c.device]
    statement = add.on_conflict_do_update(index_elements=keys, set_=changed)
    connection.execute(statement, [{name: getattr(row, name) for name in PreviousRelease.__slots__} for row in rows])


def recall(connection: Connection, had: Iterable[Desired]) -> None:
    """Store what a device had, for rollouts that recorded its slot as empty."""
    for row in had:
        same = sa.select(rollouts.c.id).where(rollouts.c.slot == row.slot)
        empty = sa.and_(desired_before.c.device == row.device, desired_before.c.target == "")
        change = sa.update(desired_before).where(empty, desired_before.c.rollout.in_(same))
        fields = {name: getattr(row, name) for name in ("target", "digest", "size_bytes", "attempt")}
        connection.execute(change.values(because=row.rollout, **fields))


def before(connection: Connection, rollout: str, devices: Sequence[str]) -> dict[str, PreviousRelease]:
    """Return what these devices had before the rollout's offers, by device. Devices without an offer are left out."""
    found: dict[str, PreviousRelease] = {}
    for ids in chunks(devices):
        mine = sa.select(desired_before).where(desired_before.c.rollout == rollout, desired_before.c.device.in_(ids))
        found |= {row.device: PreviousRelease(*row) for row in connection.execute(mine)}
    return found


def of_device(connection: Connection, device: str) -> DesiredState:
    """Return the desired state of a device.

    The revision is read first: a change in between leaves it too low, which only causes one more signature.
    """
    revision = connection.execute(_REVISION, {"of": device}).scalar_one_or_none() or 0
    slots = tuple(Desired(*row) for row in connection.execute(_SLOTS, {"of": device}))
    return DesiredState(revision, slots, frozenset(connection.execute(_REMOVED, {"of": device}).scalars()))


def of_devices(connection: Connection, devices: Sequence[str], slot: str) -> dict[str, Desired]:
    """Return what these devices are to run in one slot, by device. Devices without are left out."""
    found: dict[str, Desired] = {}
    for ids in chunks(devices):
        mine = sa.select(desired).where(desired.c.slot == slot, desired.c.device.in_(ids))
        found |= {row.device: Desired(*row) for row in connection.execute(mine)}
    return found


def targets(connection: Connection) -> set[tuple[str, str]]:
    """Return path and digest of every release that any device is to run."""
    return {
        (row.target, row.digest) for row in connection.execute(sa.select(desired.c.target, desired.c.digest).distinct())
    }


def held(connection: Connection, slot: str, rollouts: Sequence[str]) -> frozenset[str]:
    """Return the devices that are to run something in the slot because of one of these rollouts."""
    found: set[str] = set()
    for ids in chunks(rollouts):
        mine = sa.select(desired.c.device).where(desired.c.slot == slot, desired.c.rollout.in_(ids))
        found.update(connection.execute(mine).scalars())
    return frozenset(found)


def serves(connection: Connection, slot: str, rollout: str) -> bool:
    """Return whether a device that is not revoked is to run something in the slot because of this rollout."""
    mine = sa.select(desired.c.device).join(known, known.c.id == desired.c.device)
    mine = mine.where(desired.c.slot == slot, desired.c.rollout == rollout, known.c.revoked.is_(None))
    return connection.execute(mine.limit(1)).first() is not None


def elsewhere(connection: Connection, target: str, slot: str) -> frozenset[str]:
    """Return the devices that are to run the target in another slot."""
    mine = sa.select(desired.c.device).where(desired.c.target == target, desired.c.slot != slot)
    return frozenset(connection.execute(mine).scalars())


def _revise(connection: Connection, named: Iterable[str], by: int = 1) -> None:
    """Increase the revision of devices by `by`; with 0 only lock them.

    It comes first, and in one order everywhere, so that transactions on the same devices wait here and do not deadlock.
    """
    plain = "C" if connection.dialect.name == "postgresql" else "BINARY"  # the order of Python's strings
    more = {"revision": desired_revisions.c.revision + by}
    for ids in chunks(sorted(set(named))):
        theirs = sa.select(known.c.id, sa.literal(by)).where(known.c.id.in_(ids))
        rows = theirs.order_by(sa.collate(known.c.id, plain))
        add = adding(connection, desired_revisions).from_select(["device", "revision"], rows)
        connection.execute(add.on_conflict_do_update(index_elements=[desired_revisions.c.device], set_=more))


_OF = sa.bindparam("of", type_=desired.c.device.type)
_REVISION = sa.select(desired_revisions.c.revision).where(desired_revisions.c.device == _OF)
_SLOTS = sa.select(desired).where(desired.c.device == _OF).order_by(desired.c.slot)
_REMOVED = sa.select(removals.c.slot).where(removals.c.device == _OF)
"""Statements built once: the director uses them for every assignment."""
