"""Answers of two versions held against each other, on a thread: large outputs take longer than the loop has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

from gateway.domain.sharing import Comparison, compare
from gateway.domain.tensor import Tensors
from gateway.engine.threads import Threads

Compared = Callable[[Comparison | None], None]
"""Told on the loop what came of it; None: these outputs cannot be held against each other."""


class Comparing:
    """At most `limit` comparisons wait or run at a time: each keeps the outputs of two runs in memory."""

    def __init__(self, limit: int) -> None:
        self._limit, self._pending = limit, 0
        self._thread = Threads(1, "compare")

    def begin(self, answers: Tensors, others: Tensors, rows: int, compared: Compared) -> bool:
        """Compare, and tell `compared`; False where too many comparisons are pending, no thread can begin, or this was
        closed."""
        if self._pending >= self._limit:
            return False
        try:
            future = self._thread.submit(compare, answers, others, rows)
        except RuntimeError:
            return False
        self._pending += 1
        future.add_done_callback(partial(self._post, asyncio.get_running_loop(), compared))
        return True

    def close(self) -> None:
        """Begin no more."""
        self._thread.close()

    def _post(self, loop: asyncio.AbstractEventLoop, compared: Compared, future: Future[Comparison]) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody is left to hear it
            loop.call_soon_threadsafe(self._end, compared, future)

    def _end(self, compared: Compared, future: Future[Comparison]) -> None:
        self._pending -= 1
        compared(None if future.exception() is not None else future.result())
