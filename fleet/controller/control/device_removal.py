"""Removal of a model from a device, and of a device from the fleet. Refused while a rollout depends on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from fleet.controller.audit import Deed
from fleet.controller.control.rollouts import Rollouts
from fleet.controller.control.rollouts_record import LIVE, live_rollouts, state_name
from fleet.controller.database import audit, certificates, desired, enrolment, removal, sweep, telemetry
from fleet.controller.database.devices import Device
from fleet.controller.database.engine import Connection
from fleet.controller.database.errors import AbsentError, ConflictError, RefusedError
from gateway.common.domain.assignment import RESERVED_SLOTS

Permit = Callable[[Connection], Device]
"""Check that raises if the caller may not do this to a device; otherwise returns the device."""


@dataclass(frozen=True, slots=True)
class RemovalReason:
    """Caller, reason and time of a removal, for the audit log."""

    by: str
    because: str
    now: datetime


def withdraw(rolling: Rollouts, device: str, slot: str, motive: RemovalReason, *, permit: Permit) -> None:
    """Order the device to empty the slot, by its next assignment.

    Raise RefusedError for a reserved slot, AbsentError if nothing is assigned there, ConflictError that names the
    rollout, AwayError, and what `permit` raises.
    """
    if slot in RESERVED_SLOTS:
        problem = f"devices do not empty {slot}, which always holds {RESERVED_SLOTS[slot]}"
        raise RefusedError(f"{problem}; roll out another release (for settings it may be an empty one)")
    with rolling.database.read() as connection:  # reads most of the facts without a lock
        permit(connection)
        _check_free(connection, rolling, device, slot)
    with rolling.database.write() as connection:
        _check_free(connection, rolling, device, slot, lock=True)
        desired.lock(connection, [device])
        permit(connection)  # by the desired state as it is now
        _check_free(connection, rolling, device, slot)  # a rollout may have begun, and offered, in the meantime
        before = desired.of_devices(connection, [device], slot).get(device)
        if before is None:
            raise AbsentError(f"nothing is assigned to {device!r:.140} in the slot {slot!r:.140}")
        desired.remove(connection, [device], slot)
        details = {"slot": slot, "because": motive.because, "target": before.target, "digest": before.digest}
        audit.append(connection, Deed(motive.by, "devices.withdraw", device, details), motive.now)
    rolling.hints.note([device])


def remove(rolling: Rollouts, device: str, motive: RemovalReason, *, permit: Permit) -> None:
    """Remove a device from the fleet; what rollouts and the audit log say of it stays.

    Its telemetry is deleted first, some in each transaction: if the process is killed in between, the device still
    exists and can be removed again. Raise ConflictError if the device is not revoked, or one that names the rollout;
    AbsentError, AwayError, and what `permit` raises.
    """
    with rolling.database.read() as connection:
        removal.check(permit(connection))
        _check_free(connection, rolling, device)
    while not _removed(rolling, device, motive, permit):
        pass


def _removed(rolling: Rollouts, device: str, motive: RemovalReason, permit: Permit) -> bool:
    """Delete in one transaction some telemetry or, if none is left, everything else. Return whether all is done."""
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
    """Raise ConflictError if a rollout that is not over has the device as a member.

    `slot` "": in any slot. `lock`: no rollout can take the device before the transaction ends.
    """
    settings = rolling.database.settings
    for stored in live_rollouts(connection, settings):
        if slot not in {"", stored.slot}:
            continue
        known = rolling.states.read(connection, stored.id, settings, lock=lock)
        rolling.states.keep(known)
        member = known.state.members.get(device)
        served = slot and known.state.served(device)  # a standing rollout does not offer it anything again
        if member and member.belongs and not served and known.stored.state in LIVE:
            problem = f"{device!r:.140} is in the rollout {stored.id}, which is {state_name(known.stored.state)}"
            raise ConflictError(f"{problem}; {_remedy(slot)}")


def _remedy(slot: str) -> str:
    if slot:
        return "wait until it is over, or abort it"
    return "the scheduler removes a revoked device from it within seconds; then repeat the request"
