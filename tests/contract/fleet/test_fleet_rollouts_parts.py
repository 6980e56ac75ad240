"""Decisions about many devices are recorded and carried out in parts: whatever happens between two of them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from fleet.controller.control.settings import SchedulerSettings
from fleet.controller.rollouts.decisions import PART_LOW
from fleet.controller.rollouts.facts import Aborted, Paused, Resumed
from fleet.controller.rollouts.state import Status
from tests.simulators.constants import settings_with
from tests.simulators.databases import ALIKE
from tests.simulators.rolled_fleet import V1, V2, RolledFleet, rolling

DEVICES = 2 * PART_LOW + 50
ALL = [{"percent": 100}]
SETTINGS = settings_with(SchedulerSettings(), decisions_per_tick=PART_LOW)


@pytest.fixture(params=ALIKE)
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RolledFleet]:
    with rolling(request.param, tmp_path, SETTINGS) as made:
        made.enrol(f"d-{number:03}" for number in range(DEVICES))
        yield made


def offered(fleet: RolledFleet, rollout: str) -> int:
    """Check that devices are to run what the facts say; return how many were offered it."""
    names = fleet.members(rollout, "offered")
    assert (
        sorted(name for name, one in fleet.desired([*fleet.known(rollout).state.members]).items() if one.target == V2)
        == names
    )
    return len(names)


def turns(fleet: RolledFleet, rollout: str, count: int = 3) -> list[int]:
    """Return how many devices hold an offer after each tick."""
    found = []
    for _ in range(count):
        fleet.turn(1)
        found.append(offered(fleet, rollout))
    return found


def due(fleet: RolledFleet) -> bool:
    """Return whether the next tick is to come at once."""
    return fleet.scheduler._rolling.due.is_set()


def test_a_wave_is_offered_part_by_part_without_a_pause(fleet: RolledFleet) -> None:
    rollout = fleet.start(waves=ALL)
    fleet.turn()
    assert (offered(fleet, rollout), due(fleet)) == (PART_LOW - 1, True)  # and the wave was opened
    fleet.turn()
    fleet.scheduler._rolling.due.clear()
    fleet.turn()
    assert (offered(fleet, rollout), due(fleet)) == (DEVICES, False)
    assert fleet.replayed(rollout) == DEVICES + 1


def test_an_abort_withdraws_part_by_part_and_is_over_when_all_are_told(fleet: RolledFleet) -> None:
    rollout = fleet.start(waves=ALL)
    turns(fleet, rollout)
    fleet.say(rollout, Aborted("ann"))
    states = []
    for _ in range(3):
        fleet.turn(1)
        states.append((offered(fleet, rollout), fleet.known(rollout).stored.state))
    left = DEVICES - PART_LOW
    assert states == [(left, "returning"), (left - PART_LOW, "returning"), (0, "aborted")]
    assert fleet.replayed(rollout)


def test_another_leader_goes_on_with_the_rest_of_a_forced_abort(fleet: RolledFleet) -> None:
    rollout = fleet.start(waves=ALL, rollback="forced")
    turns(fleet, rollout)
    fleet.report(rollout, fleet.members(rollout, "offered")[:10], "failed")
    fleet.turn(1)
    state = fleet.known(rollout)
    assert (state.state.status, state.stored.state) == (Status.ABORTED, "returning")
    returned = sum(member.returned for member in state.state.members.values())
    assert returned == PART_LOW - 1
    fleet.scheduler.resign()
    fleet.now += timedelta(seconds=60)
    fleet.scheduler = fleet.replica("two")
    for _ in range(2):
        fleet.turn(1)
    assert fleet.known(rollout).stored.state == "aborted"
    assert fleet.desired([*state.state.members]) == {}
    assert fleet.replayed(rollout)


def test_a_pause_between_two_parts_stops_the_rest(fleet: RolledFleet) -> None:
    rollout = fleet.start(waves=ALL)
    fleet.turn()
    fleet.say(rollout, Paused("ann"))
    assert turns(fleet, rollout, 2) == [PART_LOW - 1] * 2
    fleet.say(rollout, Resumed("ann"))
    assert turns(fleet, rollout) == [2 * PART_LOW - 1, DEVICES, DEVICES]
    assert fleet.replayed(rollout)


def test_who_reports_between_two_parts_of_a_halt_is_not_called_back(fleet: RolledFleet) -> None:
    rollout = fleet.start(target="acme/meter-reader/1", waves=ALL)
    while fleet.status(rollout) is not Status.FINISHED:
        fleet.turn(1)
        fleet.report(rollout, fleet.members(rollout, "offered"), "committed")
    rollout = fleet.start(waves=ALL)
    turns(fleet, rollout)
    failed = fleet.members(rollout, "offered")[:10]
    fleet.report(rollout, failed, "failed")
    fleet.turn(1)
    waiting = fleet.members(rollout, "offered")
    assert len(waiting) == DEVICES - 10 - (PART_LOW - 1)
    fleet.report(rollout, waiting[:20], "committed")
    turns_left = [len(fleet.members(rollout, "offered")) for _ in range(2) if fleet.turn(1) is None]
    assert turns_left == [len(waiting) - 20 - PART_LOW, 0]
    targets = fleet.targets([*fleet.known(rollout).state.members])
    assert sorted(name for name, target in targets.items() if target == V2) == sorted([*failed, *waiting[:20]])
    assert set(targets.values()) == {V1, V2}
    assert fleet.replayed(rollout)


def test_who_falls_silent_with_many_others_is_counted_before_anything_follows(fleet: RolledFleet) -> None:
    rollout = fleet.start(waves=ALL)
    turns(fleet, rollout)
    fleet.attend(3600)
    assert (fleet.status(rollout), len(fleet.members(rollout, "silent"))) == (Status.RUNNING, PART_LOW)
    for _ in range(2):
        fleet.turn(1)
    state = fleet.known(rollout).state
    assert (state.halted, state.evidence["failed"]) == (True, DEVICES)
    assert fleet.replayed(rollout)
