"""Token buckets and strikes, by a clock of the test's own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.serving.frontends.grpc_v2.http2.errors import Code, ProtocolError
from gateway.serving.frontends.grpc_v2.http2.guard import REFUSAL_PAYS_NS, Allowance, Guard
from gateway.serving.frontends.grpc_v2.http2.limits import Http2Limits
from tests.simulators.constants import settings_with
from tests.simulators.http2_peer import SECOND_NS

LIMITS = settings_with(
    Http2Limits(), resets_burst=5, resets_per_s=2.0, controls_burst=5, controls_per_s=2.0, max_unread_bytes=100
)


def calm(ask: Callable[[], None]) -> None:
    with pytest.raises(ProtocolError) as caught:
        ask()
    assert caught.value.code is Code.ENHANCE_YOUR_CALM


def test_a_bucket_is_full_at_first_and_refilled_by_time() -> None:
    bucket, now_ns = Allowance(3, 2.0), 5 * SECOND_NS
    assert [bucket.take(now_ns) for _ in range(4)] == [True, True, True, False]
    assert not bucket.take(now_ns + SECOND_NS // 4)
    assert bucket.take(now_ns + SECOND_NS // 2)
    assert not bucket.take(now_ns + SECOND_NS // 2)
    later_ns = now_ns + 3600 * SECOND_NS
    assert [bucket.take(later_ns) for _ in range(4)] == [True, True, True, False]


@pytest.mark.parametrize("name", ["control", "reset"])
def test_beyond_the_burst_the_connection_ends(name: str) -> None:
    ask = getattr(Guard(LIMITS), name)
    for _ in range(5):
        ask(SECOND_NS)
    calm(lambda: ask(SECOND_NS))


@pytest.mark.parametrize("name", ["control", "reset"])
def test_what_is_within_the_rate_goes_on_for_ever(name: str) -> None:
    ask = getattr(Guard(LIMITS), name)
    for number in range(1000):
        ask(SECOND_NS + number * SECOND_NS // 2)


def test_one_kind_of_flood_does_not_spend_the_other_kinds_tokens() -> None:
    guard = Guard(LIMITS)
    for _ in range(5):
        guard.control(SECOND_NS)
        guard.reset(SECOND_NS)


def test_what_we_said_pays_for_window_updates() -> None:
    guard = Guard(LIMITS)
    for _ in range(10 * LIMITS.window_updates_per_frame):
        guard.window_update(SECOND_NS, frames_sent=10)
    for _ in range(5):
        guard.window_update(SECOND_NS, frames_sent=10)
    calm(lambda: guard.window_update(SECOND_NS, frames_sent=10))


def test_pings_without_traffic_are_strikes() -> None:
    guard = Guard(LIMITS)
    for number in range(1 + LIMITS.max_ping_strikes):
        guard.ping(60 * SECOND_NS + number, frames_sent=7)
    calm(lambda: guard.ping(61 * SECOND_NS, frames_sent=7))


def test_pings_with_traffic_or_far_apart_are_none() -> None:
    guard = Guard(LIMITS)
    for number in range(1000):
        guard.ping(60 * SECOND_NS + number, frames_sent=number)
    for number in range(1000):
        guard.ping(100 * SECOND_NS + number * LIMITS.min_ping_interval_ms * 1_000_000, frames_sent=1000)


def test_what_we_said_wipes_strikes_out() -> None:
    guard = Guard(LIMITS)
    for number in range(10 * LIMITS.max_ping_strikes):
        guard.ping(60 * SECOND_NS + number, frames_sent=number // (1 + LIMITS.max_ping_strikes))
    guard.ping(61 * SECOND_NS, frames_sent=99)


def test_pings_that_our_answers_pay_for_are_no_controls() -> None:
    guard = Guard(LIMITS)
    for number in range(1, 1000):
        guard.ping(SECOND_NS, frames_sent=number)
    for _ in range(5):
        guard.control(SECOND_NS)


def test_replies_that_nobody_reads() -> None:
    guard = Guard(LIMITS)
    guard.unread(100)
    calm(lambda: guard.unread(101))


def test_work_without_an_answered_call_is_bounded_and_grows_with_time() -> None:
    guard = Guard(settings_with(Http2Limits(), unanswered_work_ms=10, unanswered_work_per_s_ms=5))
    for _ in range(10):
        guard.work(SECOND_NS, 1_000_000)
    calm(lambda: guard.work(SECOND_NS, 1))
    guard.work(3 * SECOND_NS, 9_000_000)
    calm(lambda: guard.work(3 * SECOND_NS, 2_000_000))


def test_an_answered_call_pays_for_all_work_and_a_refused_one_for_its_own() -> None:
    guard = Guard(settings_with(Http2Limits(), unanswered_work_ms=10, unanswered_work_per_s_ms=1))
    for number in range(1, 1000):
        guard.work(number, 9_000_000)
        guard.answered(number)
    for _ in range(1000):
        guard.work(SECOND_NS, REFUSAL_PAYS_NS)
        guard.refused()
    for _ in range(20):
        guard.work(SECOND_NS, 5 * REFUSAL_PAYS_NS)
        guard.refused()
    calm(lambda: guard.work(SECOND_NS, 4_000_000))
