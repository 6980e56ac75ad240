"""Outages and jumps of the clock: while rollouts are not evaluated, no device counts as silent."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from fleet.controller.control.catalogue import Catalogue
from fleet.controller.control.settings import SchedulerSettings
from fleet.controller.database import leader
from fleet.controller.database.errors import AwayError
from fleet.controller.rollouts.facts import Aborted, Paused, Resumed, Unattended
from fleet.controller.rollouts.state import Status
from gateway.common.domain.errors import ConfigurationError
from tests.simulators.databases import ALIKE
from tests.simulators.rolled_fleet import RolledFleet, rolling

HOUR = 3600.0
WAVES = [{"count": 10}, {"percent": 100}]


@pytest.fixture(params=ALIKE)
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RolledFleet]:
    """Yield a fleet of twenty devices."""
    with rolling(request.param, tmp_path) as made:
        made.enrol(f"d-{n}" for n in range(20))
        yield made


def begun(fleet: RolledFleet, **changes: object) -> tuple[str, list[str]]:
    """Start a rollout that is offered to ten devices, three of which commit; return it and the ten."""
    rollout = fleet.start(waves=WAVES, rollback="forced", **changes)
    fleet.turn()
    first = fleet.members(rollout, "offered")
    fleet.report(rollout, first[:3], "committed")
    fleet.turn(60)
    return rollout, first


def gaps(fleet: RolledFleet, rollout: str) -> list[Unattended]:
    return [fact.event for fact in fleet.facts(rollout) if isinstance(fact.event, Unattended)]


def finish(fleet: RolledFleet, rollout: str) -> None:
    """Commit the release on all devices that were offered it, and on those that are offered it then."""
    for _ in range(3):
        fleet.report(rollout, fleet.members(rollout, "offered"), "committed")
        fleet.turn(1)
    assert fleet.status(rollout) is Status.FINISHED
    assert fleet.replayed(rollout)


def fall_silent(fleet: RolledFleet, rollout: str, seconds: float) -> None:
    """Leave devices silent for so much longer, while rollouts are evaluated: that aborts the rollout."""
    fleet.attend(seconds)
    assert fleet.status(rollout) is Status.ABORTED, "they are silent indeed"
    assert fleet.replayed(rollout)


@pytest.mark.parametrize("successor", [False, True], ids=["a leap of the clock", "an outage"])
def test_a_gap_beyond_all_patience_halts_nothing(fleet: RolledFleet, caplog, successor: bool) -> None:
    rollout, first = begun(fleet)
    last = fleet.now
    scheduler = fleet.scheduler
    if successor:  # what the first remembers is gone with it
        fleet.scheduler.resign()
        scheduler = fleet.scheduler = fleet.replica("two")
    with caplog.at_level(logging.WARNING):
        fleet.turn(30 * HOUR)
    assert "rollouts not evaluated: between" in caplog.text
    (gap,) = gaps(fleet, rollout)
    assert timedelta() <= gap.since - last + timedelta(seconds=60) < timedelta(seconds=65)
    assert len(fleet.members(rollout, "offered")) == 7
    fleet.turn(1)
    assert len(gaps(fleet, rollout)) == 1
    assert scheduler.leads
    finish(fleet, rollout)
    assert fleet.targets(first).keys() == {*first}


def test_a_turn_that_stood_still_was_no_look(fleet: RolledFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """A statement of it waited for the database, or the machine was asleep."""
    rollout, _ = begun(fleet)
    refresh = Catalogue.refresh

    def stands_still(catalogue: Catalogue, now: datetime, fence: int) -> None:
        fleet.now += timedelta(hours=30)
        refresh(catalogue, now, fence)

    with monkeypatch.context() as patched:
        patched.setattr(Catalogue, "refresh", stands_still)
        fleet.turn(1)
    fleet.turn(1)
    assert len(gaps(fleet, rollout)) == 1
    assert len(fleet.members(rollout, "offered")) == 7
    finish(fleet, rollout)


def test_who_is_silent_afterwards_failed_after_as_long_as_ever(fleet: RolledFleet) -> None:
    rollout, first = begun(fleet)
    fleet.turn(30 * HOUR)
    fleet.report(rollout, first[3:5], "downloading")
    fleet.attend(HOUR - 120)
    assert len(fleet.members(rollout, "offered")) == 5
    fall_silent(fleet, rollout, 120)


def test_a_short_absence_is_nothing_to_record(fleet: RolledFleet) -> None:
    rollout, _ = begun(fleet)
    fleet.scheduler.resign()
    fleet.turn(fleet.rolling.settings.gap_s / 2, scheduler=(second := fleet.replica("two")))
    assert second.leads
    assert gaps(fleet, rollout) == []
    second.resign()


def test_half_of_a_short_patience_is_a_gap_already(fleet: RolledFleet) -> None:
    rollout, _ = begun(fleet, silence_s=150)
    for _ in range(3):
        fleet.turn(80)
    assert len(gaps(fleet, rollout)) == 3
    assert len(fleet.members(rollout, "offered")) == 7
    fall_silent(fleet, rollout, 150)


def test_a_clock_that_is_set_back_during_an_evaluation_halts_nothing(fleet: RolledFleet) -> None:
    """The evaluation waits for devices' reports to be stored, the first of which have earlier times."""
    rollout, first = begun(fleet)
    fleet.turn(24 * HOUR)
    fleet.turn(1)
    began = fleet.now
    fleet.now -= timedelta(hours=24)
    fleet.report(rollout, first[3:4], "downloading")
    fleet.scheduler.tick(began)
    assert fleet.members(rollout, "silent") == []
    fleet.turn(1)
    fleet.report(rollout, first[3:4], "committed")
    finish(fleet, rollout)


