"""Event loop that serves the sockets of one server within its own poll.

A callback of asyncio costs a tiny request more than reading its bytes does, and so does an epoll within another one.
"""

from __future__ import annotations

import asyncio
import select
import selectors
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

EVENTS_LIMIT = 256
"""Most descriptors that one poll reports."""
T = TypeVar("T")


class DirectSelector(selectors.EpollSelector):
    """Selector that passes the events of descriptors in `epoll` to `serve`, unless they are `resting`.

    The descriptors of asyncio are watched through one in the same epoll: while the others rest, they cost nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.epoll, self.own = select.epoll(), self.fileno()
        self.epoll.register(self.own, select.EPOLLIN)
        self.resting = False
        self.serve: Callable[[Sequence[tuple[int, int]]], None] | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Implement `BaseSelector.select`: serve direct descriptors, and return the events of the others."""
        if self.resting or self.serve is None:
            return super().select(timeout)
        found = self.epoll.poll(-1 if timeout is None else max(timeout, 0), EVENTS_LIMIT)
        direct = [event for event in found if event[0] != self.own]
        ready = super().select(0) if len(direct) < len(found) else []
        if direct:
            self.serve(direct)
        return ready

    def close(self) -> None:
        """Implement `BaseSelector.close`."""
        self.epoll.close()
        super().close()


class DirectLoop(asyncio.SelectorEventLoop):
    """Event loop with a `DirectSelector`."""

    def __init__(self) -> None:
        self.direct = DirectSelector()
        super().__init__(self.direct)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a program's main coroutine as `asyncio.run` does, on a `DirectLoop` from Python 3.11 on."""
    if sys.version_info >= (3, 11):
        with asyncio.Runner(loop_factory=DirectLoop) as runner:
            return runner.run(main)
    else:
        return asyncio.run(main)
