"""Gaps between samples: marked, filled, or the beginning of another window; rows at a fixed rate."""

from __future__ import annotations

import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.serving.frontends.mqtt.windows.rings import Complete, WindowShape
from gateway.serving.frontends.mqtt.windows.samples import GapPolicy, Sample, SampleTiming
from gateway.serving.frontends.mqtt.windows.sensors import Windows

S = 1_000_000_000


def sample(time_s: float, value: float | None = None, sequence: int | None = None) -> Sample:
    row = np.array([time_s if value is None else value], np.float32)
    return Sample(row, round(time_s * S), 0, sequence)


def windows(timing: SampleTiming, size: int = 4, *, by_sequence: bool = False) -> Windows:
    return Windows(WindowShape(size, 1, 1), 10, 10**15, timing=timing, by_sequence=by_sequence)


def fed(target: Windows, *samples: Sample) -> list[Complete]:
    return [*target.put("a", samples, now_ns=1, wall_ns=1), *(complete for _, complete in target.expire())]


@pytest.mark.parametrize(
    ("policy", "limit", "expected"),
    [
        (GapPolicy.MARK, 100, [([0, 1, 4, 5], 2), ([1, 4, 5, 6], 2)]),
        (GapPolicy.RESET, 100, []),
        (GapPolicy.FILL_LAST, 100, [([0, 1, 1, 1], 2), ([1, 1, 1, 4], 2), ([1, 1, 4, 5], 2), ([1, 4, 5, 6], 1)]),
        (GapPolicy.FILL_LINEAR, 100, [([0, 1, 2, 3], 2), ([1, 2, 3, 4], 2), ([2, 3, 4, 5], 2), ([3, 4, 5, 6], 1)]),
        (GapPolicy.FILL_LINEAR, 1, []),
    ],
)
@pytest.mark.parametrize("by_sequence", [False, True])
def test_two_samples_that_did_not_come(policy, limit, expected, *, by_sequence: bool) -> None:
    target = windows(SampleTiming(S, gap=policy, fill_limit_rows=limit), by_sequence=by_sequence)
    found = fed(target, *(sample(at, sequence=at if by_sequence else None) for at in (0, 1, 4, 5, 6)))
    assert [(one.rows[:, 0].tolist(), one.missing_rows) for one in found] == expected
    assert target.counters["windows_restarted"] == (not expected)


def test_a_window_tells_its_longest_gap_and_its_times() -> None:
    (found,) = fed(windows(SampleTiming(S)), *(sample(at) for at in (0, 1, 5, 6)))
    assert (found.started_ns, found.ended_ns, found.gap_ns, found.missing_rows) == (0, 6 * S, 4 * S, 3)


@given(st.lists(st.floats(0.2, 1.4), min_size=1, max_size=40))
def test_rows_at_a_fixed_rate_lie_on_the_line_between_samples(steps: list[float]) -> None:
    times = np.concatenate(([0.0], np.cumsum(steps)))
    target = windows(SampleTiming(S, resample=True), size=1)
    found = fed(target, *(sample(float(at)) for at in times))  # the value of each sample is its time
    assert [round(one.ended_ns / S) for one in found] == list(range(len(found)))
    assert len(found) == int(times[-1] + 1e-9) + 1
    np.testing.assert_allclose([float(one.rows[0, 0]) for one in found], range(len(found)), atol=1e-3)


def test_samples_wait_for_the_missing_one_and_join_one_window() -> None:
    target = windows(SampleTiming(S, lateness_ns=3 * S), by_sequence=True)
    assert not list(target.put("a", [sample(at, sequence=at) for at in (0, 2, 3)], now_ns=1, wall_ns=1))
    assert target.due_ns() == 3 * S
    (found,) = target.put("a", [sample(1, sequence=1)], now_ns=1, wall_ns=1)
    assert found.rows[:, 0].tolist() == [0, 1, 2, 3]
    assert target.due_ns() is None


def test_windows_of_other_sensors_end_without_what_did_not_come() -> None:
    target = windows(SampleTiming(S, lateness_ns=S), size=2, by_sequence=True)
    for name in "abc":
        list(target.put(name, [sample(at, sequence=at) for at in (0, 2)], now_ns=1, wall_ns=1))
    assert sorted(name for name, _ in target.expire(S)) == ["a", "b", "c"]
    assert target.counters == Counter(samples_missing=3)


def test_a_dropped_sensor_leaves_nothing_that_waits() -> None:
    target = Windows(WindowShape(2, 1, 1), 1, 10**15, timing=SampleTiming(S, lateness_ns=S), by_sequence=True)
    list(target.put("a", [sample(at, sequence=at) for at in (0, 2)], now_ns=1, wall_ns=1))
    list(target.put("b", [sample(0, sequence=0)], now_ns=1, wall_ns=1))
    assert target.due_ns() is None
    assert not list(target.expire())


@pytest.mark.parametrize("policy", GapPolicy)
@pytest.mark.parametrize("resample", [False, True])
def test_a_gap_of_years_fills_no_memory(policy: GapPolicy, *, resample: bool) -> None:
    target = windows(SampleTiming(1_000, gap=policy, resample=resample), size=2)
    tracemalloc.start()
    try:
        found = fed(target, *(sample(at) for at in (0, 1e-6, 3e8, 3e8 + 1e-6)))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 2**20
    assert found[0].rows[:, 0].tolist() == [0.0, np.float32(1e-6)]
    assert found[-1].ended_ns // 1_000 == sample(3e8 + 1e-6).time_ns // 1_000


def test_a_jump_of_sequence_numbers_is_counted_as_far_as_marks_reach() -> None:
    target = windows(SampleTiming(), size=2, by_sequence=True)
    (found,) = fed(target, sample(0, sequence=0), sample(1, sequence=2**53))
    assert found.missing_rows == 2**31 - 1


def test_many_sensors_that_wait_are_looked_at_only_when_due() -> None:
    timing = SampleTiming(S, lateness_ns=10 * S)
    target = Windows(WindowShape(2, 1, 1), 2_000, 10**15, timing=timing)
    for moment in range(1_000):
        list(target.put(str(moment), [Sample(np.zeros(1, np.float32), S, moment)], now_ns=moment, wall_ns=1))
    looks = Counter[str]()
    for name, window in target._timed.items():
        window.expire = lambda now_ns, name=name: looks.update([name]) or iter(())  # type: ignore[method-assign]
    assert target.due_ns() == 10 * S
    assert not list(target.expire(10 * S - 1))
    assert not looks


def test_a_sensor_that_was_dropped_and_came_back_waits_once() -> None:
    target = Windows(WindowShape(9, 1, 1), 1, 10**15, timing=SampleTiming(S, lateness_ns=S), by_sequence=True)
    for moment, name in enumerate("abababa"):
        samples = [Sample(np.zeros(1, np.float32), S, moment, number) for number in (0, 2)]
        list(target.put(name, samples, now_ns=moment, wall_ns=1))
    assert target.due_ns() == 6 + S
    assert not list(target.expire(6 + S))
    assert (target.due_ns(), target.counters["samples_missing"]) == (None, 1)
