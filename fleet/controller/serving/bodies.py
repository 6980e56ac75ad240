"""Limits of request bodies: size, duration, and memory of all requests together."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from fleet.controller.problems import ProblemError
from fleet.controller.serving.asgi import Application, Message, Receive, Scope, Send, header_values, peer_of
from fleet.controller.serving.settings import ServingSettings
from gateway.common.domain.errors import Fault, RequestError
from gateway.common.timeouts import timeout_at


@dataclass(frozen=True, slots=True)
class BodyBound:
    """Limit of one route. Compressed bodies count in their compressed size.

    `streamed`: the route keeps no more than a piece of the body in memory, so that the body does not count as buffered.
    """

    limit_bytes: int
    timeout_s: float
    streamed: bool = False


class Bodies:
    """ASGI middleware. `bound` returns the limit of a request. Errors arise where the application reads the body."""

    def __init__(self, app: Application, bound: Callable[[Scope], BodyBound], settings: ServingSettings) -> None:
        self._app, self._bound, self._settings = app, bound, settings
        self.buffered_bytes = 0
        self._callers: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request. Raise RequestError TOO_LARGE or OVERLOADED, ProblemError 408."""
        caller = peer_of(scope).caller
        body = _Body(partial(self._take, caller), self._bound(scope), receive)
        body.check_length(header_values(scope, "content-length"))
        try:
            await self._app(scope, body.receive, send)
        finally:
            self.buffered_bytes -= body.held_bytes
            self._callers[caller] -= body.held_bytes
            if not self._callers[caller]:
                del self._callers[caller]

    def _take(self, caller: str, count_bytes: int) -> None:
        """Reserve memory for a request until its end. Raise RequestError OVERLOADED."""
        settings, theirs = self._settings, self._callers[caller] + count_bytes
        if self.buffered_bytes + count_bytes > settings.max_buffered_bytes:
            problem = f"requests in progress hold {self.buffered_bytes} bytes already; try again later"
            raise RequestError(Fault.OVERLOADED, problem)
        if theirs > settings.max_buffered_bytes_per_caller:
            problem = f"your requests in progress would hold {theirs} bytes; send fewer at a time"
            raise RequestError(Fault.OVERLOADED, problem)
        self.buffered_bytes += count_bytes
        self._callers[caller] = theirs


class _Body:
    def __init__(self, take: Callable[[int], None], bound: BodyBound, receive: Receive) -> None:
        self._take, self._bound, self._receive = take, bound, receive
        self._ends_at_s: float | None = None
        self._whole = False
        self._received_bytes = 0
        self.held_bytes = 0

    def check_length(self, lengths: list[str]) -> None:
        """Refuse a body whose Content-Length exceeds the limit, without reading it."""
        if lengths and lengths[0].isdecimal() and int(lengths[0][:20]) > self._bound.limit_bytes:
            raise self._too_large()

    async def receive(self) -> Message:
        """Receive a message of the body. After the body only a disconnect can follow, which has no timeout."""
        if self._whole:
            return await self._receive()
        if self._ends_at_s is None:
            self._ends_at_s = asyncio.get_running_loop().time() + self._bound.timeout_s
        try:
            async with timeout_at(self._ends_at_s):
                message = await self._receive()
        except TimeoutError:
            problem = f"the body took longer than {self._bound.timeout_s:g} s; send it faster, or less"
            raise ProblemError(408, problem, headers=(("connection", "close"),)) from None
        size = len(message.get("body", b""))
        self._whole = not message.get("more_body", False)
        if self._received_bytes + size > self._bound.limit_bytes:
            raise self._too_large()
        self._received_bytes += size
        if not self._bound.streamed:
            self._take(size)
            self.held_bytes += size
        return message

    def _too_large(self) -> RequestError:
        return RequestError(
            Fault.TOO_LARGE, f"the request body is larger than {self._bound.limit_bytes} bytes; send less"
        )
