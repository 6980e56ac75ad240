"""Devices: identity, inventory, labels, and what they run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy import Connection

from fleet.controller.database.device_filter import Filter, chosen, tagged_ids
from fleet.controller.database.engine import adding
from fleet.controller.database.errors import AbsentError, ConflictError, RefusedError
from fleet.controller.database.rows import Json, bounded, chunks, page_limit
from fleet.controller.database.settings import DatabaseSettings
from fleet.controller.database.tables import (
    device_running,
    device_seen,
    device_tags,
    devices,
    diagnostics,
    events,
    telemetry_sources,
)
from gateway.common.domain.python310 import StrEnum

TAGS_LIMIT = 64
ACCELERATORS_LIMIT = 64
SLOTS_LIMIT = 64
CLOCKS_APART = timedelta(hours=1)
"""More than replicas' clocks differ. A time that is so much later was written by a clock that was ahead."""


class EnrolmentState(StrEnum):
    """State of a device.

    PRE_REGISTERED: may enrol. SUSPENDED: enrolled, and refused until an operator resumes it; its certificate stays
    valid. REVOKED: its certificates are revoked; it may enrol again once an operator readmits it.
    """

    PRE_REGISTERED = "pre-registered"
    ENROLLED = "enrolled"
    SUSPENDED = "suspended"
    REVOKED = "revoked"


Operation = Literal["enrol", "suspend", "resume", "revoke", "readmit"]
TRANSITIONS: Mapping[Operation, tuple[frozenset[EnrolmentState], EnrolmentState]] = {
    "enrol": (frozenset({EnrolmentState.PRE_REGISTERED, EnrolmentState.ENROLLED}), EnrolmentState.ENROLLED),
    "suspend": (frozenset({EnrolmentState.ENROLLED}), EnrolmentState.SUSPENDED),
    "resume": (frozenset({EnrolmentState.SUSPENDED}), EnrolmentState.ENROLLED),
    "revoke": (frozenset(EnrolmentState) - {EnrolmentState.REVOKED}, EnrolmentState.REVOKED),
    "readmit": (frozenset({EnrolmentState.REVOKED}), EnrolmentState.PRE_REGISTERED),
}
"""Permitted states before, and the state after, each operation. A device begins as PRE_REGISTERED or by "enrol"."""
STATE = sa.type_coerce(
    sa.case((devices.c.suspended.is_not(None), EnrolmentState.SUSPENDED.value), else_=devices.c.state),
    devices.c.state.type,
)
"""State of a device, in statements."""


@dataclass(frozen=True, slots=True)
class Running:
    """Release that a device reports to run in a slot. `digest`: of the signed release document."""

    slot: str
    target: str
    digest: str
    variant: str
    accelerator: str
    state: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Device:
    """A device. `seen`: time of its last poll, exact to `seen_every_s`. `serial` "": none is known.

    `machine`: the one that reported last. `used_twice`: when two machines last used its identity.
    """

    id: str
    state: EnrolmentState
    registered: datetime
    serial: str = ""
    profile: str = ""
    accelerators: tuple[str, ...] = ()
    tags: frozenset[str] = frozenset()
    site: str = ""
    health: str = ""
    health_details: Json = field(default_factory=dict)
    enrolled: datetime | None = None
    revoked: datetime | None = None
    revoked_because: str = ""
    suspended: datetime | None = None
    suspended_because: str = ""
    seen: datetime | None = None
    running: tuple[Running, ...] = ()
    machine: Json = field(default_factory=dict)
    used_twice: datetime | None = None


@dataclass(frozen=True, slots=True)
class DeviceSelection:
    """Selection of devices for a list: devices that match every field that is not empty.

    `scope`: with one of these tags. `matching`: those that pass this filter.
    """

    state: EnrolmentState | None = None
    profile: str = ""
    site: str = ""
    serial: str = ""
    target: str = ""
    tags: frozenset[str] = frozenset()
    scope: frozenset[str] = frozenset()
    matching: Filter | None = field(default=None, compare=False)


def register(connection: Connection, device: str, serial: str, now: datetime) -> None:
    """Register a device with this serial, to be enrolled later. Raise ConflictError if id or serial is taken."""
    if not device:
        raise RefusedError("a device needs an id")
    statement = adding(connection, devices).values(**_new(device, EnrolmentState.PRE_REGISTERED, serial, now))
    added = connection.execute(statement.on_conflict_do_nothing()).rowcount == 1
    if not (added or _again(connection, device, serial, now)):
        raise ConflictError(f"the device {device!r:.140} or the serial {serial!r:.140} is registered already")


