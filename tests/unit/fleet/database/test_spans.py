"""Runs of received numbers, held against plain sets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fleet.controller.database.spans import Received, spans_of

NUMBERS = st.sets(st.integers(1, 40))
SPANS = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 5)).map(lambda pair: (pair[0], sum(pair))), max_size=6)


def received(numbers: set[int]) -> Received:
    return Received().joined(spans_of(numbers))


def numbers_of(state: Received) -> set[int]:
    return {*range(1, state.contiguous + 1), *(n for first, last in state.beyond for n in range(first, last + 1))}


@given(NUMBERS, SPANS)
def test_joining_is_what_sets_do(numbers: set[int], spans: list[tuple[int, int]]) -> None:
    joined = received(numbers).joined(spans)
    expected = numbers.union(*(range(first, last + 1) for first, last in spans))
    assert numbers_of(joined) == expected
    assert joined.count() == len(expected)
    assert {number for number in range(1, 60) if number in joined} == expected
    assert joined.contiguous == next(number for number in range(60) if number + 1 not in expected)


@given(NUMBERS)
def test_there_is_one_form_of_every_set(numbers: set[int]) -> None:
    state = received(numbers)
    ends = [state.contiguous, *(end for span in state.beyond for end in span)]
    assert all(first > last + 1 for last, first in zip(ends[0::2], ends[1::2], strict=False))
    one_by_one = Received()
    for number in numbers:
        one_by_one = one_by_one.joined([(number, number)])
    assert one_by_one == state


@given(NUMBERS)
def test_gaps_are_what_is_missing_before_the_last(numbers: set[int]) -> None:
    missing = {n for first, last in received(numbers).gaps() for n in range(first, last + 1)}
    assert missing == set(range(1, max(numbers, default=0))) - numbers


def test_runs_of_numbers_in_any_order() -> None:
    assert spans_of([9, 3, 1, 2, 3, 8]) == [(1, 3), (8, 9)]
    assert spans_of([]) == []
