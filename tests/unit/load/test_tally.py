"""Counting: percentiles to two percent, and when all is settled."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.load.casting import cast
from tests.load.settings import BehaviourShares, Settings
from tests.load.tally import Spread, Tally, summary


@given(st.lists(st.floats(1e-5, 100.0), min_size=1, max_size=60), st.sampled_from([1, 50, 90, 99, 100]))
def test_percentiles_are_right_to_two_percent(durations: list[float], percent: int) -> None:
    spread = Spread()
    for duration in durations:
        spread.add(duration)
    true = sorted(durations)[max(0, -(-len(durations) * percent // 100) - 1)]
    assert true * 0.999 <= spread.percentile(percent) <= true * 1.021


def test_an_empty_spread_is_zero() -> None:
    assert Spread().document() == {"p50": 0.0, "p90": 0.0, "p99": 0.0, "mean": 0.0, "max": 0.0}


def test_all_is_settled_when_those_that_can_have_committed() -> None:
    played, tally = cast(Settings("https://x", 10, shares=BehaviourShares(failing=10, silent=10, lying=10))), Tally()
    able = [character for character in played if character.part == "honest"]
    assert len(able) == 7
    for number, character in enumerate(able):
        assert not tally.settled(played)
        tally.offered(character.number, float(number))
        tally.ended(character.number, "committed", number + 2.0, 2.0)
    assert tally.settled(played)
    found = summary(tally, played, 10.0, 0)
    assert (found["committed"], found["offered"], found["settled"]) == (7, 7, True)
    assert found["states"] == {"committed": 7, "waiting": 3}
    assert found["first_offer_to_last_commit_s"] == 8.0
    assert found["offer_to_committed_s"]["p50"] == pytest.approx(2.0, rel=0.02)


def test_answers_are_told_by_status_and_rolled_back_is_no_commit() -> None:
    tally = Tally()
    for status in (200, 304, 304):
        tally.answered("assignment", status, 0.1)
    tally.ended(0, "rolled_back", 1.0, 1.0)
    found = summary(tally, cast(Settings("https://x", 1)), 2.0, 0)
    assert found["answers"] == {"assignment": {"200": 1, "304": 2}}
    assert set(found["latency_ms"]) == {"assignment", "assignment unchanged"}
    assert (found["requests_per_s"], found["committed"]) == (1.5, 0)
    assert found["first_offer_to_last_commit_s"] is None
