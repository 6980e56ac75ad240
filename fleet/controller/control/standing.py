"""Standing rollouts: which devices they pass over in later rounds, and how later rollouts supersede them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fleet.controller.control.membership import device_of
from fleet.controller.control.rollouts_record import LIVE, RecordedRollout
from fleet.controller.database import desired, rollouts
from fleet.controller.database.devices import Device
from fleet.controller.database.engine import Connection
from fleet.controller.database.rollouts import StoredRollout
from fleet.controller.rollouts.facts import Superseded
from fleet.controller.rollouts.members import NO_NEWCOMERS, Newcomers
from fleet.controller.rollouts.query import Operator, compares, matches
from fleet.controller.rollouts.query_parser import parse
from fleet.controller.rollouts.state import ENDED, Status
from gateway.common.domain.release_paths import parse_path

REPLACED = (Status.FINISHED.value, Status.STANDING.value)
"""Stored states of later rollouts that keep the devices that they took."""


def newcomers(
    connection: Connection,
    known: RecordedRollout,
    devices: Sequence[Device],
    live: Sequence[StoredRollout],
    zones: Mapping[str, str],
) -> Newcomers:
    """Return which devices a later round passes over, and which took the name of one that was removed.

    Passed over is a device that runs or is to run a newer version of the same model, one that a younger rollout of
    `live` is for, and one that has not reported yet what it runs.
    """
    if not known.state.round:
        return NO_NEWCOMERS
    members, slot, query = known.state.members, known.spec.slot, parse(known.spec.query)
    younger = [parse(str(other.spec["query"])) for other in live if other.id > known.stored.id]
    open_to = [one for one in devices if not (known.state.served(one.id) and members[one.id].belongs)]
    matched = [(one, queried) for one in open_to if matches(query, queried := device_of(one, zones))]
    wanted = desired.of_devices(connection, [device.id for device, _ in matched], slot)
    passed_over, new = set[str](), set[str]()
    for device, queried in matched:
        paths = [running.target for running in device.running if running.slot == slot]
        paths += [wanted[device.id].target] if device.id in wanted else []
        newer = any(_is_newer(path, known.spec.target.path) for path in paths)
        if newer or not device.health or any(matches(other, queried) for other in younger):
            passed_over.add(device.id)
        if device.id in members and not members[device.id].belongs and device.id not in wanted:
            new.add(device.id)
    return Newcomers(passed_over, new)


def superseded(connection: Connection, known: RecordedRollout) -> Sequence[Superseded]:
    """Return that later rollouts took the last device of a standing one, or nothing.

    Later rollouts that are not over block it: aborted, they would give the devices back.
    """
    if not known.state.round or known.state.status in ENDED:
        return ()
    slot, states = known.spec.slot, {*LIVE, *REPLACED}
    younger = rollouts.younger(connection, known.stored.id, slot, states)
    if not younger or desired.serves(connection, slot, known.stored.id):
        return ()
    taken = {other: desired.held(connection, slot, [other]) & known.state.members.keys() for other in younger}
    by = [other for other, devices in taken.items() if devices]
    return (Superseded(by[-1]),) if by and all(younger[other] in REPLACED for other in by) else ()


def _is_newer(path: str, target: str) -> bool:
    """Return whether `path`, which a device reports, is a newer version of the model of `target`."""
    try:
        there, mine = parse_path(path), parse_path(target)
    except ValueError:
        return False
    same = (there.owner, there.model) == (mine.owner, mine.model)
    return same and compares(Operator.ABOVE, there.version, mine.version)
