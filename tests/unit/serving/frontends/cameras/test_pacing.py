"""Pace of a file by its timestamps, and upper limits of rates."""

import pytest

from gateway.serving.frontends.cameras.pacing import GAP_LIMIT_S, PlaybackClock, RateLimit


def test_frames_are_due_as_far_apart_as_their_timestamps():
    clock = PlaybackClock()
    assert clock.due_s(5.0, 100.0) == 100.0
    assert clock.due_s(5.5, 100.1) == pytest.approx(100.5)
    assert clock.due_s(6.0, 107.0) == pytest.approx(101.0)  # it is late: the pace stays


@pytest.mark.parametrize("next_s", [0.0, 50.0 + GAP_LIMIT_S + 1])
def test_timestamps_that_step_back_or_too_far_begin_again(next_s):
    clock = PlaybackClock()
    clock.due_s(50.0, 100.0)
    assert clock.due_s(next_s, 101.0) == 101.0
    assert clock.due_s(next_s + 1.0, 101.0) == 102.0


def test_a_limit_admits_its_rate_of_frames_that_come_evenly():
    limit = RateLimit(10.0)
    assert sum(limit.admits(number / 30) for number in range(300)) == pytest.approx(100, abs=1)


def test_a_limit_reaches_its_rate_with_frames_that_come_unevenly():
    times = [number / 25 + (0.015 if number % 2 else 0.0) for number in range(250)]
    limit = RateLimit(12.5)
    assert sum(limit.admits(at_s) for at_s in times) == pytest.approx(125, abs=2)


def test_timestamps_that_are_not_exact_lose_no_frame():
    limit = RateLimit(10.0)
    assert [number for number in range(91) if limit.admits(number / 30)] == [*range(0, 91, 3)]


def test_frames_that_come_less_often_than_the_limit_are_all_admitted_and_a_pause_is_not_made_up_for():
    limit = RateLimit(10.0)
    assert all(limit.admits(at_s) for at_s in (0.0, 1.0, 2.0, 60.0))
    assert [limit.admits(at_s) for at_s in (60.01, 60.05, 60.1)] == [False, False, True]


def test_without_a_limit_every_frame_is_admitted():
    limit = RateLimit(None)
    assert all(limit.admits(at_s) for at_s in (0.0, 0.0, 0.001))
