"""Comparison of two versions' answers on a thread: large outputs take too long for the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

from gateway.common.domain.tensor import Tensors
from gateway.serving.domain.sharing import Comparison, compare
from gateway.serving.engine.threads import Threads

Compared = Callable[[Comparison | None], None]
"""Callback for the result, on the event loop. None: these outputs cannot be compared."""


class Comparing:
    """Comparisons on one thread, at most `limit` at a time: each keeps the outputs of two runs in memory."""

    def __init__(self, limit: int) -> None:
        self._limit, self._pending = limit, 0
        self._thread = Threads(1, "compare")

    def begin(self, answers: Tensors, others: Tensors, rows: int, compared: Compared) -> bool:
        """Compare, then call `compared`. Return False if the comparison was not accepted.

        It is not accepted if too many comparisons are pending, no thread can start, or `close` was called.
        """
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
        """Accept no more comparisons."""
        self._thread.close()

    def _post(self, loop: asyncio.AbstractEventLoop, compared: Compared, future: Future[Comparison]) -> None:
        with suppress(RuntimeError):  # the event loop is closed: nothing can receive the result
            loop.call_soon_threadsafe(self._end, compared, future)

    def _end(self, compared: Compared, future: Future[Comparison]) -> None:
        self._pending -= 1
        compared(None if future.exception() is not None else future.result())
