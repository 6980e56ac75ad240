"""Decoding of large requests and encoding of large answers: begins on the event loop, continues on threads.

The threads serve callers in turn.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from gateway.common.domain.errors import Fault, RequestError
from gateway.serving.engine.caller_turns import CallerTurns
from gateway.serving.engine.settings import EngineSettings

T = TypeVar("T")
Steps = Generator[None, None, Any]

SLICE_NS = 5_000_000
"""Time slice of one job before the next caller's turn: the longest delay that a large job causes."""
RUN_NS = 500_000
"""Work of a thread between two pauses. A step of 16 KiB takes 0.07 ms for numbers of nine bytes, 0.3 ms of two."""
PAUSE_S = 0.0001
"""Pause: the event loop gets the GIL at once, not after the 5 ms of `sys.getswitchinterval`."""


@dataclass(slots=True, eq=False)
class _Job:
    caller: str
    steps: Steps
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]

    def settle(self, value: Any, error: BaseException | None) -> None:
        """Complete the future, on its event loop, unless its caller cancelled it."""
        if self.future.done():
            return
        if error is None:
            self.future.set_result(value)
        else:
            self.future.set_exception(error)


class DecodePool:
    """Implementation of `gateway.serving.domain.ports.Decoding`, with up to `decode_threads` threads.

    A new job starts a thread if fewer are running than that. A thread ends when no job is left. The frontends bound the
    waiting jobs: they count the memory of every message.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self._inline_ns, self._threads = settings.decode_inline_us * 1000, settings.decode_threads
        self._retry_after_s = settings.retry_after_s
        self._lock = threading.Lock()
        self._waiting: CallerTurns[_Job] = CallerTurns()
        self._begun = 0

    async def run(self, caller: str, steps: Generator[None, None, T], *, apart: bool = False) -> T:
        """Implement `Decoding.run`."""
        ends_ns = time.perf_counter_ns() + self._inline_ns
        while not apart:
            try:
                next(steps)
            except StopIteration as done:
                value: T = done.value
                return value
            if time.perf_counter_ns() >= ends_ns:
                break
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        try:
            self._add(_Job(caller, steps, loop, future))
            return await future
        finally:
            del future  # else the future and an error in it hold each other, and the message

    def _add(self, job: _Job) -> None:
        with self._lock:
            if self._begun < self._threads:
                try:
                    threading.Thread(target=self._work, name=f"decode {self._begun + 1}", daemon=True).start()
                    self._begun += 1
                except RuntimeError as error:
                    if not self._begun:
                        words = f"no thread can start for this request or its answer ({error}); try again later"
                        raise RequestError(Fault.OVERLOADED, words, retry_after_s=self._retry_after_s) from error
            self._waiting.add(job.caller, job)

    def _work(self) -> None:
        while (job := self._next()) is not None:
            if job.future.cancelled():
                job.steps.close()
            elif not _advance(job):
                with self._lock:
                    self._waiting.put_back(job.caller, job)
            del job  # it holds the message

    def _next(self) -> _Job | None:
        """Return the next caller's oldest job. None ends the thread."""
        with self._lock:
            if not self._waiting:
                self._begun -= 1
                return None
            return self._waiting.take()[1]


def _advance(job: _Job) -> bool:
    """Work on a job for one time slice. Return True if the job is settled."""
    ends_ns = (now_ns := time.perf_counter_ns()) + SLICE_NS
    pause_ns = now_ns + RUN_NS
    while True:
        try:
            next(job.steps)
        except StopIteration as done:
            _tell(job, done.value, None)
            return True
        except Exception as error:  # noqa: BLE001  a thread's boundary: the caller gets the error
            # Removes this frame from the traceback: it holds the job, which holds the error.
            within = error.__traceback__ and error.__traceback__.tb_next
            _tell(job, None, error.with_traceback(within))
            return True
        if time.perf_counter_ns() < pause_ns:
            continue
        time.sleep(PAUSE_S)
        if (now_ns := time.perf_counter_ns()) >= ends_ns:
            return False
        pause_ns = now_ns + RUN_NS


def _tell(job: _Job, value: Any, error: BaseException | None) -> None:
    with suppress(RuntimeError):  # the event loop has ended
        job.loop.call_soon_threadsafe(job.settle, value, error)
