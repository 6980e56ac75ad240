"""Time by which data is deleted: clocks that jump, that are set back, that were wrong from the beginning."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.controller.control.monotonic_clock import ClockReading, first_reading, next_reading
from fleet.controller.control.settings import MaintenanceSettings

BEGIN = datetime(2027, 3, 1, 12, tzinfo=UTC)
SETTINGS = MaintenanceSettings()
DAY, STEP_S = timedelta(days=1), 5.0


class Machine:
    """Machine on which `true` time goes on; the wall clock is wrong by `error`."""

    def __init__(self, error: timedelta = timedelta(), latest: datetime | None = None) -> None:
        self.uptime_s, self.true, self.error = 1000.0, BEGIN, error
        self.look = first_reading(BEGIN + error, self.uptime_s, latest, SETTINGS)

    def later(self, seconds: float = STEP_S) -> ClockReading:
        self.uptime_s += seconds
        self.true += timedelta(seconds=seconds)
        self.look = next_reading(self.look, self.true + self.error, self.uptime_s, SETTINGS)
        return self.look

    @property
    def ahead(self) -> timedelta:
        """Time by which the believed time is later than the true one."""
        return self.look.believed - self.true


def test_a_clock_that_goes_on_evenly_is_believed_with_what_it_is_slewed_by() -> None:
    machine = Machine()
    for _ in range(100):
        machine.error += timedelta(seconds=0.5)
        machine.later()
    assert machine.ahead == machine.error == timedelta(seconds=50)


@pytest.mark.parametrize("ahead", [2 * timedelta(minutes=1), DAY, 30_000 * DAY])
def test_a_leap_counts_only_once_the_clock_went_on_evenly(ahead: timedelta) -> None:
    machine = Machine()
    machine.later()
    machine.error = ahead
    machine.later()
    assert (machine.ahead, machine.look.leap) == (timedelta(), ahead)
    machine.later(3_595)
    assert machine.ahead == timedelta()
    machine.later(5)
    assert machine.ahead == ahead


def test_another_leap_begins_the_wait_anew() -> None:
    machine = Machine()
    for days in (30, 60, 90):
        machine.error = days * DAY
        machine.later()
        machine.later(3_000)
    assert machine.ahead == timedelta()
    machine.later(600)
    assert machine.ahead == 90 * DAY


def test_a_clock_that_is_set_back_is_believed_at_once() -> None:
    machine = Machine()
    machine.error = -30 * DAY
    machine.later()
    assert machine.ahead == -30 * DAY
    machine.error = timedelta()
    machine.later()
    assert machine.ahead == -30 * DAY
    machine.later(3_600)
    assert machine.ahead == timedelta()


def test_at_the_start_the_clock_is_held_against_what_was_recorded_last() -> None:
    assert Machine(latest=None).ahead == timedelta()
    assert Machine(latest=BEGIN - 7 * DAY).ahead == timedelta()
    assert Machine(latest=BEGIN + DAY).ahead == timedelta()
    wrong = Machine(error=400 * DAY, latest=BEGIN - DAY)
    assert wrong.ahead == -DAY
    wrong.later(3_595)
    assert wrong.ahead == -DAY
    wrong.error = timedelta()
    wrong.later()
    assert wrong.look.leap == DAY, "what was not recorded for a day is made up for"
    wrong.later(3_600)
    assert wrong.ahead == timedelta()


leaps = st.integers(-(10**9), 10**9).map(lambda seconds: timedelta(seconds=seconds))
moments = st.lists(st.tuples(leaps, st.floats(1, 3_500)), max_size=12)


@given(moments)
def test_whatever_leaps_for_less_than_its_time_nothing_is_judged_later_than_it_is(errors) -> None:
    machine = Machine()
    for error, lasts_s in errors:
        machine.error = error
        machine.later()
        machine.later(lasts_s)
        assert machine.look.believed <= machine.look.wall
        machine.error = timedelta()
        machine.later()
        assert machine.ahead <= timedelta(seconds=SETTINGS.clock_leap_s)
