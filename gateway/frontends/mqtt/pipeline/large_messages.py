"""Messages that a thread decodes, and the messages of their routes that wait behind them. Pure: no I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NoReturn, TypeVar

from gateway.domain.tensor import Steps
from gateway.frontends.mqtt.messages import Message

INLINE_STEPS = 4
"""Steps of a smaller message that run on the event loop at once: its document, and 1,024 values of channels."""
MESSAGES_LIMIT = 16
"""Messages that are decoded on threads or wait behind them before the socket is left unread."""
MESSAGE_BYTES = 1_024
"""Memory of a message that waits, without its payload."""

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


@dataclass(slots=True)
class RouteWork:
    """Messages of one route that are worked on, and those behind them.

    `held`: its model is away, and the messages behind do not count: they are acknowledged, or the broker has few more.
    """

    workers: int = 0
    behind: deque[Message] = field(default_factory=deque)
    behind_bytes: int = 0
    held: bool = False


class LargeMessages:
    """Messages that are worked on by route, and their number; "" stands for requests, which have no order."""

    def __init__(self) -> None:
        self._routes: dict[str, RouteWork] = {}

    @property
    def full(self) -> bool:
        """Return True if no more messages should be read."""
        routes = self._routes.values()
        return sum(one.workers + len(one.behind) for one in routes if not one.held) >= MESSAGES_LIMIT

    @property
    def waiting(self) -> int:
        """Return the number of samples that wait behind others."""
        return sum(len(one.behind) for one in self._routes.values())

    @property
    def held_bytes(self) -> int:
        """Return the size of the samples behind others whose model is away."""
        return sum(one.behind_bytes for one in self._routes.values() if one.held)

    def is_busy(self, route: str) -> bool:
        """Return True if a sample of a route is being worked on."""
        return route in self._routes

    def is_held(self, route: str) -> bool:
        """Return True if the samples of a route wait for their model."""
        return route in self._routes and self._routes[route].held

    def hold(self, route: str) -> list[Message]:
        """Let the samples of a route wait for their model. Return those that wait behind others already."""
        found = self._routes[route]
        behind = [] if found.held else list(found.behind)
        found.held = True
        return behind

    def begin(self, route: str) -> None:
        """Count a message that is worked on. Samples of its route wait from now on."""
        self._routes.setdefault(route, RouteWork()).workers += 1

    def wait(self, route: str, message: Message) -> bool:
        """Let a sample wait if one of its route is being worked on. Return False if none is."""
        found = self._routes.get(route)
        if found is None:
            return False
        found.behind.append(message)
        found.behind_bytes += MESSAGE_BYTES + len(message.payload)
        return True

    def take(self, route: str) -> Message | None:
        """Remove and return the sample that waits longest; None if there is none, or another one is worked on."""
        found = self._routes[route]
        if found.workers > 1 or not found.behind:
            return None
        message = found.behind.popleft()
        found.behind_bytes -= MESSAGE_BYTES + len(message.payload)
        return message

    def end(self, route: str) -> None:
        """Count the end of the work on a message."""
        found = self._routes[route]
        found.workers -= 1
        if not found.workers:
            del self._routes[route]
