"""Rows of a batch that are taken: none twice, none lost that is sent again, bounded whatever a device sends."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.controller.database.errors import RefusedError
from fleet.controller.database.ingestion import DUPLICATE, GAPS, SCATTERED, WINDOW, Batch, Row, check, take
from fleet.controller.database.settings import TelemetryStorageSettings
from fleet.controller.database.spans import Received
from tests.simulators.constants import settings_with

NOW = datetime(2026, 3, 1, tzinfo=UTC)
SETTINGS = settings_with(TelemetryStorageSettings(), window_rows=30, spans_limit=3)
NUMBERS = st.lists(st.integers(1, 60), max_size=12)
LOST = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 5)).map(lambda pair: (pair[0], sum(pair))), max_size=3)
BATCHES = st.lists(st.tuples(NUMBERS, LOST), max_size=8)


def batch(numbers, lost=()) -> Batch:
    return Batch("metrics", 1, [Row(number, NOW, "m", {}) for number in numbers], lost)


@given(BATCHES)
def test_every_row_is_stored_once_or_left_out_and_counted(batches) -> None:
    state, stored, lost = Received(), set(), 0
    for numbers, gaps in batches:
        taken = take(state, batch(numbers, gaps), SETTINGS)
        fresh = [row.seq for row in taken.rows]
        assert fresh == sorted(set(fresh))
        assert not stored & set(fresh)
        assert len(fresh) + sum(n for reason, n in taken.left.items() if reason != GAPS) == len(numbers)
        assert len(taken.received.beyond) <= SETTINGS.spans_limit
        assert taken.received.contiguous >= state.contiguous
        stored |= set(fresh)
        lost += taken.lost
        assert taken.received.count() == len(stored) + lost
        assert all(number in taken.received for number in stored)
        state = taken.received


@given(BATCHES, st.integers(1, 50))
def test_a_device_that_goes_on_from_what_is_acknowledged_gets_everything_through(batches, last: int) -> None:
    state, stored = Received(), set()
    for numbers, _ in batches:
        taken = take(state, batch(numbers), SETTINGS)
        state, stored = taken.received, stored | {row.seq for row in taken.rows}
    while state.contiguous < last:
        begin = state.contiguous + 1
        taken = take(state, batch(range(begin, min(begin + 5, last + 1))), SETTINGS)
        assert taken.received.contiguous > state.contiguous
        state, stored = taken.received, stored | {row.seq for row in taken.rows}
    assert set(range(1, last + 1)) <= stored


@given(BATCHES)
def test_a_batch_sent_again_changes_nothing(batches) -> None:
    state = Received()
    for numbers, gaps in batches:
        first = take(state, batch(numbers, gaps), SETTINGS)
        state = first.received
        known_gaps = [] if GAPS in first.left else gaps
        again = take(state, batch([n for n in numbers if n in state], known_gaps), SETTINGS)
        assert (again.received.contiguous, again.rows, again.lost) == (state.contiguous, [], 0)


def test_reasons_are_counted() -> None:
    taken = take(Received(2), batch([1, 2, 3, 3, 33, 34]), SETTINGS)
    assert [row.seq for row in taken.rows] == [3]
    assert taken.left == {DUPLICATE: 3, WINDOW: 2}
    taken = take(Received(), batch([1, 3, 5, 7, 9, 11]), SETTINGS)
    assert [row.seq for row in taken.rows] == [1, 3, 5, 7]
    assert taken.left == {SCATTERED: 2}
    scattered = [(number, number) for number in (3, 5, 7, 9)]
    taken = take(Received(), batch([1], scattered), SETTINGS)
    assert (taken.received, taken.lost, taken.left) == (Received(1), 0, {GAPS: 4})


def test_lost_numbers_are_passed_over_and_counted() -> None:
    taken = take(Received(2, ((6, 7),)), batch([8], [(1, 5)]), SETTINGS)
    assert (taken.received, taken.lost) == (Received(8), 3)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (batch([0]), "numbered from 1"),
        (batch([2**63]), "numbered from 1"),
        (batch([1], [(5, 4)]), "first of a gap"),
        (batch([1], [(-1, 4)]), "numbered from 1"),
        (batch(range(1, 1002)), "1001 rows at once"),
        (batch([1], [(n, n) for n in range(1, 9)]), "8 gaps at once"),
        (Batch("metrics", -1, []), "not a boot epoch"),
    ],
)
def test_what_no_device_sends_is_refused(wrong: Batch, said: str) -> None:
    with pytest.raises(RefusedError, match=said):
        check(wrong, SETTINGS)
