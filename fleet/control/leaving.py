"""What an operator takes away: a model from a device, a device from the fleet. Refused while a rollout counts on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from fleet.audit import Deed
from fleet.control.rollouts import Rollouts
from fleet.control.rollouts_record import LIVE, live_rollouts, shown
from fleet.database import audit, certificates, desired, enrolment, removal, sweep, telemetry
from fleet.database.devices import Device
from fleet.database.engine import Connection
from fleet.database.errors import AbsentError, ConflictError

Permit = Callable[[Connection], Device]
"""The device, where the caller may do this to it; raises where not."""


@dataclass(frozen=True, slots=True)
class Motive:
    """Who wants it, why, and when: for the audit log."""

    by: str
    because: str
    now: datetime


def withdraw(rolling: Rollouts, device: str, slot: str, motive: Motive, *, permit: Permit) -> None:
    """Order the device to empty the slot, by its next assignment. Raises AbsentError where nothing is assigned there,
    ConflictError that names the rollout, AwayError, and what `permit` raises."""
    with rolling.database.read() as connection:  # most of the facts, while nobody waits
        permit(connection)
        _check_free(connection, rolling, device, slot)
    with rolling.database.write() as connection:
        _check_free(connection, rolling, device, slot, lock=True)
        desired.lock(connection, [device])
        permit(connection)  # by what is desired now
        _check_free(connection, rolling, device, slot)  # a rollout that began, and offered, meanwhile
        before = desired.of_devices(connection, [device], slot).get(device)
        if before is None:
            raise AbsentError(f"nothing is assigned to {device!r:.140} in the slot {slot!r:.140}")
        desired.remove(connection, [device], slot)
        details = {"slot": slot, "because": motive.because, "target": before.target, "digest": before.digest}
        audit.append(connection, Deed(motive.by, "devices.withdraw", device, details), motive.now)
    rolling.hints.note([device])


def remove(rolling: Rollouts, device: str, motive: Motive, *, permit: Permit) -> None:
    """The device is known no more; what rollouts and the audit log say of it stays. Its telemetry goes first, a
    little in each transaction: killed in between, the device is still there, and is removed again. Raises ConflictError
    where it is not revoked, or names the rollout; AbsentError, AwayError, and what `permit` raises."""
    with rolling.database.read() as connection:
        removal.check(permit(connection))
        _check_free(connection, rolling, device)
    while not _removed(rolling, device, motive, permit):
        pass


def _removed(rolling: Rollouts, device: str, motive: Motive, permit: Permit) -> bool:
    """In one transaction some telemetry, or all else where none is left."""
    with rolling.database.write() as connection:
        telemetry.hold(connection, device)
        removal.check(permit(connection))
        if sweep.clear(connection, device, rolling.database.settings.telemetry):
            return False
        _check_free(connection, rolling, device, lock=True)
        void = enrolment.void(connection, device)
        removal.remove(connection, device, motive.now)
        held = certificates.revoke_all(connection, device, motive.because, motive.now)
        details = {"because": motive.because, "certificates": held, "enrolments_void": void}
        audit.append(connection, Deed(motive.by, "devices.remove", device, details), motive.now)
    return True


def _check_free(connection: Connection, rolling: Rollouts, device: str, slot: str = "", *, lock: bool = False) -> None:
    """No rollout that is not over has the device as a member. `slot` "": in any slot; `lock`: none comes to have it
    before the transaction ends. Raises ConflictError."""
    settings = rolling.database.settings
    for stored in live_rollouts(connection, settings):
        if slot not in {"", stored.slot}:
            continue
        known = rolling.states.read(connection, stored.id, settings, lock=lock)
        rolling.states.keep(known)
        member = known.state.members.get(device)
        if member and member.present and known.stored.state in LIVE:
            problem = f"{device!r:.140} is in the rollout {stored.id}, which is {shown(known.stored.state)}"
            raise ConflictError(f"{problem}; {_remedy(slot)}")


def _remedy(slot: str) -> str:
    if slot:
        return "wait until it is over, or abort it"
    return "it lets go of a revoked device within seconds while a scheduler works; then ask again"