def test_a_leap_that_is_taken_back_leaves_everything_as_it_was(fleet: RolledFleet) -> None:
    rollout, _ = begun(fleet)
    fleet.turn(300 * HOUR)
    fleet.turn(-300 * HOUR)
    assert len(gaps(fleet, rollout)) == 1
    fleet.attend(HOUR - 120)
    assert len(fleet.members(rollout, "offered")) == 7
    fall_silent(fleet, rollout, 120)


def test_a_gap_while_it_is_paused_counts_for_nothing_too(fleet: RolledFleet) -> None:
    rollout, _ = begun(fleet)
    fleet.say(rollout, Paused("ann"))
    fleet.turn(30 * HOUR)
    assert len(fleet.members(rollout, "offered")) == 7
    fleet.say(rollout, Resumed("ann"))
    fleet.turn(1)
    finish(fleet, rollout)


def test_a_wave_soaks_as_long_as_somebody_looks(fleet: RolledFleet) -> None:
    rollout, first = begun(fleet, soak_s=600)
    fleet.report(rollout, first[3:], "committed")
    fleet.turn(1)
    fleet.turn(30 * HOUR)
    fleet.attend(590)
    assert fleet.known(rollout).state.wave == 1, "failures of the night may be told only now"
    fleet.attend(20)
    assert fleet.known(rollout).state.wave == 2


def test_of_two_rollouts_each_hears_of_it_once_and_what_is_over_does_not(fleet: RolledFleet) -> None:
    rollout, _ = begun(fleet)
    other = fleet.start(slot="other", waves=WAVES)
    over = fleet.start(slot="third", waves=WAVES)
    fleet.turn(1)
    fleet.say(over, Aborted("ann"))
    fleet.turn(30 * HOUR)
    fleet.turn(1, scheduler=fleet.scheduler)
    assert [len(gaps(fleet, one)) for one in (rollout, other, over)] == [1, 1, 0]


def test_the_time_between_two_looks_is_shorter_than_a_gap() -> None:
    with pytest.raises(ConfigurationError, match=r"tick_s.*must be above 0 and at most 60"):
        SchedulerSettings(tick_s=200.0)


@pytest.mark.parametrize("days", [1, 366])
def test_a_clock_that_was_set_back_and_is_right_again_halts_nothing(
    fleet: RolledFleet, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    """The database is away after the evaluation at the wrong time, and the leader forgets what it knew."""
    rollout, first = begun(fleet)
    fleet.now -= timedelta(days=days)
    fleet.report(rollout, first[3:4], "downloading")
    with monkeypatch.context() as patched:
        patched.setattr(leader, "keep_look", away)
        with pytest.raises(AwayError):
            fleet.turn(1)
    fleet.now += timedelta(days=days)
    fleet.turn(1)
    assert len(fleet.members(rollout, "offered")) == 6
    assert fleet.members(rollout, "silent") == []
    fleet.report(rollout, first[3:4], "committed")
    finish(fleet, rollout)


def away(*_: object) -> None:
    raise AwayError("away", 1.0)
