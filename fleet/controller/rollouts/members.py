"""Membership of a rollout: the query matched against what is known of devices."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from fleet.controller.rollouts.facts import Joined, Left
from fleet.controller.rollouts.query import QueriedDevice, matches
from fleet.controller.rollouts.query_parser import parse
from fleet.controller.rollouts.spec import Spec
from fleet.controller.rollouts.state import ENDED, NO_WAVE, DeviceState, Member, RolloutState, stratum_of

NO_MATCH = "the query does not match it any more"
CLAIMED = "another rollout has this slot of it now"
PASSED_OVER = "it runs a newer version, or a later rollout is for it"


@dataclass(frozen=True, slots=True)
class Newcomers:
    """Devices in later rounds of a standing rollout: those `passed_over`, and `new` ones under an earlier name."""

    passed_over: AbstractSet[str] = frozenset()
    new: AbstractSet[str] = frozenset()


NO_NEWCOMERS = Newcomers()


def membership(
    spec: Spec,
    state: RolloutState,
    devices: Iterable[QueriedDevice],
    claimed: AbstractSet[str] = frozenset(),
    newcomers: Newcomers = NO_NEWCOMERS,
) -> tuple[Joined | Left, ...]:
    """Return the changes of membership among `devices`, in their order.

    `devices` are the whole fleet, or only those with new facts. A device that has no offer yet leaves when the query
    ceases to match. Afterwards it stays, because the rollout changed what it runs. `claimed`: devices to which another
    rollout has offered something for the same slot. The caller records `Left` for devices that are suspended, or were
    removed from the fleet.
    """
    if state.status in ENDED:
        return ()
    found = []
    for device in devices:
        reason = CLAIMED if device.id in claimed else PASSED_OVER if device.id in newcomers.passed_over else ""
        found.append(_change(spec, state, device, reason, new=device.id in newcomers.new))
    return tuple(change for change in found if change is not None)


def _change(spec: Spec, state: RolloutState, device: QueriedDevice, reason: str, *, new: bool) -> Joined | Left | None:
    """Return the change of one device. `reason`: the rollout cannot have it, and why."""
    member = state.members.get(device.id)
    begun = member is not None and member.state is not DeviceState.PENDING and not new
    served = begun and state.served(device.id)
    if (begun and not (member and member.belongs)) or (served and member and member.present):
        return None  # it had an offer and left, or it has the release: this rollout no longer decides what it runs
    reason = "" if served else reason or ("" if begun or matches(parse(spec.query), device) else NO_MATCH)
    if reason:
        leaves = member and member.belongs and not (begun and reason == PASSED_OVER)
        return Left(device.id, reason) if leaves else None
    if member is None and state.wave != NO_WAVE and not spec.dynamic:
        return None
    return None if member and _as_known(member, device) else Joined(device.id, device.accelerators, device.zone)


def _as_known(member: Member, device: QueriedDevice) -> bool:
    known = (member.stratum, member.zone) == (stratum_of(device.accelerators), device.zone)
    return member.present and (known or member.state is not DeviceState.PENDING)
