"""Event loop that serves the sockets of one server within its own poll.

A callback of asyncio costs a tiny request more than reading its bytes does, and so does an epoll within another one.
"""

from __future__ import annotations

import asyncio
import select
import selectors
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, TypeVar

EVENTS_LIMIT = 256
"""Most descriptors that one poll reports."""
READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
T = TypeVar("T")


class DirectSelector(selectors.BaseSelector):
    """Selector that passes events of unknown descriptors to `serve`: (descriptor, events), some of which may be old.

    Their owner registers them in `epoll`.
    """

    def __init__(self) -> None:
        self.epoll = select.epoll()
        self.serve: Callable[[list[tuple[int, int]]], None] | None = None
        self._keys: dict[int, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """Implement `BaseSelector.register`."""
        descriptor = _descriptor(fileobj)
        if descriptor in self._keys:
            raise KeyError(f"{fileobj!r} is already registered")
        self.epoll.register(descriptor, _mask(events))
        key = self._keys[descriptor] = selectors.SelectorKey(fileobj, descriptor, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        """Implement `BaseSelector.unregister`: the descriptor may be closed already."""
        key = self._keys.pop(_descriptor(fileobj))
        with suppress(OSError):
            self.epoll.unregister(key.fd)
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """Implement `BaseSelector.modify`."""
        before = self._keys[_descriptor(fileobj)]
        if events != before.events:
            self.epoll.modify(before.fd, _mask(events))
        key = self._keys[before.fd] = selectors.SelectorKey(fileobj, before.fd, events, data)
        return key

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Implement `BaseSelector.select`: serve direct descriptors, and return the events of the others."""
        found = self.epoll.poll(-1 if timeout is None else max(timeout, 0), EVENTS_LIMIT)
        ready: list[tuple[selectors.SelectorKey, int]] = []
        direct: list[tuple[int, int]] = []
        for event in found:
            key = self._keys.get(event[0])
            if key is None:
                direct.append(event)
            else:
                mask = (WRITE if event[1] & ~select.EPOLLIN else 0) | (READ if event[1] & ~select.EPOLLOUT else 0)
                ready.append((key, mask & key.events))
        if direct and self.serve is not None:
            self.serve(direct)
        return ready

    def close(self) -> None:
        """Implement `BaseSelector.close`."""
        self.epoll.close()
        self._keys.clear()

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        """Implement `BaseSelector.get_map`: keys by descriptor."""
        return self._keys


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


def _descriptor(fileobj: Any) -> int:
    return fileobj if isinstance(fileobj, int) else int(fileobj.fileno())


def _mask(events: int) -> int:
    return (select.EPOLLIN if events & READ else 0) | (select.EPOLLOUT if events & WRITE else 0)
