"""Event loop that serves the sockets of one server within its own poll.

A callback of asyncio costs a tiny request more than reading its bytes does, and so does an epoll within another one.
"""

from __future__ import annotations

import asyncio
import os
import select
import selectors
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

EVENTS_LIMIT = 256
"""Most descriptors that one poll reports."""
_READ, _WRITE = ~select.EPOLLOUT, ~select.EPOLLIN
T = TypeVar("T")


class DirectSelector(selectors.EpollSelector):
    """Selector that passes the events of `descriptors` to `serve`. Their owner registers them in `epoll`."""

    def __init__(self) -> None:
        super().__init__()
        self.epoll = select.epoll.fromfd(os.dup(self.fileno()))
        self.descriptors: set[int] = set()
        self.serve: Callable[[Sequence[tuple[int, int]]], None] | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Implement `BaseSelector.select`: serve direct descriptors, and return the events of the others."""
        found, descriptors = self.epoll.poll(-1 if timeout is None else max(timeout, 0), EVENTS_LIMIT), self.descriptors
        direct = [event for event in found if event[0] in descriptors]
        ready = []
        if len(direct) < len(found):
            for descriptor, events in found:
                if descriptor not in descriptors:
                    mask = (selectors.EVENT_WRITE if events & _WRITE else 0) | (
                        selectors.EVENT_READ if events & _READ else 0
                    )
                    key = self.get_key(descriptor)
                    ready.append((key, mask & key.events))
        if direct and self.serve is not None:
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
