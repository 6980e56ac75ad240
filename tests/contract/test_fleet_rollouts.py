"""Rollouts from draft to end: what is recorded, what devices are to run, on SQLite and PostgreSQL alike."""

from __future__ import annotations

from fleet.rollouts.state import Status
from tests.simulators.rolled_fleet import V2, RolledFleet, fleet

__all__ = ["fleet"]


def names(number: int) -> list[str]:
    return [f"d-{n}" for n in range(number)]


def test_a_release_reaches_all_devices_wave_by_wave(fleet: RolledFleet) -> None:
    all_of_them = fleet.enrol(names(20))
    rollout = fleet.start()
    assert fleet.desired(all_of_them) == {}
    fleet.turn()
    first = fleet.members(rollout, "offered")
    assert fleet.targets(all_of_them) == dict.fromkeys(first, V2)
    assert len(first) == 2
    wanted = fleet.desired(first)[first[0]]
    assert (wanted.rollout, wanted.attempt, wanted.digest) == (rollout, 1, fleet.known(rollout).spec.target.sha256)
    fleet.turn()
    assert fleet.members(rollout, "offered") == first
    fleet.report(rollout, first, "committed")
    fleet.turn(1)
    others = fleet.members(rollout, "offered")
    assert len(others) == 18
    fleet.report(rollout, others, "committed")
    fleet.turn(1)
    assert fleet.status(rollout) is Status.FINISHED
    assert fleet.targets(all_of_them) == dict.fromkeys(all_of_them, V2)
    assert fleet.replayed(rollout) == 23
    said = ["create", "test", "test", "wave", "offer", "wave", "offer", "finish"]
    assert fleet.deeds(rollout) == [f"rollouts.{deed}" for deed in said]
