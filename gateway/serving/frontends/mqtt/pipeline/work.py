"""Work on messages that takes longer than one pass of the event loop: decoding on threads, and what follows it.

Samples of a route keep their order: while one of them is worked on, later ones wait behind it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.tensor import Steps, finish
from gateway.common.timeouts import timeout
from gateway.serving.domain.ports import Decoding
from gateway.serving.frontends.mqtt.inbound.reading import INLINE_BYTES
from gateway.serving.frontends.mqtt.messages import Message
from gateway.serving.frontends.mqtt.outbound.delivery import Debt
from gateway.serving.frontends.mqtt.outbound.runs import expired, passed

INLINE_STEPS = 4
"""Steps of a smaller message that run on the event loop at once: its document, and 1,024 values of channels."""
MESSAGES_LIMIT = 16
"""Messages that are decoded on threads or wait behind them before the socket is left unread."""
MESSAGE_BYTES = 1_024
"""Memory of a message that waits, without its payload."""

CALM_S = 0.05
"""Longest time for which a sample behind others waits until no job waits: under steady load one always does."""

Later = Coroutine[Any, Any, None]
"""Work on a message that continues while other messages are received."""
End = Callable[[Callable[[], Any]], Later | None]
"""Function that completes a message; its argument returns what was decoded, or raises."""
Retry = Callable[[RequestError, int], float]
"""Function that returns the time before another attempt, from the refusal and the number of failures."""
T = TypeVar("T")


def begun(steps: Steps[T]) -> T | None:
    """Run up to INLINE_STEPS steps. Return their result, or None if steps are left for a thread."""
    try:
        for _ in range(INLINE_STEPS):
            next(steps)
    except StopIteration as done:
        value: T = done.value
        return value
    return None


@dataclass(slots=True)
class RouteWork:
    """Messages of one route that are worked on, and those behind them.

    `held`: its model is away, and the messages behind do not count: they are acknowledged, or the broker has few more.
    """

    workers: int = 0
    behind: deque[Message] = field(default_factory=deque)
    behind_bytes: int = 0
    held: bool = False


class RouteQueues:
    """Messages that are worked on, and samples that wait behind them, by route; "" stands for requests. Pure."""

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


def _none(_: Message) -> None:
    """Do nothing."""


class MessageWork:
    """Messages that are decoded on threads, and tasks that continue them. `changed`: their number changed."""

    def __init__(self, decoding: Callable[[], Decoding], retry_s: Retry, changed: Callable[[], None]) -> None:
        self._decoding, self._retry_s, self._changed = decoding, retry_s, changed
        self.queues = RouteQueues()
        self._tasks: dict[asyncio.Task[None], str] = {}
        """Tasks and their route."""
        self.calm = asyncio.Event()
        """Set while nothing waits for a run or for the outbox, so that the next sample behind others may begin."""

    @property
    def tasks(self) -> frozenset[asyncio.Task[None]]:
        """Return the tasks in progress."""
        return frozenset(self._tasks)

    async def cancel(self, *, held: bool = False) -> int:
        """Cancel all work, or that of routes whose model is away. Return the number of messages that are not finished.

        Their messages are in the journal, or the broker sends them again.
        """
        tasks = [task for task, route in self._tasks.items() if not held or self.queues.is_held(route)]
        abandoned = len(tasks) + (0 if held else self.queues.waiting)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        return abandoned

    def hold(self, route: str) -> list[Message]:
        """Let the samples of a route wait for their model. Return those that wait behind others already."""
        found = self.queues.hold(route)
        self._changed()
        return found

    def wait(self, route: str, message: Message) -> bool:
        """Let a sample wait if one of its route is being worked on. Return False if none is."""
        waits = self.queues.wait(route, message)
        if waits:
            self._changed()
        return waits

    def decode(self, debt: Debt, caller: str, steps: Steps[Any], end: End) -> Later | None:
        """Decode a message, and call `end`. Return the work that is left: a large message is decoded on a thread."""
        if len(debt.message.payload) <= INLINE_BYTES:
            return end(partial(finish, steps))
        return self.decode_apart(debt, caller, steps, end)

    async def decode_apart(self, debt: Debt, caller: str, steps: Steps[Any], end: End) -> None:
        """Decode a message on a thread, and call `end`."""
        decoding = asyncio.ensure_future(self._decoded(debt, caller, steps))
        try:
            await asyncio.wait({decoding})
        finally:
            decoding.cancel()
        later = end(decoding.result)
        if later is not None:
            await later

    def follow(self, later: Later | None, route: str = "", then: Callable[[Message], Later | None] = _none) -> None:
        """Begin the work that is left. Samples of `route` wait for it, and are passed to `then`, one by one."""
        if later is not None:
            self.queues.begin(route)
            task = asyncio.get_running_loop().create_task(self._finish(later, route, then))
            self._tasks[task] = route
            task.add_done_callback(self._tasks.pop)
            self._changed()

    async def _finish(self, later: Later, route: str, then: Callable[[Message], Later | None]) -> None:
        """Finish a message; then continue with the samples of its route that waited behind it.

        They begin while no job waits, or one in CALM_S: thousands of them leave room for messages of other routes.
        """
        try:
            await later
            while (behind := self.queues.take(route)) is not None:
                if (more := then(behind)) is not None:
                    await more
                self._changed()
                await asyncio.sleep(0)
                with suppress(TimeoutError):
                    async with timeout(CALM_S):
                        await self.calm.wait()
        finally:
            self.queues.end(route)
        self._changed()

    async def _decoded(self, debt: Debt, caller: str, steps: Steps[Any]) -> Any:
        """Decode on a thread. At QoS 1, try again until one can start or the message expires."""
        failures = 0
        while True:
            try:
                return await self._decoding().run(caller, steps, apart=True)
            except RequestError as refused:
                if refused.fault is not Fault.OVERLOADED or not debt.make_sure():
                    raise
                failures += 1
                if passed(debt.message.deadline_ns()):
                    raise expired() from None
                await asyncio.sleep(self._retry_s(refused, failures))
