"""Calls on threads that keep no reference to a call if the process may not start another thread.

`ThreadPoolExecutor.submit` and `asyncio.to_thread` raise then, too. But they keep the call, and run it later, when
nothing receives its result.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import ParamSpec, TypeVar

from gateway.serving.engine.caller_turns import CallerTurns

P = ParamSpec("P")
T = TypeVar("T")


class Threads:
    """At most `limit` threads. A call starts a thread if no other is free. Callers take turns."""

    def __init__(self, limit: int, name: str) -> None:
        self._limit, self._name = limit, name
        self._calls: CallerTurns[Callable[[], None]] = CallerTurns()
        self._changed = threading.Condition()
        self._begun = self._pending = 0
        self._closed = False

    def submit(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a call without a caller, as `submit_for` does."""
        return self.submit_for("", call, *args, **kwargs)

    def submit_for(self, caller: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a call as soon as a thread is free and it is the caller's turn.

        Raises RuntimeError if the thread that it needs cannot start, or after `close`.
        """
        future: Future[T] = Future()
        with self._changed:
            if self._closed:
                raise RuntimeError(f"the threads '{self._name}' take no more calls")
            if self._begun <= self._pending and self._begun < self._limit:
                threading.Thread(target=self._work, name=f"{self._name} {self._begun + 1}", daemon=True).start()
                self._begun += 1
            self._pending += 1
            self._calls.add(caller, partial(_fulfil, future, partial(call, *args, **kwargs)))
            self._changed.notify()
        return future

    def close(self) -> None:
        """Accept no more calls. The threads end once they have run the waiting calls."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _work(self) -> None:
        while (call := self._next()) is not None:
            call()
            del call  # else the call and its arguments are held until the next one comes
            with self._changed:
                self._pending -= 1

    def _next(self) -> Callable[[], None] | None:
        """Wait for a call; None ends the thread."""
        with self._changed:
            self._changed.wait_for(lambda: self._calls or self._closed)
            return self._calls.take()[1] if self._calls else None


def begin(name: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Run one call on a thread of its own. Raises RuntimeError if that cannot start."""
    future: Future[T] = Future()
    threading.Thread(target=_fulfil, name=name, args=(future, partial(call, *args, **kwargs))).start()
    return future


def _fulfil(future: Future[T], call: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001  a thread's boundary: the future passes the error on
        future.set_exception(error)
        del future, call  # else the error holds them, and they hold the error
    else:
        future.set_result(result)
