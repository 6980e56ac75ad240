"""Membership of a rollout: the query matched against what is known of devices."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from fleet.controller.rollouts.facts import Joined, Left
from fleet.controller.rollouts.query import QueriedDevice, matches
from fleet.controller.rollouts.query_parser import parse
from fleet.controller.rollouts.spec import Spec
from fleet.controller.rollouts.state import ENDED, NO_WAVE, DeviceState, Member, RolloutState, stratum_of

NO_MATCH = "the query does not match it any more"
CLAIMED = "another rollout has this slot of it now"


def membership(
    spec: Spec, state: RolloutState, devices: Iterable[QueriedDevice], claimed: AbstractSet[str] = frozenset()
) -> tuple[Joined | Left, ...]:
    """Return the changes of membership among `devices`, in their order.

    `devices` are the whole fleet, or only those with new facts. A device that has no offer yet leaves when the query
    ceases to match. Afterwards it stays, because the rollout changed what it runs. `claimed`: devices to which another
    rollout has offered something for the same slot. The caller records `Left` for devices that are suspended, or were
    removed from the fleet.
    """
    if state.status in ENDED:
        return ()
    found = (_change(spec, state, device, device.id in claimed) for device in devices)
    return tuple(change for change in found if change is not None)


def _change(spec: Spec, state: RolloutState, device: QueriedDevice, claimed: bool) -> Joined | Left | None:
    member = state.members.get(device.id)
    begun = member is not None and member.state is not DeviceState.PENDING
    if begun and not (member and member.belongs):
        return None  # it had an offer and left: this rollout no longer decides what it runs
    if claimed or not (begun or matches(parse(spec.query), device)):
        return Left(device.id, CLAIMED if claimed else NO_MATCH) if member and member.belongs else None
    if member is None and state.wave != NO_WAVE and not spec.dynamic:
        return None
    return None if member and _as_known(member, device) else Joined(device.id, device.accelerators, device.zone)


def _as_known(member: Member, device: QueriedDevice) -> bool:
    known = (member.stratum, member.zone) == (stratum_of(device.accelerators), device.zone)
    return member.present and (known or member.state is not DeviceState.PENDING)
