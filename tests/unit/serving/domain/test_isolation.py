"""Decisions about worker processes."""

from gateway.serving.domain.isolation import (
    ANSWERED_PAUSE_S,
    MIB,
    PAUSES_S,
    STEADY_S,
    Restarts,
    WorkerPolicy,
    end_reason,
)


def test_pauses_grow_until_a_worker_lives_long():
    restarts, now_s = Restarts(), 100.0
    for pause_s in (*PAUSES_S, PAUSES_S[-1]):
        assert restarts.ended(now_s) == now_s + pause_s
        now_s += 1
    assert restarts.ended(now_s, had_answered=True) == now_s + ANSWERED_PAUSE_S
    assert restarts.ended(now_s + STEADY_S) == now_s + STEADY_S + PAUSES_S[0]


def test_the_time_of_an_opening_is_no_time_without_an_end():
    restarts, now_s = Restarts(), 100.0
    for pause_s in PAUSES_S:
        assert restarts.ended(now_s, opening_s=2 * STEADY_S) == now_s + pause_s
        now_s += pause_s + 2 * STEADY_S


def test_a_worker_has_the_limit_that_is_set_or_one_of_what_it_took():
    assert WorkerPolicy(memory_bytes=5).limit_bytes(100 * MIB) == 5
    assert WorkerPolicy().limit_bytes(100 * MIB) == 712 * MIB
    assert WorkerPolicy(ran_bytes=300 * MIB).limit_bytes(100 * MIB) == 712 * MIB
    assert WorkerPolicy(ran_bytes=2000 * MIB).limit_bytes(100 * MIB) == 4100 * MIB


def test_a_spare_takes_a_quarter_of_the_memory_at_most_and_stays_until_memory_is_short():
    policy = WorkerPolicy()
    assert policy.holds_spare(100, 400, there=False)
    assert not policy.holds_spare(100, 399, there=False)
    assert policy.holds_spare(100, 100, there=True)
    assert not policy.holds_spare(100, 99, there=True)
    assert not WorkerPolicy(spare=False).holds_spare(1, 1000, there=True)


def test_the_end_of_a_worker_has_a_reason():
    assert [end_reason(code) for code in (0, 3, -9, -11, -6)] == ["exited", "exited", "killed", "crashed", "crashed"]
