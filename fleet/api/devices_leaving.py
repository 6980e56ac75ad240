"""`DELETE /v1/devices/…`: what is taken off a device, and devices that leave the fleet."""

from __future__ import annotations

from litestar import delete

from fleet.access import Action, Identity
from fleet.api.conditions import STATE
from fleet.api.devices import SHOWN, check_device
from fleet.api.fields import NameInPath, ReasonInQuery
from fleet.api.identity import ACTION, Call, actor, control_of
from fleet.api.scope import caller_of, known_device
from fleet.control import leaving
from fleet.control.leaving import Motive, Permit
from fleet.database.devices import Device
from fleet.database.engine import Connection


@delete(
    "/v1/devices/{device:str}/slots/{slot:str}",
    opt={ACTION: Action.DEVICES_WITHDRAW, STATE: SHOWN},
    sync_to_thread=True,
    summary="Take a model off a device",
)
def withdraw_slot(request: Call, device: NameInPath, slot: NameInPath, because: ReasonInQuery = "") -> None:
    """Its next assignment orders the removal, and the device carries that out when its policy lets it.
    404 where nothing is assigned there; 409 while a rollout that is not over has the device in that slot."""
    identity, control = caller_of(request), control_of(request)
    motive = Motive(actor(identity), because, control.clock())
    leaving.withdraw(control.rollouts, device, slot, motive, permit=_permit(request, identity, device))


@delete(
    "/v1/devices/{device:str}",
    opt={ACTION: Action.DEVICES_REMOVE, STATE: SHOWN},
    sync_to_thread=True,
    summary="Take a device out of the fleet",
)
def remove_device(request: Call, device: NameInPath, because: ReasonInQuery = "") -> None:
    """What is known of it goes; its certificates stay revoked, and facts of rollouts and the audit log are kept. The
    name may be enrolled anew. 409 unless it is revoked or was never enrolled, and while a rollout that is not over has
    it."""
    identity, control = caller_of(request), control_of(request)
    motive = Motive(actor(identity), because, control.clock())
    leaving.remove(control.rollouts, device, motive, permit=_permit(request, identity, device))
    control.revocations.refresh(motive.now)


def _permit(request: Call, identity: Identity, device: str) -> Permit:
    def permit(connection: Connection) -> Device:
        found = known_device(request, connection, identity, device)
        check_device(request, connection, found)
        return found

    return permit


HANDLERS = (withdraw_slot, remove_device)
