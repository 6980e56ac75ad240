"""Timeouts of asyncio as of Python 3.11: the error is the built-in TimeoutError, and a timeout can be moved."""

from __future__ import annotations

import asyncio
import sys

if sys.version_info >= (3, 11):
    from asyncio import Timeout, timeout, timeout_at, wait_for
else:
    from collections.abc import Awaitable
    from types import TracebackType
    from typing import TypeVar

    T = TypeVar("T")

    class Timeout:
        """Context manager that cancels its block at a time of the loop's clock and raises TimeoutError."""

        def __init__(self, when: float | None) -> None:
            self._when, self._expired = when, False
            self._timer: asyncio.TimerHandle | None = None

        async def __aenter__(self) -> Timeout:
            self._task = asyncio.current_task()
            self.reschedule(self._when)
            return self

        async def __aexit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
        ) -> None:
            self.reschedule(None)
            if self._expired and kind is asyncio.CancelledError:
                raise TimeoutError from error

        def expired(self) -> bool:
            return self._expired

        def reschedule(self, when: float | None) -> None:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = None if when is None else asyncio.get_running_loop().call_at(when, self._expire)

        def _expire(self) -> None:
            self._expired = True
            if self._task is not None:
                self._task.cancel()

    def timeout_at(when: float | None) -> Timeout:
        return Timeout(when)

    def timeout(delay: float | None) -> Timeout:
        return Timeout(None if delay is None else asyncio.get_running_loop().time() + delay)

    async def wait_for(awaitable: Awaitable[T], limit_s: float | None) -> T:
        async with timeout(limit_s):
            return await awaitable


__all__ = ("Timeout", "timeout", "timeout_at", "wait_for")
