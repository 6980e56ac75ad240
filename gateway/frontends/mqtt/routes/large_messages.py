"""Messages that a thread decodes, and the messages of their routes that wait behind them. Pure: no I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NoReturn, TypeVar

from gateway.domain.tensor import Steps
from gateway.frontends.mqtt.messages import Message

INLINE_BYTES = 32 * 1024
"""Largest payload that is decoded on the event loop at once: 1.3 ms of JSON numbers."""
INLINE_STEPS = 4
"""Steps of a smaller message that run on the event loop at once: its document, and 1,024 values of channels."""
MESSAGES_LIMIT = 16
"""Messages that are decoded on threads or wait behind them before the socket is left unread."""

T = TypeVar("T")


def begun(steps: Steps[T]) -> Callable[[], T] | None:
    """Run up to INLINE_STEPS steps. Return a function with their result, or None if steps are left for a thread.

    The function raises what a step has raised.
    """
    try:
        for _ in range(INLINE_STEPS):
            next(steps)
    except StopIteration as done:
        value: T = done.value
        return lambda: value
    except Exception as error:  # noqa: BLE001  raised again where the message is refused
        return partial(_raise, error)
    return None


def _raise(error: Exception) -> NoReturn:
    raise error


class LargeMessages:
    """Count of large messages by route; "" stands for requests, which have no order."""

    def __init__(self) -> None:
        self._behind: dict[str, deque[Message]] = {}
        self._count = 0

    @property
    def full(self) -> bool:
        """Return True if no more messages should be read."""
        return self._count >= MESSAGES_LIMIT

    @property
    def waiting(self) -> int:
        """Return the number of samples that wait behind others."""
        return sum(map(len, self._behind.values()))

    def is_busy(self, route: str) -> bool:
        """Return True if a sample of a route is being decoded."""
        return route in self._behind

    def begin(self, route: str) -> None:
        """Count a message that a thread decodes. Samples of its route wait from now on."""
        self._count += 1
        if route:
            self._behind.setdefault(route, deque())

    def wait(self, route: str, message: Message) -> bool:
        """Let a sample wait if one of its route is being decoded. Return False if none is."""
        behind = self._behind.get(route)
        if behind is None:
            return False
        self._count += 1
        behind.append(message)
        return True

    def end(self, route: str) -> deque[Message]:
        """Count the end of decoding. Return the samples that waited behind it, in order."""
        behind = self._behind.pop(route, deque())
        self._count -= 1 + len(behind)
        return behind
