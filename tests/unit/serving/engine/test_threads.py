"""Calls on threads: in turn, at most so many at a time, and nothing is kept of what was refused or is over."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError

import pytest

from gateway.serving.engine.threads import Threads, begin


class Large:
    """Argument of a call, which must not outlive it."""


def refuse_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)


def test_calls_are_made_in_turn_and_only_so_many_at_a_time() -> None:
    threads, free, begun, made = Threads(2, "work"), threading.Event(), threading.Semaphore(0), []

    def work(number: int) -> int:
        made.append(number)
        begun.release()
        free.wait()
        return number

    calls = [threads.submit(work, number) for number in range(5)]
    begun.acquire()
    begun.acquire()
    assert sorted(made) == [0, 1]
    assert calls[3].cancel()
    free.set()
    assert [call.result() for call in calls if call is not calls[3]] == [0, 1, 2, 4]
    assert sorted(made) == [0, 1, 2, 4]
    with pytest.raises(CancelledError):
        calls[3].result()
    threads.close()


def test_callers_take_turns() -> None:
    threads, free, made = Threads(1, "work"), threading.Event(), []
    threads.submit(free.wait)
    calls = [threads.submit_for(caller, made.append, f"{caller}{index}") for index, caller in enumerate("aaabbc")]
    free.set()
    for call in calls:
        call.result()
    assert made == ["a0", "b3", "c5", "a1", "b4", "a2"]
    threads.close()


def test_a_thread_that_is_free_takes_the_next_call() -> None:
    threads = Threads(9, "work")
    first = threads.submit(threading.current_thread).result()
    while threads._pending:  # it has answered, and is about to be free
        threading.Event().wait(0.001)
    assert threads.submit(threading.current_thread).result() is first
    threads.close()
    first.join()


def test_what_waits_is_finished_after_the_end_and_nothing_more_is_taken() -> None:
    threads, free = Threads(1, "work"), threading.Event()
    threads.submit(free.wait)
    last = threads.submit(threading.current_thread)
    threads.close()
    with pytest.raises(RuntimeError, match="the threads 'work' take no more calls"):
        threads.submit(int)
    free.set()
    last.result().join()


@pytest.mark.parametrize("make", [Threads(1, "work").submit, lambda call: begin("work", call)])
def test_who_waits_for_a_call_hears_how_it_failed(make: Callable[..., object]) -> None:
    with pytest.raises(ZeroDivisionError):
        make(lambda: 1 // 0).result()  # type: ignore[attr-defined]


@pytest.mark.parametrize("call", [id, len])
def test_nothing_is_kept_of_a_call_that_is_over_or_failed(call: Callable[[Large], int]) -> None:
    threads, given, freed = Threads(1, "work"), Large(), threading.Event()
    weakref.finalize(given, freed.set)
    gc.disable()
    try:
        threads.submit(call, given)
        del given
        assert freed.wait(30)
    finally:
        gc.enable()
    threads.close()


def test_nothing_is_kept_of_a_call_that_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_threads(monkeypatch)
    given, made = Large(), []
    held = weakref.ref(given)
    for submit in (Threads(1, "work").submit, lambda call, large: begin("work", call, large)):
        with pytest.raises(RuntimeError, match="can't start new thread"):
            submit(made.append, given)
    del given
    gc.collect()
    assert held() is None
    assert not made
