"""`DELETE /v1/devices/…`: removal of models from devices, and of devices from the fleet."""

from __future__ import annotations

from litestar import delete

from fleet.controller.access import Action, Identity
from fleet.controller.api.conditions import STATE
from fleet.controller.api.devices import SHOWN, check_device
from fleet.controller.api.fields import NameInPath, ReasonInQuery
from fleet.controller.api.identity import ACTION, Call, actor, control_of
from fleet.controller.api.scope import caller_of, known_device
from fleet.controller.control import device_removal
from fleet.controller.control.device_removal import Permit, RemovalReason
from fleet.controller.database.devices import Device
from fleet.controller.database.engine import Connection


@delete(
    "/v1/devices/{device:str}/slots/{slot:str}",
    opt={ACTION: Action.DEVICES_WITHDRAW, STATE: SHOWN},
    sync_to_thread=True,
    summary="Remove a model from a device",
)
def withdraw_slot(request: Call, device: NameInPath, slot: NameInPath, because: ReasonInQuery = "") -> None:
    """Order the device to empty the slot, by its next assignment; it does so when its policy allows it.

    400 for a reserved slot, which is never empty; 404 if nothing is assigned there; 409 while a rollout that is not
    over has the device in that slot.
    """
    identity, control = caller_of(request), control_of(request)
    motive = RemovalReason(actor(identity), because, control.clock())
    device_removal.withdraw(control.rollouts, device, slot, motive, permit=_permit(request, identity, device))


@delete(
    "/v1/devices/{device:str}",
    opt={ACTION: Action.DEVICES_REMOVE, STATE: SHOWN},
    sync_to_thread=True,
    summary="Remove a device from the fleet",
)
def remove_device(request: Call, device: NameInPath, because: ReasonInQuery = "") -> None:
    """Remove a device from the fleet; its name may be enrolled again.

    What is stored about it is deleted. Its certificates stay revoked; facts of rollouts and the audit log are kept. 409
    unless it is revoked or was never enrolled, and while a rollout that is not over has it.
    """
    identity, control = caller_of(request), control_of(request)
    motive = RemovalReason(actor(identity), because, control.clock())
    device_removal.remove(control.rollouts, device, motive, permit=_permit(request, identity, device))
    control.revocations.refresh(motive.now)


def _permit(request: Call, identity: Identity, device: str) -> Permit:
    def permit(connection: Connection) -> Device:
        found = known_device(request, connection, identity, device)
        check_device(request, connection, found)
        return found

    return permit


HANDLERS = (withdraw_slot, remove_device)
