"""Circuit breakers: confirmation within a window, noise that explains faults, and the way back with back-off."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.serving.engine.breaker import LONGEST_WAIT_NS, NEVER_NS, WINDOW_NS, Breaker, BreakerState

MS, S = 1_000_000, 1_000_000_000
NEW = Breaker(3, 60 * S)


def after(breaker: Breaker, *times_ns: int) -> Breaker:
    """Return the breaker after faults of 5 ms at these times on a machine without noise."""
    for now_ns in times_ns:
        breaker = breaker.fault(now_ns, 5 * MS)
    return breaker


def test_several_faults_within_the_window_open_it() -> None:
    assert not after(NEW, S, 2 * S).is_open
    assert after(NEW, S, 2 * S, 3 * S).retry_ns == 63 * S
    assert not after(NEW, S, 2 * S, 2 * S + WINDOW_NS).is_open
    assert after(NEW, S, 2 * S).retry_ns == NEVER_NS


def test_noise_that_explains_faults_begins_the_window_again() -> None:
    noisy = after(NEW, S, 2 * S).fault(3 * S, 5 * MS, noise_ns=5 * MS)
    assert (noisy.state, noisy.faults, noisy.since_ns) == (BreakerState.CLOSED, 0, 3 * S)
    assert after(NEW, S, 2 * S).fault(3 * S, 5 * MS, noise_ns=4 * MS).is_open, "less than half of what they cost"
    early = NEW.fault(S, 5 * MS, noise_ns=900 * MS)
    assert early.fault(2 * S, 5 * MS, 900 * MS).fault(3 * S, 5 * MS, 900 * MS).is_open, "noise before the first"


def test_on_probation_one_fault_opens_it_again_for_twice_as_long() -> None:
    half_open = after(NEW, S, 2 * S, 3 * S).attempt(63 * S)
    assert (half_open.state, half_open.retry_ns) == (BreakerState.HALF_OPEN, NEVER_NS)
    assert after(half_open, 64 * S).retry_ns == (64 + 120) * S
    excused = half_open.fault(64 * S, 5 * MS, noise_ns=5 * MS)
    assert (excused.state, excused.since_ns) == (BreakerState.HALF_OPEN, 64 * S)


def test_after_a_clean_window_the_wait_is_forgotten() -> None:
    settled_ns = 63 * S + WINDOW_NS + 1
    clean = after(after(NEW, S, 2 * S, 3 * S).attempt(63 * S), settled_ns)
    assert (clean.state, clean.wait_ns, clean.faults) == (BreakerState.CLOSED, 0, 1)
    assert after(clean, settled_ns + 1, settled_ns + 2).wait_ns == 60 * S


STEPS = st.lists(st.tuples(st.integers(1, 20 * S), st.booleans(), st.integers(0, 20 * MS)), max_size=60)


@given(STEPS, st.integers(1, 4), st.integers(1, 100 * S))
def test_it_opens_only_after_enough_faults_and_always_comes_back(
    steps: list[tuple[int, bool, int]], limit: int, first_wait_ns: int
) -> None:
    breaker, now_ns, noise_ns, faults = Breaker(limit, first_wait_ns), 0, 0, list[int]()
    for passed_ns, fails, noise in steps:
        now_ns, noise_ns, before = now_ns + passed_ns, noise_ns + noise, breaker
        if now_ns >= breaker.retry_ns:
            breaker = breaker.attempt(now_ns, noise_ns)
            assert breaker.state is BreakerState.HALF_OPEN
        elif fails:
            faults.append(now_ns)
            breaker = breaker.fault(now_ns, 5 * MS, noise_ns)
        assert first_wait_ns <= (breaker.wait_ns or first_wait_ns) <= LONGEST_WAIT_NS
        if breaker.is_open and before.state is BreakerState.CLOSED:
            assert sum(now_ns - fault_ns <= WINDOW_NS for fault_ns in faults) >= limit
        if breaker.is_open:
            assert now_ns < breaker.retry_ns <= now_ns + LONGEST_WAIT_NS
