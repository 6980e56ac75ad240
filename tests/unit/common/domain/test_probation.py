"""Probation: when a new version may take over, and what keeps it from doing so."""

from dataclasses import replace

import pytest

from gateway.common.domain.probation import Counts, DaemonSnapshot, Pace, ProbationSettings, evaluate_probation, pace

SETTINGS = ProbationSettings(duration_s=60.0)
FIRST = DaemonSnapshot(100.0, "one", Counts(), Counts(requests=1000, executions=1000, infer_ns=10**9), rss_bytes=10**8)
GOOD = replace(
    FIRST,
    at_s=160.0,
    new=Counts(requests=50, executions=50, infer_ns=50 * 10**6, compared=50),
    old=Counts(requests=2000, executions=2000, infer_ns=2 * 10**9),
)


EVEN = [Pace(1000.0, 1000.0)] * 5


def verdict(last, first=FIRST, progress_s=None, paces=EVEN):
    return evaluate_probation(first, last, paces, last.at_s if progress_s is None else progress_s, SETTINGS)


def test_a_version_that_answers_as_it_should_takes_over_when_the_time_is_over():
    assert verdict(replace(GOOD, at_s=159.0)).passed is None
    passed = verdict(GOOD)
    assert passed.passed is True
    assert passed.evidence["run_us"] == 1000.0
    assert passed.evidence["old_run_us"] == 1000.0


def test_a_quiet_device_passes_and_says_that_little_was_seen():
    judged = verdict(replace(GOOD, new=Counts(requests=3, executions=3)))
    assert judged.passed is True
    assert "only 3 requests" in judged.reason


BAD = {
    "failed": replace(GOOD, new=replace(GOOD.new, failed_runs=3)),
    "it rejects 5.7 % of its runs for their data, the old version 0.0 %": replace(
        GOOD, new=replace(GOOD.new, rejected_runs=3)
    ),
    "differs": replace(GOOD, new=replace(GOOD.new, disagreed=6)),
    "restarted": replace(GOOD, instance="two"),
    "grew by": replace(GOOD, rss_bytes=FIRST.rss_bytes + SETTINGS.leak_bytes + 1),
    "hot": replace(GOOD, hottest_c=SETTINGS.heat_limit_c + 1),
    "throttle": replace(GOOD, throttled=True),
}


@pytest.mark.parametrize("words", BAD)
def test_a_fault_ends_the_probation_at_once_with_its_evidence(words):
    judged = verdict(replace(BAD[words], at_s=110.0))
    assert judged.passed is False
    assert words in judged.reason
    assert judged.evidence["seconds"] == 10.0


def test_data_that_the_old_version_rejects_as_often_is_no_fault_of_the_new_one():
    old = replace(GOOD.old, rejected_runs=100)
    assert verdict(replace(GOOD, new=replace(GOOD.new, rejected_runs=3), old=old)).passed is True


def test_requests_that_wait_while_no_run_ends_are_a_hang():
    waiting = replace(GOOD, at_s=140.0, new=replace(GOOD.new, busy=True))
    assert verdict(waiting, progress_s=111.0).passed is None
    judged = verdict(waiting, progress_s=110.0)
    assert judged.passed is False
    assert "no run ended for 30 s" in judged.reason
    assert verdict(replace(waiting, new=replace(GOOD.new, busy=False)), progress_s=110.0).passed is None


FORGIVEN = {
    "two failed runs of many": replace(GOOD, new=Counts(requests=300, executions=300, failed_runs=2)),
    "a share below the limit": replace(GOOD, new=Counts(requests=1000, executions=1000, failed_runs=10)),
    "few rows compared": replace(GOOD, new=replace(GOOD.new, compared=19, disagreed=19)),
    "as hot as before": replace(GOOD, hottest_c=99.0),
}


@pytest.mark.parametrize("case", FORGIVEN)
def test_a_percentage_needs_its_minimum_sample(case):
    first = replace(FIRST, hottest_c=99.0) if case == "as hot as before" else FIRST
    assert verdict(FORGIVEN[case], first).passed is True


SLOW = Pace(2001.0, 1000.0)


def test_runs_that_take_too_long_between_most_looks_end_the_probation():
    judged = verdict(replace(GOOD, at_s=110.0), paces=[SLOW] * 3 + EVEN[:2])
    assert judged.passed is False
    assert "a run takes 2001 µs, the old version's 1000: more than 2 times as long" in judged.reason


@pytest.mark.parametrize(
    ("last", "paces"),
    [
        (GOOD, [Pace(10**6, 1000.0)] * 2 + EVEN),  # two hiccups among seven looks
        (GOOD, [SLOW] * 4),  # too few looks
        (replace(GOOD, new=replace(GOOD.new, executions=19)), [SLOW] * 9),  # too few runs
        (GOOD, [Pace(2000.0, 1000.0)] * 5),  # twice as long is what may be
    ],
)
def test_a_hiccup_is_no_slowness(last, paces):
    assert verdict(last, paces=paces).passed is True


def test_a_pace_needs_runs_of_both_versions():
    before = replace(FIRST, new=Counts(executions=2, infer_ns=4000))
    after = replace(
        FIRST, new=Counts(executions=4, infer_ns=10_000), old=Counts(executions=1010, infer_ns=10**9 + 10_000)
    )
    assert pace(before, after) == Pace(3.0, 1.0)
    assert pace(before, replace(after, old=before.old)) is None
    assert pace(before, replace(after, new=before.new)) is None
    assert pace(replace(before, old=None), after) is None
