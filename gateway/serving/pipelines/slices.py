"""Long work on threads, in slices: callers take turns after each. Work for a request that is over ends after one."""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import CancelledError, Future
from typing import TypeVar

from gateway.serving.engine.threads import Threads

T = TypeVar("T")
Slices = Generator[None, None, T]
"""Work that yields after each slice, and returns its result."""


def begin_slices(threads: Threads, caller: str, work: Slices[T], is_over: Callable[[], bool]) -> Future[T]:
    """Run work in the turns of a caller until it ends or `is_over` returns True, which is asked on the thread.

    Raises RuntimeError if no thread can start.
    """
    whole: Future[T] = Future()
    threads.submit_for(caller, _go_on, threads, caller, work, is_over, whole)
    return whole


def _go_on(threads: Threads, caller: str, work: Slices[T], is_over: Callable[[], bool], whole: Future[T]) -> None:
    """Do one slice of work. A function of its own: one that names itself would keep the work until a collection."""
    if not (whole.running() or whole.set_running_or_notify_cancel()):
        return
    try:
        work.throw(CancelledError) if is_over() else next(work)
        threads.submit_for(caller, _go_on, threads, caller, work, is_over, whole)
    except StopIteration as ended:
        whole.set_result(ended.value)
    except BaseException as error:  # noqa: BLE001  a thread's boundary: the future passes the error on
        whole.set_exception(error.with_traceback(None))  # whose frames would hold the work's data


def whole_of(work: Slices[T]) -> T:
    """Do work at once."""
    while True:
        try:
            next(work)
        except StopIteration as ended:
            return ended.value  # type: ignore[no-any-return]
