"""How much of a request's body comes in, how long it may take, and how much all requests may hold at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from fleet.problems import ProblemError
from fleet.serving.asgi import Application, Message, Receive, Scope, Send, header_values
from gateway.domain.errors import Fault, RequestError


@dataclass(frozen=True, slots=True)
class BodyBound:
    """Of one route; compressed bodies count as they travel."""

    limit_bytes: int
    timeout_s: float


class Bodies:
    """ASGI: `bound` says what holds for a request. Errors arise where the application reads the body."""

    def __init__(self, app: Application, bound: Callable[[Scope], BodyBound], buffered_limit_bytes: int) -> None:
        self._app, self._bound, self._buffered_limit_bytes = app, bound, buffered_limit_bytes
        self.buffered_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises RequestError TOO_LARGE or OVERLOADED, ProblemError 408."""
        body = _Body(self, self._bound(scope), receive)
        body.check_length(header_values(scope, "content-length"))
        try:
            await self._app(scope, body.receive, send)
        finally:
            self.buffered_bytes -= body.taken_bytes

    def take(self, count_bytes: int) -> None:
        """Count what a request holds until its end. Raises RequestError OVERLOADED."""
        if self.buffered_bytes + count_bytes > self._buffered_limit_bytes:
            problem = f"requests in progress hold {self.buffered_bytes} bytes already; try again later"
            raise RequestError(Fault.OVERLOADED, problem)
        self.buffered_bytes += count_bytes


class _Body:
    def __init__(self, bodies: Bodies, bound: BodyBound, receive: Receive) -> None:
        self._bodies, self._bound, self._receive = bodies, bound, receive
        self._ends_at_s: float | None = None
        self._whole = False
        self.taken_bytes = 0

    def check_length(self, lengths: list[str]) -> None:
        """What is too large by its own words is not read at all."""
        if lengths and lengths[0].isdecimal() and int(lengths[0][:20]) > self._bound.limit_bytes:
            raise self._too_large()

    async def receive(self) -> Message:
        """As ASGI's; once the body is whole, what comes is that the peer left, and waiting for it has no end."""
        if self._whole:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._deadline_s()):
                message = await self._receive()
        except TimeoutError:
            problem = f"the body took longer than {self._bound.timeout_s:g} s; send it faster, or less"
            raise ProblemError(408, problem, headers=(("connection", "close"),)) from None
        self._count(message)
        return message

    def _deadline_s(self) -> float:
        if self._ends_at_s is None:
            self._ends_at_s = asyncio.get_running_loop().time() + self._bound.timeout_s
        return self._ends_at_s

    def _count(self, message: Message) -> None:
        size = len(message.get("body", b""))
        self._whole = not message.get("more_body", False)
        if self.taken_bytes + size > self._bound.limit_bytes:
            raise self._too_large()
        self._bodies.take(size)
        self.taken_bytes += size

    def _too_large(self) -> RequestError:
        return RequestError(
            Fault.TOO_LARGE, f"the request body is larger than {self._bound.limit_bytes} bytes; send less"
        )
