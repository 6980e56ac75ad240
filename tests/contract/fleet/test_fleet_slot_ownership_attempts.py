"""Attempts at one release count on from rollout to rollout; a report goes to the rollout whose attempt it names."""

from __future__ import annotations

from fleet.controller.control.reports import Made
from fleet.controller.control.rollouts_record import add
from fleet.controller.control.slot_ownership import answered
from fleet.controller.rollouts.facts import Aborted, Reported, Resumed, RollbackRequested
from fleet.controller.rollouts.state import DeviceState, Status
from tests.simulators.rolled_fleet import V1, V2, RolledFleet, fleet

__all__ = ["fleet"]
DEVICE = "camera-1"
ALL = [{"percent": 100}]
LENIENT = {"retries": {"limit": 1, "backoff_s": 1}, "abort": {"min_sample": 9, "max_failed_percent": 90}}


def finished(fleet: RolledFleet, names: list[str]) -> str:
    """Return a finished rollout that gave these devices version 1."""
    rollout = fleet.start(target="acme/meter-reader/1", waves=ALL)
    fleet.turn(1)
    fleet.report(rollout, names, "committed")
    fleet.turn(1)
    assert fleet.status(rollout) is Status.FINISHED
    return rollout


def aborted(fleet: RolledFleet, rollout: str) -> None:
    fleet.say(rollout, Aborted("ann"))
    fleet.turn(1)


def wanted(fleet: RolledFleet, device: str = DEVICE) -> tuple[str, str, int]:
    """Return what the device's assignment says: target, rollout that caused it, and attempt."""
    one = fleet.desired([device])[device]
    return one.target, one.rollout, one.attempt


def heard(fleet: RolledFleet, rollout: str, state: str, attempt: int, release: str = "") -> list[int]:
    """Let the device report this; return the attempts of this rollout that it answers."""
    with fleet.database.write() as connection:
        known = fleet.rolling.states.read(connection, rollout, fleet.database.settings, lock=True)
        said = Reported(DEVICE, state, release or known.spec.target.sha256, attempt)
        taken = answered(connection, known, [Made(said)])
        add(connection, known, taken, fleet.now, fleet.database.settings)
    return [one.attempt for one in taken]


def test_what_was_offered_and_withdrawn_is_offered_by_the_next_rollout_as_another_attempt(fleet: RolledFleet) -> None:
    """The device may have rejected it, and have heard nothing since."""
    before = finished(fleet, fleet.enrol([DEVICE]))
    first = fleet.start(waves=ALL)
    fleet.turn(1)
    assert wanted(fleet) == (V2, first, 1)
    aborted(fleet, first)
    assert wanted(fleet) == (V1, before, 1)
    second = fleet.start(waves=ALL, **LENIENT)
    fleet.turn(1)
    assert wanted(fleet) == (V2, second, 2)
    assert [heard(fleet, second, state, 1) for state in ("rolled_back", "committed")] == [[], []], "of the first"
    assert heard(fleet, second, "rolled_back", 2) == [1]
    fleet.turn(60)
    assert wanted(fleet) == (V2, second, 3)
    assert [heard(fleet, second, "committed", attempt) for attempt in (2, 4, 3, 0)] == [[], [], [2], [0]]
    fleet.turn(1)
    assert fleet.status(second) is Status.FINISHED
    assert fleet.replayed(second)


def test_attempts_grow_when_two_rollouts_take_turns(fleet: RolledFleet) -> None:
    """The first halts and withdraws, the second comes and ends, the first goes on."""
    names = fleet.enrol([DEVICE, *(f"d-{n}" for n in range(3))])
    finished(fleet, names)
    first = fleet.start(waves=ALL)
    fleet.turn(1)
    fleet.report(first, names[1:], "rolled_back")
    fleet.turn(1)
    assert fleet.known(first).state.halted
    second = fleet.start(query=f"id = {DEVICE}", waves=ALL)
    fleet.turn(1)
    assert wanted(fleet) == (V2, second, 2)
    aborted(fleet, second)
    fleet.say(first, Resumed("ann"))
    fleet.turn(1)
    assert wanted(fleet) == (V2, first, 3)
    assert heard(fleet, second, "committed", 3) == []
    assert heard(fleet, first, "committed", 3) == [2]


def test_who_was_told_to_go_back_is_heard_at_the_attempt_of_what_it_goes_back_to(fleet: RolledFleet) -> None:
    before = finished(fleet, fleet.enrol([DEVICE]))
    old = fleet.known(before).spec.target.sha256
    rollout = fleet.start(waves=ALL, **LENIENT)
    fleet.turn(1)
    assert heard(fleet, rollout, "rolled_back", 1) == [1]
    fleet.turn(60)
    assert heard(fleet, rollout, "committed", 2) == [2]
    fleet.say(rollout, Aborted("ann"))
    fleet.say(rollout, RollbackRequested("ann"))
    fleet.turn(1)
    assert wanted(fleet) == (V1, before, 1)
    heard(fleet, rollout, "committed", 1, old)
    assert fleet.known(rollout).state.members[DEVICE].state is DeviceState.ROLLED_BACK
