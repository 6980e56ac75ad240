"""Runs on the event loop: what arrived in one turn of it runs at the end of the turn, model after model."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Protocol

WATCH_NS = 1_000_000
"""How exactly the processor time of a run on the loop is known."""


class Inline(Protocol):
    """A model whose runs are short enough for the loop."""

    def run_inline(self) -> bool:
        """Run once; whether there is more for the loop to run."""


class Turn:
    """One callback per turn of the loop, however many requests wait. After `budget_us` it lets the loop look at its
    sockets and goes on behind them, so that hundreds of waiting requests hold up nobody."""

    def __init__(self, budget_us: int) -> None:
        self._budget_ns = budget_us * 1000
        self._ready: deque[Inline] = deque()
        self._called = self._held = False
        self._watched_ns = self._used_ns = -WATCH_NS

    def watch(self, now_ns: int) -> None:
        """Remember the loop's processor time before a run, at most once in WATCH_NS: the call is dear (0.6 µs)."""
        if now_ns - self._watched_ns >= WATCH_NS:
            self._watched_ns, self._used_ns = now_ns, time.thread_time_ns()

    def used_ns(self) -> int:
        """Return the loop's processor time since the last `watch` that counted: WATCH_NS more than a run's at most."""
        return time.thread_time_ns() - self._used_ns

    def hold(self) -> None:
        """Let models wait for `release`, however the turn goes."""
        self._held = True

    def release(self) -> None:
        """Run what was added meanwhile, without another turn of the loop."""
        self._held = False
        if self._ready and not self._called:
            self._run()

    def add(self, servable: Inline) -> None:
        """Let a model run at the end of this turn; it stays until `run_inline` says that nothing is left."""
        self._ready.append(servable)
        if not (self._called or self._held):
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
            if ready:
                asyncio.get_running_loop().call_soon(self._run)
