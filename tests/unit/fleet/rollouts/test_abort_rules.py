"""Limits with a minimum sample and a percentage; the interval against published values."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from fractions import Fraction
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.controller.rollouts.abort_rules import (
    REASON_LIMIT_CHARS,
    VerdictTally,
    common_reasons,
    excess,
    passed_at,
    wilson_interval,
)
from fleet.controller.rollouts.spec import AbortLimit, Success
from fleet.controller.rollouts.state import DeviceState, Member

START = datetime(2027, 3, 1, tzinfo=UTC)
LIMIT = AbortLimit(min_sample=5, max_failed_percent=10.0, confidence=0.95)


@pytest.mark.parametrize(
    ("hits", "sample", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (29, 29, 0.8830, 1.0),
    ],
)
def test_newcombes_published_intervals(hits, sample, low, high):
    """Newcombe, Statistics in Medicine 17 (1998), table I, method 3."""
    assert wilson_interval(hits, sample, 0.95) == pytest.approx((low, high), abs=6e-5)


@given(st.integers(1, 10**6).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.floats(0.5, 0.9999))
def test_the_interval_holds_the_share_found_and_both_ends_solve_wilsons_equation(counts, confidence):
    from statistics import NormalDist

    hits, sample = counts
    low, high = wilson_interval(hits, sample, confidence)
    assert 0.0 <= low <= hits / sample + 1e-12
    assert hits / sample - 1e-12 <= high <= 1.0
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    for end in (low, high):
        assert abs(hits / sample - end) == pytest.approx(z * sqrt(end * (1 - end) / sample), abs=1e-6)


@given(st.integers(1, 2000), st.integers(0, 2000))
def test_more_failures_are_never_better(sample, failed):
    failed = min(failed, sample - 1)
    assert wilson_interval(failed, sample, 0.95)[0] <= wilson_interval(failed + 1, sample, 0.95)[0]


def test_nothing_is_known_of_no_device():
    assert wilson_interval(0, 0, 0.95) == (0.0, 1.0)


def test_too_few_verdicts_halt_nothing_however_bad():
    assert excess({"all": VerdictTally(0, 4)}, LIMIT) is None
    assert excess({"all": VerdictTally(0, 5)}, LIMIT) is not None


def test_a_share_above_the_limit_by_chance_halts_nothing():
    assert excess({"all": VerdictTally(17, 3)}, LIMIT) is None  # 15 %, and not below 5.2 %
    assert excess({"all": VerdictTally(170, 30)}, LIMIT) is not None


def test_the_first_group_that_is_bad_is_named_with_its_measurements():
    found = excess({"all devices": VerdictTally(990, 10), "accelerators coral-usb": VerdictTally(0, 6)}, LIMIT)
    assert found is not None
    reason, evidence = found
    assert reason == "6 of 6 devices failed (accelerators coral-usb): for sure more than 10 %"
    assert evidence["group"] == "accelerators coral-usb"
    assert evidence["lower_bound_percent"] == 60.967


def test_a_limit_of_nothing_forgives_nothing_and_a_limit_of_all_everything():
    assert excess({"all": VerdictTally(4, 0)}, AbortLimit(1, 0.0, 0.95)) is None
    assert excess({"all": VerdictTally(10_000, 1)}, AbortLimit(1, 0.0, 0.95)) is not None
    assert excess({"all": VerdictTally(0, 10_000)}, AbortLimit(1, 100.0, 0.95)) is None


def commits(*minutes):
    return [START + timedelta(minutes=m) for m in minutes]


@pytest.mark.parametrize(
    ("size", "minutes", "sample", "percent", "expected"),
    [
        (10, (9, 1, 5), 1, 30.0, 9),  # the third of ten
        (10, (9, 1, 5), 1, 30.1, None),  # which would be the fourth
        (10, (9, 1, 5), 2, 10.0, 5),  # the sample asks for more than the percentage
        (2, (1, 2), 50, 10.0, 2),  # a sample of more than there are is all of them
        (1000, range(700), 1, 70.0, 699),  # exact: 0.7 * 1000 is 700, not a little more
    ],
)
def test_a_group_passes_with_the_commit_that_makes_it_enough(size, minutes, sample, percent, expected):
    found = passed_at(size, commits(*minutes), Success(sample, percent))
    assert found == (None if expected is None else commits(expected)[0])


def test_a_group_of_nobody_has_always_passed():
    assert passed_at(0, [], Success(5, 90.0)) is not None


@given(st.integers(1, 500), st.integers(0, 500), st.integers(1, 500), st.decimals(1, 100, places=2))
def test_passing_is_a_matter_of_counting(size, done, sample, percent):
    done = min(done, size)
    enough = Fraction(done, size) * 100 >= Fraction(percent) and done >= min(sample, size)
    assert (passed_at(size, commits(*range(done)), Success(sample, float(percent))) is not None) is enough


def failing(number, reason):
    return Member(f"d-{number}", number, state=DeviceState.FAILED, failures=1, reason=reason)


def test_the_most_frequent_reasons_are_shown_and_cut():
    members = [failing(n, "hot") for n in range(3)] + [failing(n, "x" * 999) for n in range(2)]
    members += [failing(9, ""), failing(9, "b"), failing(9, "a"), Member("d", 1, reason="none")]
    assert common_reasons(members) == {
        "reason_1": "3 × hot",
        "reason_2": "2 × " + "x" * REASON_LIMIT_CHARS,
        "reason_3": "1 × a",
    }
