"""Pauses between attempts; token buckets: no more than was allowed, over any time, in bounded memory."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.retry import SECOND_NS as NS
from gateway.common.domain.retry import TokenBuckets, pause_s, retry_after_s

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)


def test_a_burst_then_the_rate() -> None:
    buckets = TokenBuckets(2.0, 3.0, 10)
    assert [buckets.take("a", 0) for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    assert buckets.take("b", 0) == 0.0
    assert buckets.take("a", NS // 2) == 0.0
    assert buckets.take("a", NS // 2) == 0.5
    assert [buckets.take("a", 100 * NS) for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]


def test_no_rate_is_no_limit() -> None:
    buckets = TokenBuckets(0.0, 1.0, 10)
    assert {buckets.take("a", 0) for _ in range(100)} == {0.0}
    assert len(buckets) == 0


def test_fines_make_debts_which_are_bounded() -> None:
    buckets = TokenBuckets(1.0, 5.0, 10)
    for _ in range(100):
        buckets.fine("a", 0, 3.0)
    assert buckets.take("a", 0) == 6.0
    assert buckets.take("a", 6 * NS) == 0.0


def test_the_longest_silent_is_forgotten_first() -> None:
    buckets = TokenBuckets(1.0, 1.0, 2)
    for key in ("a", "b", "a", "c"):
        buckets.take(key, 0)
    assert len(buckets) == 2
    assert buckets.take("a", 0) == 1.0
    assert buckets.take("b", 0) == 0.0


def test_a_clock_that_steps_back_gives_nothing() -> None:
    buckets = TokenBuckets(1.0, 1.0, 2)
    assert buckets.take("a", 10 * NS) == 0.0
    assert buckets.take("a", 0) == 1.0


@given(st.lists(st.integers(0, 3 * NS), max_size=60), st.floats(0.1, 10), st.floats(1, 10))
def test_never_more_than_burst_and_rate(pauses: list[int], per_s: float, burst: float) -> None:
    buckets, now_ns, taken = TokenBuckets(per_s, burst, 3), 0, 0
    for pause in pauses:
        now_ns += pause
        taken += buckets.take("a", now_ns) == 0.0
    assert taken <= burst + now_ns / NS * per_s + 1e-6


@given(st.floats(0.1, 10), st.floats(1, 10))
def test_who_waits_as_told_is_served(per_s: float, burst: float) -> None:
    buckets = TokenBuckets(per_s, burst, 3)
    while not (wait_s := buckets.take("a", 0)):
        pass
    assert buckets.take("a", int(wait_s * NS) + 1000) == 0.0


@given(st.floats(0.001, 100), st.floats(0.001, 1e6), st.integers(-5, 10**6), st.floats(0, 1))
def test_pauses_are_bounded(base_s: float, limit_s: float, failures: int, chance: float) -> None:
    assert (
        0 <= pause_s(failures, base_s, limit_s, chance) <= min(limit_s, base_s * 2.0 ** min(max(failures - 1, 0), 32))
    )


def test_pauses_double() -> None:
    assert [pause_s(failures, 5.0, 60.0, 1.0) for failures in (1, 2, 3, 4, 5, 99)] == [5, 10, 20, 40, 60, 60]


@given(st.text(max_size=40))
def test_any_text_is_some_pause(text: str) -> None:
    assert retry_after_s(text, NOW) >= 0.0


def test_retry_after() -> None:
    later = format_datetime(NOW + timedelta(seconds=90), usegmt=True)
    vast = "Mon, 1 Jan 27 0:0:0 +9999999999999999999"
    texts = ["120", later, format_datetime(NOW - timedelta(1), usegmt=True), "", "-5", "soon", "1.5", vast]
    assert [retry_after_s(text, NOW) for text in texts] == [120, 90, 0, 0, 0, 0, 0, 0]
