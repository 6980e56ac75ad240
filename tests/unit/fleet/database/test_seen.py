"""Last seen: how often it is written, and that nothing is forgotten."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from fleet.controller.database.seen import LastSeenBuffer
from fleet.controller.database.settings import DatabaseSettings
from tests.simulators.constants import settings_with

NOW = datetime(2026, 3, 1, tzinfo=UTC)
SETTINGS = settings_with(DatabaseSettings(), seen_limit_devices=3)


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def test_the_first_poll_is_written_and_the_next_ones_wait() -> None:
    seen = LastSeenBuffer(SETTINGS)
    assert not seen.note("camera-1", at(0))
    assert seen.due(at(1)) == {"camera-1": at(0)}
    seen.note("camera-1", at(10))
    seen.note("camera-1", at(20))
    assert seen.due(at(60)) == {}
    assert seen.due(at(61)) == {"camera-1": at(20)}
    assert seen.due(at(200)) == {}


def test_too_many_are_written_at_once() -> None:
    seen = LastSeenBuffer(SETTINGS)
    seen.note("camera-1", at(0))
    seen.due(at(0))
    assert [seen.note(f"camera-{number}", at(1)) for number in range(1, 5)] == [False, False, False, True]
    assert len(seen.due(at(1))) == 4


def test_a_clock_that_went_back_holds_nothing_up() -> None:
    seen = LastSeenBuffer(SETTINGS)
    seen.note("camera-1", at(10_000))
    seen.due(at(10_000))
    seen.note("camera-1", at(0))
    assert seen.due(at(0)) == {"camera-1": at(0)}


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 40)), max_size=30))
def test_every_poll_is_written_within_two_intervals(polls: list[tuple[str, float]]) -> None:
    seen, clock, written, last = LastSeenBuffer(SETTINGS), 0.0, {}, {}
    for device, pause in polls:
        clock += pause
        seen.note(device, at(clock))
        last[device] = at(clock)
        written |= seen.due(at(clock))
    written |= seen.due(at(clock + 60))
    assert written == last
