"""Order of samples: whatever arrives in whatever order, each sample passes once, in order, or is counted."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gateway.serving.frontends.mqtt.windows.ordering import Ordering, SequenceOrdering, TimeOrdering
from gateway.serving.frontends.mqtt.windows.samples import Sample, SampleTiming

S = 1_000_000_000


def sample(number: int, *, at: int | None = None, arrived: int = 0, value: float | None = None) -> Sample:
    row = np.array([number if value is None else value], np.float32)
    return Sample(row, S * (number if at is None else at), S * arrived, number)


def values(passed: list[Sample]) -> list[int]:
    return [int(one.row[0]) for one in passed]


orders = st.permutations(range(12))
modes = st.sampled_from([SequenceOrdering, TimeOrdering])


@given(orders, modes)
def test_what_waits_long_enough_passes_in_order(order: list[int], kind: type[SequenceOrdering | TimeOrdering]):
    counters: Counter[str] = Counter()
    ordering: Ordering = kind(SampleTiming(lateness_ns=100 * S), counters)
    first = ordering.put(sample(0))
    passed = [one for number in order for one in ordering.put(sample(number + 1))]
    assert values([*first, *passed, *ordering.flush()]) == list(range(13))
    assert not counters


@given(st.lists(st.integers(0, 8), max_size=30), st.integers(0, 3), modes)
def test_every_sample_passes_in_order_or_is_counted(
    numbers: list[int], lateness_s: int, kind: type[SequenceOrdering | TimeOrdering]
) -> None:
    counters: Counter[str] = Counter()
    ordering: Ordering = kind(SampleTiming(lateness_ns=lateness_s * S, pending_limit_rows=4), counters)
    passed: list[Sample] = []
    for moment, number in enumerate(numbers):
        passed += ordering.expire(moment * S)
        passed += ordering.put(sample(number, arrived=moment))
        due_ns = ordering.due_ns()
        assert due_ns is None or due_ns >= (moment - lateness_s) * S
    passed += ordering.flush()
    assert len(passed) + counters.total() == len(numbers)
    assert ordering.due_ns() is None
    assert all(earlier.time_ns <= later.time_ns for earlier, later in pairwise(passed))


def test_a_sample_without_its_predecessor_waits_no_longer_than_the_lateness() -> None:
    ordering = SequenceOrdering(SampleTiming(lateness_ns=2 * S), Counter())
    assert values(ordering.put(sample(1))) == [1]
    assert ordering.put(sample(4, arrived=10)) == []
    assert ordering.put(sample(5, arrived=11)) == []
    assert ordering.due_ns() == 12 * S
    assert ordering.expire(12 * S - 1) == []
    passed = ordering.expire(12 * S)
    assert values(passed) == [4, 5]
    assert [one.missing for one in passed] == [2, 0]


@given(st.integers(0, 2**40), st.integers(1, 40), st.sampled_from([0, 64]))
def test_numbers_without_a_gap_never_wait(first: int, count: int, modulus: int) -> None:
    ordering = SequenceOrdering(SampleTiming(lateness_ns=3_600 * S, modulus=modulus), Counter())
    for number in range(first, first + count):
        one = sample(number, at=number - first)
        one.sequence = number % modulus if modulus else number
        assert ordering.put(one) == [one]
        assert ordering.due_ns() is None


@given(st.permutations(range(1, 9)))
def test_samples_after_a_gap_pass_with_the_one_that_was_missing(order: list[int]) -> None:
    ordering, came = SequenceOrdering(SampleTiming(lateness_ns=3_600 * S), Counter()), {0}
    ordering.put(sample(0))
    for number in order:
        before = next(one for one in range(10) if one not in came)
        came.add(number)
        after = next(one for one in range(10) if one not in came)
        assert values(ordering.put(sample(number))) == list(range(before, after))


def test_without_lateness_a_gap_is_told_at_once() -> None:
    ordering = SequenceOrdering(SampleTiming(), Counter())
    ordering.put(sample(1))
    assert [one.missing for one in ordering.put(sample(4))] == [2]


def test_numbers_begin_again_at_the_modulus() -> None:
    ordering = SequenceOrdering(SampleTiming(modulus=256), Counter())
    passed = [one for number in (254, 255, 0, 2) for one in ordering.put(sample(number, at=number % 250))]
    assert [(int(one.row[0]), one.missing, one.restarts) for one in passed] == [
        (254, 0, False), (255, 0, False), (0, 0, False), (2, 1, False),
    ]  # fmt: skip


def test_a_repetition_is_counted_and_another_sample_with_an_old_number_is_late() -> None:
    counters: Counter[str] = Counter()
    ordering = SequenceOrdering(SampleTiming(), counters)
    for number in (1, 2, 3, 2):
        ordering.put(sample(number))
    assert ordering.put(sample(1, at=0, value=9)) == []
    assert counters == {"samples_duplicate": 1, "samples_late": 1}


def test_a_sensor_that_starts_again_counts_from_its_start() -> None:
    ordering = SequenceOrdering(SampleTiming(lateness_ns=S), Counter())
    for number in (7, 8, 10):
        ordering.put(sample(number))
    passed = ordering.put(sample(0, at=20)) + ordering.put(sample(1, at=21))
    assert [(int(one.row[0]), one.restarts) for one in passed] == [(10, False), (0, True), (1, False)]


def test_a_sensor_that_starts_again_with_an_older_clock_is_not_silenced() -> None:
    counters: Counter[str] = Counter()
    ordering = SequenceOrdering(SampleTiming(restart_ns=60 * S), counters)
    for number in (1_000, 1_001):
        ordering.put(sample(number, at=1_700_000_000))
    passed = [one for number in (0, 1) for one in ordering.put(sample(number, at=number))]
    assert [(int(one.row[0]), one.restarts) for one in passed] == [(0, True), (1, False)]
    assert not counters


def test_without_times_a_start_is_known_by_its_number() -> None:
    counters: Counter[str] = Counter()
    ordering = SequenceOrdering(SampleTiming(event_time=False), counters)
    for number in (5_000, 5_001):
        ordering.put(sample(number, at=1))
    assert ordering.put(sample(4_990, at=2)) == []
    assert counters == {"samples_late": 1}
    assert [one.restarts for number in (3, 0) for one in ordering.put(sample(number, at=3))] == [True, True]


def test_a_clock_that_is_set_back_does_not_silence_its_sensor() -> None:
    counters: Counter[str] = Counter()
    ordering = TimeOrdering(SampleTiming(restart_ns=60 * S), counters)
    ordering.put(sample(1_000))
    assert ordering.put(sample(990)) == []
    assert [one.restarts for number in (900, 901) for one in ordering.put(sample(number))] == [True, False]
    assert counters == {"samples_late": 1}