def enrol(connection: Connection, device: str, now: datetime) -> None:
    """Record that a device was enrolled: new, pre-registered, or again after it lost its key.

    The caller has checked its token or serial. Raise ConflictError for a revoked or suspended device, RefusedError
    without an id.
    """
    if not device:
        raise RefusedError("a device needs an id")
    _again(connection, device, "", now)
    statement = adding(connection, devices).values(**_new(device, EnrolmentState.ENROLLED, "", now), enrolled=now)
    changed = statement.on_conflict_do_update(
        index_elements=[devices.c.id],
        set_={"state": EnrolmentState.ENROLLED, "enrolled": now, "machine": {}, "used_twice": None},
        where=STATE.in_(TRANSITIONS["enrol"][0]),
    )
    if connection.execute(changed).rowcount != 1:
        state = get(connection, device).state
        word = "resume" if state is EnrolmentState.SUSPENDED else "readmit"
        raise ConflictError(f"the device {device!r:.140} is {state}; an operator may {word} it")


def change_state(connection: Connection, device: str, operation: Operation, because: str, now: datetime) -> bool:
    """Carry out an operation of `TRANSITIONS`. Return False if the device was suspended, or revoked, already.

    The caller revokes the certificates of a revoked device. Raise ConflictError in any other state, AbsentError.
    """
    before, after = TRANSITIONS[operation]
    is_suspended, is_revoked = after is EnrolmentState.SUSPENDED, after is EnrolmentState.REVOKED
    values = {"suspended": now if is_suspended else None, "suspended_because": because if is_suspended else ""}
    values |= {"revoked": now if is_revoked else None, "revoked_because": because if is_revoked else ""}
    values["state"] = EnrolmentState.ENROLLED if is_suspended else after
    change = sa.update(devices).where(devices.c.id == device, STATE.in_(before), _HERE)
    if connection.execute(change.values(**values)).rowcount == 1:
        return True
    found = get(connection, device)
    if found.state is not after or not (is_suspended or is_revoked):
        problem = f"the device {device!r:.140} is {found.state}"
        raise ConflictError(f"{problem}; {operation} needs one that is {' or '.join(sorted(before))}")
    return False


def lock(connection: Connection, device: str) -> None:
    """Lock the device until the transaction ends: it cannot be enrolled, revoked or removed.

    Call it before reading what decides on a certificate for the device.
    """
    mine = sa.select(devices.c.id).where(devices.c.id == device)
    connection.execute(mine.with_for_update(key_share=True))  # rows that only refer to the device do not wait


def label(connection: Connection, device: str, tags: Iterable[str], site: str) -> None:
    """Replace tags and site. Raise AbsentError, RefusedError for too many tags or an empty one."""
    wanted = sorted(set(bounded(tags, TAGS_LIMIT, "tags")))
    if "" in wanted:
        raise RefusedError("a tag has at least one character")
    _change(connection, device, site=site)
    connection.execute(sa.delete(device_tags).where(device_tags.c.device == device))
    if wanted:
        connection.execute(sa.insert(device_tags), [{"device": device, "tag": tag} for tag in wanted])


def describe(
    connection: Connection, device: str, *, profile: str, accelerators: Sequence[str], inventory: Json
) -> None:
    """Store a device's inventory, as `edge-gateway probe --json` prints it. Raise AbsentError."""
    kinds = bounded(accelerators, ACCELERATORS_LIMIT, "accelerators")
    _change(connection, device, profile=profile, accelerators=kinds, inventory=inventory)


def report(
    connection: Connection, device: str, running: Iterable[Running], health: str, details: Json | None = None
) -> None:
    """Replace what a device runs, in all of its slots, and its health. Raise AbsentError, RefusedError."""
    slots = bounded(running, SLOTS_LIMIT, "slots")
    _change(connection, device, health=health, health_details=details or {})
    connection.execute(sa.delete(device_running).where(device_running.c.device == device))
    rows = [{"device": device, **_fields(entry)} for entry in slots]
    if rows:
        connection.execute(sa.insert(device_running), rows)


