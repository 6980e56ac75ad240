"""Pace of downloads: rate, timeouts and retries, decided on values."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.common.transfer.pace import NS, TokenBucket, TransferPace, backoff_ns, least_bytes
from gateway.common.transfer.settings import FetchSettings
from tests.simulators.constants import settings_with

SETTINGS = settings_with(FetchSettings(read_timeout_s=10), minimum_rate_bytes_per_s=100, minimum_rate_window_s=20)
times = st.integers(0, 10**15)


def test_a_read_waits_for_whatever_ends_first() -> None:
    patience = TransferPace(SETTINGS, 60, 0)
    assert patience.next_read(0).wait_ns == 10 * NS
    patience.came(5000, 8 * NS)
    assert patience.next_read(12 * NS).wait_ns == 6 * NS, "silence since second 8"
    patience.came(1, 17 * NS)
    assert patience.next_read(18 * NS).wait_ns == 2 * NS, "the window ends at second 20"
    patience.came(1, 54 * NS)
    assert patience.next_read(55 * NS).wait_ns == 5 * NS, "the deadline"


def test_silence_ends_a_read() -> None:
    patience = TransferPace(SETTINGS, 60, 0)
    patience.came(10**6, 2 * NS)
    assert patience.next_read(12 * NS).problem == "nothing came for 10 s"


def test_the_deadline_ends_a_read_however_fast_it_comes() -> None:
    patience = TransferPace(SETTINGS, 60, 0)
    patience.came(10**9, 60 * NS)
    assert patience.next_read(60 * NS).problem == "it was not finished within 60 s"
    assert patience.remaining_ns(61 * NS) == 0


def test_each_window_has_to_bring_its_share() -> None:
    patience = TransferPace(SETTINGS, 600, 0)
    patience.came(2000, 19 * NS)
    assert patience.next_read(20 * NS).wait_ns == 9 * NS
    patience.came(1999, 39 * NS)
    assert patience.next_read(40 * NS).problem == "only 1999 bytes came in 20 s"


def test_our_own_pauses_are_not_held_against_the_server() -> None:
    patience = TransferPace(SETTINGS, 600, 0)
    patience.came(1, 1 * NS)
    patience.paused(100 * NS)
    assert patience.next_read(105 * NS).wait_ns == 6 * NS
    assert patience.next_read(120 * NS).problem == "nothing came for 10 s"


def test_a_new_attempt_has_a_window_of_its_own_but_no_deadline_of_its_own() -> None:
    patience = TransferPace(SETTINGS, 60, 0)
    patience.begin(55 * NS)
    assert patience.next_read(55 * NS).wait_ns == 5 * NS


@given(st.lists(st.tuples(st.integers(0, 5 * NS), st.integers(0, 10**6)), max_size=60))
def test_a_read_never_waits_beyond_any_bound(steps: list[tuple[int, int]]) -> None:
    patience, now = TransferPace(SETTINGS, 60, 0), 0
    for pause_ns, count in steps:
        now += pause_ns
        patience.came(count, now)
        verdict = patience.next_read(now)
        if verdict.problem:
            assert now >= 60 * NS or now >= 20 * NS
            return
        assert 0 < verdict.wait_ns <= min(10 * NS, 60 * NS - now)


@given(st.lists(st.tuples(st.integers(0, NS), st.integers(0, 10**5)), max_size=80), st.integers(1, 10**6))
def test_a_bucket_holds_the_rate_whatever_the_server_does(steps: list[tuple[int, int]], rate: int) -> None:
    bucket, now, taken = TokenBucket(rate, 1000, 0), 0, 0
    for late_ns, count in steps:
        now += late_ns
        now += bucket.take(count, now)
        taken += count
        assert taken <= 1000 + rate * now / NS + 1


def test_a_bucket_without_a_rate_lets_everything_through() -> None:
    assert TokenBucket(0, 0, 0).take(10**12, 0) == 0


def test_a_pause_saves_up_no_more_than_a_burst() -> None:
    bucket = TokenBucket(100, 1000, 0)
    assert bucket.take(1000, 10**6 * NS) == 0
    assert bucket.take(100, 10**6 * NS) == NS


@given(st.integers(1, 10**6), st.floats(0, 1, exclude_max=True), st.floats(0, 1e9))
def test_pauses_between_attempts_are_bounded(failures: int, chance: float, asked_s: float) -> None:
    pause = backoff_ns(FetchSettings(), failures, chance, asked_s)
    assert 0 <= pause <= 3600 * NS
    assert pause >= round(min(asked_s, 3600) * NS)


def test_pauses_double_up_to_a_limit_and_are_drawn_from_all_of_it() -> None:
    settings = settings_with(FetchSettings(), backoff_base_s=1, backoff_limit_s=10)
    assert [backoff_ns(settings, n, 0.5) / NS for n in (1, 2, 3, 4, 5, 500)] == [0.5, 1, 2, 4, 5, 5]
    assert backoff_ns(settings, 9, 0.0) == 0


def test_progress_is_what_the_minimum_rate_makes_in_a_window() -> None:
    assert least_bytes(SETTINGS) == 2000
