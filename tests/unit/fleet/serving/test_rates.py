"""Token buckets: no more than was allowed, over any time, in bounded memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fleet.serving.rates import NS, Buckets


def test_a_burst_then_the_rate() -> None:
    buckets = Buckets(2.0, 3.0, 10)
    assert [buckets.take("a", 0) for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    assert buckets.take("b", 0) == 0.0
    assert buckets.take("a", NS // 2) == 0.0
    assert buckets.take("a", NS // 2) == 0.5
    assert [buckets.take("a", 100 * NS) for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]


def test_no_rate_is_no_limit() -> None:
    buckets = Buckets(0.0, 1.0, 10)
    assert {buckets.take("a", 0) for _ in range(100)} == {0.0}
    assert len(buckets) == 0


def test_fines_make_debts_which_are_bounded() -> None:
    buckets = Buckets(1.0, 5.0, 10)
    for _ in range(100):
        buckets.fine("a", 0, 3.0)
    assert buckets.take("a", 0) == 6.0
    assert buckets.take("a", 6 * NS) == 0.0


def test_the_longest_silent_is_forgotten_first() -> None:
    buckets = Buckets(1.0, 1.0, 2)
    for key in ("a", "b", "a", "c"):
        buckets.take(key, 0)
    assert len(buckets) == 2
    assert buckets.take("a", 0) == 1.0
    assert buckets.take("b", 0) == 0.0


def test_a_clock_that_steps_back_gives_nothing() -> None:
    buckets = Buckets(1.0, 1.0, 2)
    assert buckets.take("a", 10 * NS) == 0.0
    assert buckets.take("a", 0) == 1.0


@given(st.lists(st.integers(0, 3 * NS), max_size=60), st.floats(0.1, 10), st.floats(1, 10))
def test_never_more_than_burst_and_rate(pauses: list[int], per_s: float, burst: float) -> None:
    buckets, now_ns, taken = Buckets(per_s, burst, 3), 0, 0
    for pause in pauses:
        now_ns += pause
        taken += buckets.take("a", now_ns) == 0.0
    assert taken <= burst + now_ns / NS * per_s + 1e-6


@given(st.floats(0.1, 10), st.floats(1, 10))
def test_who_waits_as_told_is_served(per_s: float, burst: float) -> None:
    buckets = Buckets(per_s, burst, 3)
    while not (wait_s := buckets.take("a", 0)):
        pass
    assert buckets.take("a", int(wait_s * NS) + 1000) == 0.0