def report_slots(connection: Connection, device: str, running: Iterable[Running], gone: Iterable[str]) -> None:
    """Update the slots `running` of a device and delete the slots `gone`.

    Raise ConflictError for an unknown device, RefusedError.
    """
    slots, over = bounded(running, SLOTS_LIMIT, "slots"), bounded(gone, SLOTS_LIMIT, "slots")
    mine = device_running.c.device == device
    if over:
        connection.execute(sa.delete(device_running).where(mine, device_running.c.slot.in_(over)))
    if slots:
        add = adding(connection, device_running)
        names = [name for name in Running.__slots__ if name != "slot"]
        changed = add.on_conflict_do_update(
            index_elements=[device_running.c.device, device_running.c.slot],
            set_={name: add.excluded[name] for name in names},
        )
        connection.execute(changed, [{"device": device, **_fields(entry)} for entry in slots])
    count = connection.execute(sa.select(sa.func.count()).select_from(device_running).where(mine)).scalar_one()
    if count > SLOTS_LIMIT:
        raise RefusedError(f"more than {SLOTS_LIMIT} slots of one device; a device has at most that many")


def report_health(connection: Connection, device: str, health: str, details: Json, profile: str = "") -> None:
    """Store a device's health. `profile` "": unchanged. Raise AbsentError."""
    _change(connection, device, health=health, health_details=details, **({"profile": profile} if profile else {}))


def machine(connection: Connection, device: str) -> dict[str, Any]:
    """Return what `report_machine` stored of a device; {} before the first report."""
    return dict(connection.execute(_MACHINE, {"its_id": device}).scalar_one_or_none() or {})


def report_machine(connection: Connection, device: str, machine: Json, used_twice: datetime | None) -> None:
    """Store the machine that uses a device's identity. `used_twice` None: unchanged. Raise AbsentError."""
    _change(connection, device, machine=machine, **({"used_twice": used_twice} if used_twice else {}))


def touch(connection: Connection, seen: Mapping[str, datetime]) -> None:
    """Write when devices were last seen (`fleet.controller.database.seen` says which).

    Unknown devices are ignored. No time goes back, unless so far that a clock must have been ahead: until the time was
    reached again, silence of the device would go unnoticed.
    """
    add = adding(connection, device_seen)
    known = sa.select(devices.c.id, sa.bindparam("at", type_=device_seen.c.seen.type)).where(
        devices.c.id == sa.bindparam("known", type_=devices.c.id.type), _HERE
    )
    later = add.from_select(["device", "seen"], known).on_conflict_do_update(
        index_elements=[device_seen.c.device],
        set_={"seen": add.excluded.seen},
        where=sa.or_(device_seen.c.seen < add.excluded.seen, _ahead_of(add.excluded.seen)),
    )
    if seen:  # in one order everywhere: two replicas that write the same devices do not deadlock
        connection.execute(later, [{"known": device, "at": at} for device, at in sorted(seen.items())])


def get(connection: Connection, device: str) -> Device:
    """Return one device. Raise AbsentError."""
    found = _read(connection, sa.select(*_SUMMARY).where(devices.c.id == device, _HERE))
    if not found:
        raise _absent(device)
    return found[0]


def by_serial(connection: Connection, serial: str) -> Device | None:
    """Return the device that was registered, or enrolled, with this serial, or None."""
    found = _read(connection, sa.select(*_SUMMARY).where(devices.c.serial == serial)) if serial else ()
    return found[0] if found else None


def inventory(connection: Connection, device: str) -> Json:
    """Return a device's inventory, which is large. Raise AbsentError."""
    mine = sa.select(devices.c.inventory).where(devices.c.id == device, _HERE)
    found = connection.execute(mine).scalar_one_or_none()
    if found is None:
        raise _absent(device)
    return dict(found)


def page(
    connection: Connection,
    wanted: DeviceSelection,
    settings: DatabaseSettings,
    *,
    after: str = "",
    limit_rows: int = 100,
) -> tuple[Device, ...]:
    """Return devices in the order of their ids, from the one that follows `after`."""
    statement = sa.select(*_SUMMARY).where(devices.c.id > after, *_conditions(wanted)).order_by(devices.c.id)
    return _read(connection, statement.limit(page_limit(limit_rows, settings.page_limit_rows)))


def counts(connection: Connection, wanted: DeviceSelection) -> dict[EnrolmentState, int]:
    """Return how many devices there are, by state."""
    statement = sa.select(STATE, sa.func.count()).where(*_conditions(wanted)).group_by(STATE)
    found = {EnrolmentState(state): int(count) for state, count in connection.execute(statement)}
    return {state: found.get(state, 0) for state in EnrolmentState}


