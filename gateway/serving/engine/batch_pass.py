"""Runs on the event loop: requests that arrive in one pass of the loop run at its end, model after model."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from gateway.serving import machine_noise
from gateway.serving.engine.pauses import Pauses

WATCH_NS = 1_000_000
"""Resolution at which the CPU time of a run on the event loop is known."""
_collector = threading.local()
"""CPU time that the garbage collector takes on a thread, in the middle of whatever allocates memory.

With a thousand connections, a full collection takes 20 to 50 ms: a model whose run it interrupts is not to blame.
"""


class Inline(Protocol):
    """A model whose runs are short enough for the event loop."""

    def run_inline(self) -> bool:
        """Run once. Return True if there is more to run on the event loop."""


class BatchPass:
    """One callback per pass of the event loop, however many requests wait.

    After `budget_us` it lets the event loop poll its sockets and continues after them. Hundreds of waiting requests
    thus delay no other work. `noise_ns` returns a counter of the time that the machine took from the event loop.
    """

    def __init__(
        self, budget_us: int, pauses: Pauses, noise_ns: Callable[[], int] = machine_noise.thread_noise_ns
    ) -> None:
        self.pauses, self.noise_ns = pauses, noise_ns
        self._budget_ns = budget_us * 1000
        self._ready: deque[Inline] = deque()
        self._called = self._held = False
        self._watched_ns = self._used_ns = -WATCH_NS
        if _note_collection not in gc.callbacks:
            gc.callbacks.append(_note_collection)

    def watch(self, now_ns: int) -> None:
        """Remember the event loop's CPU time before a run, at most once in WATCH_NS: the call is expensive (0.6 µs)."""
        if now_ns - self._watched_ns >= WATCH_NS:
            self._watched_ns, self._used_ns = now_ns, time.thread_time_ns() - collected_ns()

    def used_ns(self) -> int:
        """Return the event loop's CPU time since the last `watch` that counted: at most WATCH_NS more than a run's.

        Collections of garbage are not counted.
        """
        return time.thread_time_ns() - collected_ns() - self._used_ns

    def hold(self) -> None:
        """Let models wait for `release`, also beyond the end of the pass."""
        self._held = True

    def release(self) -> None:
        """Run models added since `hold`, without another pass of the event loop."""
        self._held = False
        if self._ready and not self._called:
            self._run()

    def add(self, servable: Inline) -> None:
        """Let a model run at the end of this pass; it stays until `run_inline` returns False."""
        # call_soon runs after the callbacks of all sockets that were ready in this pass: they share the run.
        self._ready.append(servable)
        if not (self._held or self._called):
            self._called = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        ready = self._ready
        until_ns = time.monotonic_ns() + self._budget_ns
        try:
            while ready:
                servable = ready.popleft()
                if servable.run_inline():
                    ready.append(servable)
                if time.monotonic_ns() >= until_ns:
                    break
        finally:
            self._called = bool(ready)
            if self.pauses.waiting:
                self.pauses.pause()
            if ready:
                asyncio.get_running_loop().call_soon(self._run)


def collected_ns() -> int:
    """Return the CPU time of all measured collections on the calling thread."""
    taken: int = getattr(_collector, "taken_ns", 0)
    return taken


def _note_collection(phase: str, _info: dict[str, int]) -> None:
    if phase == "start":
        _collector.began_ns = time.thread_time_ns()
    elif hasattr(_collector, "began_ns"):
        _collector.taken_ns = collected_ns() + time.thread_time_ns() - _collector.began_ns
