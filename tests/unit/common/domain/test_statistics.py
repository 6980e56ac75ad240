"""Runs that are counted together count as they would one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.statistics import RunTimes, ServableStatistics

EPOCH_NS = 1_700_000_000_000_000_000
PAUSES = st.integers(0, 10**9)


@st.composite
def runs(draw: st.DrawFn) -> tuple[int, list[int], int, int, int, int, int]:
    began = draw(st.integers(2 * 10**10, 3 * 10**10))
    came = [began - waited for waited in draw(st.lists(st.integers(0, 2 * 10**10), min_size=1, max_size=4))]
    times = [began]
    for pause in draw(st.tuples(PAUSES, PAUSES, PAUSES, PAUSES)):
        times.append(times[-1] + pause)
    gathered, ran, ended, answered = times[1:]
    return draw(st.integers(1, 3)), came, began, gathered, ran, ended, answered


@given(st.lists(runs(), min_size=1, max_size=5))
def test_runs_counted_together(counted: list[tuple[int, list[int], int, int, int, int, int]]) -> None:
    together, alone = ServableStatistics("m", "1"), ServableStatistics("m", "1")
    together.count_inline(counted, EPOCH_NS)
    for rows, came, began, gathered, ran, ended, answered in counted:
        times = RunTimes(
            began * len(came) - sum(came), gathered - began, ran - gathered, ended - ran, (EPOCH_NS + ended) // 10**6
        )
        alone.answered(came, answered)
        alone.executed(len(came), rows * len(came), times, "inline")
    assert together == alone


def test_runs_that_are_counted_late_do_not_set_the_last_inference_back() -> None:
    counted = ServableStatistics("m", "1", last_inference_ms=EPOCH_NS // 10**6 + 5)
    counted.count_inline([(1, [0], 0, 1, 2, 3, 4)], EPOCH_NS)
    assert counted.last_inference_ms == EPOCH_NS // 10**6 + 5