def empty(connection: Connection, device: str) -> None:
    """Delete what is stored about a device, except its row.

    Its telemetry must be deleted before, because there may be much of it (`sweep.clear`).
    """
    for table in (device_tags, device_running, device_seen, diagnostics, events, telemetry_sources):
        connection.execute(sa.delete(table).where(table.c.device == device))


_HERE = devices.c.removed.is_(None)
_MACHINE = sa.select(devices.c.machine).where(devices.c.id == sa.bindparam("its_id", type_=devices.c.id.type))
_SUMMARY = [column for column in devices.c if column.name not in {"inventory", "removed"}]


def _again(connection: Connection, device: str, serial: str, now: datetime) -> bool:
    """Register a removed device again as if it were new. Return whether it was removed and the serial is free."""
    taken = sa.select(devices.c.id).where(devices.c.serial == serial).exists()
    mine = sa.update(devices).where(devices.c.id == device, devices.c.removed.is_not(None), ~taken)
    new = {"state": EnrolmentState.PRE_REGISTERED, "serial": serial or None, "registered": now, "removed": None}
    if connection.execute(mine.values(**new)).rowcount != 1:
        return False
    empty(connection, device)  # rows that concurrent transactions added when it was removed
    return True


def _ahead_of(seen: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
    plain = sa.BigInteger()
    apart_us = CLOCKS_APART // timedelta(microseconds=1)
    return sa.type_coerce(device_seen.c.seen, plain) - sa.type_coerce(seen, plain) > apart_us


def _new(device: str, state: EnrolmentState, serial: str, now: datetime) -> dict[str, Any]:
    empty = {"profile": "", "accelerators": [], "site": "", "inventory": {}, "health": "", "health_details": {}}
    return {"id": device, "state": state, "serial": serial or None, "registered": now, "revoked_because": "", **empty}


def _conditions(wanted: DeviceSelection) -> list[sa.ColumnElement[bool]]:
    exact = {"profile": wanted.profile, "site": wanted.site, "serial": wanted.serial}
    columns = [(STATE, wanted.state), *((devices.c[name], value) for name, value in exact.items())]
    found = [_HERE, *(column == value for column, value in columns if value)]
    found += [devices.c.id.in_(tagged_ids([tag])) for tag in sorted(wanted.tags)]
    found += chosen(devices.c.id, wanted.scope, None)
    if wanted.target:
        there = sa.select(device_running.c.device).where(device_running.c.target == wanted.target)
        found.append(devices.c.id.in_(there))
    return found if wanted.matching is None else [*found, wanted.matching]


def _read(connection: Connection, statement: sa.Select[Any]) -> tuple[Device, ...]:
    rows = connection.execute(statement).all()
    tags: dict[str, set[str]] = {row.id: set() for row in rows}
    running: dict[str, list[Running]] = {row.id: [] for row in rows}
    seen: dict[str, datetime] = {}
    for ids in chunks(tags):
        for device, tag in connection.execute(sa.select(device_tags).where(device_tags.c.device.in_(ids))):
            tags[device].add(tag)
        for entry in connection.execute(sa.select(device_running).where(device_running.c.device.in_(ids))):
            running[entry.device].append(Running(*entry[1:]))
        last = connection.execute(sa.select(device_seen).where(device_seen.c.device.in_(ids)))
        seen |= {row.device: row.seen for row in last}
    found = []
    for row in rows:
        state = EnrolmentState.SUSPENDED if row.suspended else EnrolmentState(row.state)
        fields = {"state": state, "serial": row.serial or "", "accelerators": tuple(row.accelerators)}
        slots = tuple(sorted(running[row.id], key=lambda entry: entry.slot))
        more = {"tags": frozenset(tags[row.id]), "running": slots, "seen": seen.get(row.id)}
        found.append(Device(**{**row._mapping, **fields, **more}))
    return tuple(found)


def _fields(entry: Running) -> dict[str, object]:
    return {name: getattr(entry, name) for name in Running.__slots__}


def _change(connection: Connection, device: str, **values: object) -> None:
    if connection.execute(sa.update(devices).where(devices.c.id == device, _HERE).values(**values)).rowcount == 0:
        raise _absent(device)


def _absent(device: str) -> AbsentError:
    return AbsentError(f"no device {device!r:.140} is known")
