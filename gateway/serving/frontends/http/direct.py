"""Requests that are served without h11 and ASGI: small, complete, and with a head as the connection sent it before.

The first request of a connection takes the usual way. If the second one has the same head, except for its length, the
parser examines that head once more, and the application decides whether such requests are direct. From then on a
comparison of bytes replaces parsing. Whatever differs takes the usual way.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import h11

from gateway.common.wire.parser import Parser
from gateway.serving.frontends.http.connection import HttpConnection

HEAD_BYTES = 4096
"""Largest head of a direct request."""
BODY_BYTES = 16 * 1024
"""Largest body of a direct request."""
SPLIT_S = 1.0
"""Time for the rest of a request whose head came alone, as many clients send it; then it takes the usual way."""
EARLY_BYTES = 64 * 1024
"""Bytes that may arrive while a request is answered, before the connection is read no more."""
_LENGTH = re.compile(rb"\r\ncontent-length: ?([0-9]{1,5})\r\n", re.IGNORECASE)
_USUAL = (b"transfer-encoding", b"expect", b"upgrade", b"content-encoding")
"""Fields that change how a request is read or answered."""


class Direct(Protocol):
    """Part of an application that serves direct requests."""

    def route(self, method: str, target: str, fields: dict[bytes, bytes]) -> Any | None:
        """Return what `begin` needs of a head; None if such requests are not direct."""

    def begin(self, connection: DirectConnection, route: Any, body: memoryview) -> Exchange | None:
        """Serve a request. `connection.respond` is called once, unless the exchange is cancelled before.

        Return None if it was called already.
        """


class Exchange(Protocol):
    """A direct request in progress."""

    def cancel(self) -> None:
        """Stop because the peer closed the connection. A call after the response has no effect."""

    def cut_off(self) -> None:
        """Respond at once: the server stops."""


@dataclass(frozen=True, slots=True)
class HeadPattern:
    """A head, in two parts around the digits of its Content-Length."""

    before: bytes
    after: bytes

    @classmethod
    def of(cls, data: bytes) -> HeadPattern | None:
        """Return the pattern of the head at the beginning of `data`; None if it cannot be direct."""
        end = data.find(b"\r\n\r\n", 0, HEAD_BYTES) + 4
        found = _LENGTH.search(data, 0, end) if end > 3 else None
        if found is None or data[:end].lower().count(b"\r\ncontent-length") > 1:
            return None
        return cls(data[: found.start(1)], data[found.end(1) : end])

    def body(self, data: bytes) -> tuple[int, int]:
        """Return begin and end of the body if `data` begins with such a head, else (0, 0)."""
        digits = len(self.before)
        end = data.find(b"\r", digits, digits + 6)
        length = data[digits:end]
        alike = data.startswith(self.before) and end > digits and data.startswith(self.after, end)
        if not (alike and length.isdigit()):
            return 0, 0
        begin = end + len(self.after)
        return begin, begin + int(length)

    def route(self, direct: Direct, max_header_bytes: int) -> Any | None:
        """Parse the head, and return its route."""
        parser = Parser(max_header_bytes)
        parser.receive_data(self.before + b"1" + self.after)
        parser.begin_slice()
        try:
            request = parser.next_event()
        except h11.RemoteProtocolError:
            return None
        if not isinstance(request, h11.Request) or request.http_version != b"1.1":
            return None
        fields = dict(request.headers)
        single = len(fields) == len(list(request.headers)) and not any(name in fields for name in _USUAL)
        if not single or fields.get(b"connection", b"keep-alive").lower() != b"keep-alive":
            return None
        return direct.route(request.method.decode(), request.target.decode(), fields)


class DirectConnection(HttpConnection):
    """Connection whose requests are direct if possible."""

    def __init__(self, direct: Direct, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._direct = direct
        self._pattern: HeadPattern | None = None
        self._route: Any | None = None
        self._routed = False
        self._early = b""
        """Bytes that wait: the beginning of a request, or what came while one was answered."""
        self._exchange: Exchange | None = None
        self._split: asyncio.TimerHandle | None = None
        self._keeping: asyncio.TimerHandle | None = None
        self._used_s = 0.0
        self.admission: object = None
        """State that the application keeps for the connection's caller."""
        self._over: asyncio.Future[None] | None = None

    # ---- asyncio ---------------------------------------------------------------------------------------------------
    def data_received(self, data: bytes) -> None:
        """Serve a direct request, or feed the parser."""
        if self._exchange is not None:
            self._early += data
            if len(self._early) > EARLY_BYTES:
                self.flow.pause_reading()
        elif self._early:
            self._proceed(data, split=False)
        elif not self._take(data, split=True):
            super().data_received(data)

    def on_response_complete(self) -> None:
        """Note the time of an answer that took the usual way."""
        super().on_response_complete()
        self._used_s = self.loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the request."""
        super().connection_lost(exc)
        self._set_split(None)
        if self._keeping is not None:
            self._keeping.cancel()
        if self._exchange is not None:
            self._exchange.cancel()
            self._exchange = None
        self._tell_over()

    def shutdown(self) -> None:
        """Close, after the answer if one is due."""
        if self._exchange is None:
            super().shutdown()
            return
        self._over = self.loop.create_future()
        self._over.add_done_callback(self._cut_off)
        self._over.add_done_callback(self.tasks.discard)
        self.tasks.add(self._over)  # type: ignore[arg-type]  # a stop waits for it, and cancels it as a task

    # ---- turns and places ------------------------------------------------------------------------------------------
    @property
    def behind(self) -> bool:
        """Return True if the connection waits for its turn again."""
        waits = bool(self._early) and self._exchange is None and self._split is None
        return (waits and not self.lost.is_set()) or super().behind

    def serve(self) -> int:
        """Serve the request that waits, or process the next slice. Return its cost in nanoseconds."""
        if not self._early or self._exchange is not None or self.lost.is_set():
            return super().serve()
        began_ns = time.monotonic_ns()
        self._proceed(b"", split=True, turn=True)
        return time.monotonic_ns() - began_ns

    @property
    def idle(self) -> bool:
        """Return True if no request is under way, and the peer had time to begin one."""
        return self._exchange is None and not self._early and super().idle

    # ---- interface of the application --------------------------------------------------------------------------------
    def respond(self, head: bytes, content: bytes) -> None:
        """Answer the request. `head`: status line and fields, each with its CRLF."""
        self.transport.write(head + self._last_field() + content)
        self._responded()

    async def respond_in_pieces(self, head: bytes, pieces: Iterable[bytes]) -> None:
        """Answer the request as `respond` does, each piece after the peer took most of those before it."""
        self.transport.write(head + self._last_field())
        for piece in pieces:
            self.transport.write(piece)
            await self.flow.drain()
        self._responded()

    # ---- internal --------------------------------------------------------------------------------------------------
    def _proceed(self, data: bytes, *, split: bool, turn: bool = False) -> None:
        """Continue with the bytes that wait and `data`."""
        data, self._early = self._early + data, b""
        self._set_split(None)
        if not self._take(data, split=split, turn=turn):
            super().data_received(data)
        if self._reads():
            self.flow.resume_reading()

    def _take(self, data: bytes, *, split: bool, turn: bool = False) -> bool:
        """Serve the request in `data`. Return False if it takes the usual way.

        `split`: its rest may come later. `turn`: it is the connection's turn.
        """
        conn = self.conn
        if (
            self._refused
            or self.flow.write_paused
            or conn.our_state is not h11.IDLE
            or conn.their_state is not h11.IDLE
        ):
            return False
        if conn.behind or conn.trailing_data[0]:  # the parser holds bytes of a request
            return False
        begin, end = self._known(data)
        if not begin or end - begin > BODY_BYTES or len(data) > end or (len(data) < end and not split):
            return False
        if len(data) < end:
            self._early = data
            self._set_split(SPLIT_S)
        elif turn or self._reading.has_time():
            self._unset_keepalive_if_required()
            self._bound_waiting(None)
            self._exchange = self._direct.begin(self, self._route, memoryview(data)[begin:end])
        else:
            self._early = data
            self._reading.wait(self)
        return True

    def _known(self, data: bytes) -> tuple[int, int]:
        """Return begin and end of the body of a direct request, or (0, 0). Remember the head of another one."""
        place = self._pattern.body(data) if self._pattern else (0, 0)
        if not place[0]:
            if (pattern := HeadPattern.of(data)) is not None:
                self._pattern, self._route, self._routed = pattern, None, False
            return place
        if not self._routed and self._pattern:
            self._route, self._routed = self._pattern.route(self._direct, self._bounds.max_header_bytes), True
        return place if self._route is not None else (0, 0)

    def _last_field(self) -> bytes:
        return b"connection: close\r\n\r\n" if self._over else b"\r\n"

    def _responded(self) -> None:
        self._exchange, self._used_s = None, self.loop.time()
        if self.lost.is_set():
            return
        if self._over:
            self.transport.close()
            self._tell_over()
            return
        if self._keeping is None:
            self._keep_until(self._used_s + self.timeout_keep_alive)
        if self._early:
            self._reading.wait(self)

    def _keep_until(self, at_s: float) -> None:
        self._keeping = self.loop.call_at(at_s, self._check_kept)

    def _check_kept(self) -> None:
        """Close a connection that was idle for too long. One timer serves all its requests."""
        self._keeping = None
        ends_s = self._used_s + self.timeout_keep_alive
        if ends_s > self.loop.time():
            self._keep_until(ends_s)
        elif self.idle:
            self.timeout_keep_alive_handler()

    def _set_split(self, limit_s: float | None) -> None:
        if self._split is not None:
            self._split.cancel()
        self._split = None if limit_s is None else self.loop.call_later(limit_s, self._end_split)

    def _end_split(self) -> None:
        """Let a request whose rest did not come take the usual way, with its time limits."""
        self._proceed(b"", split=False)

    def _cut_off(self, over: asyncio.Future[None]) -> None:
        if over.cancelled() and self._exchange is not None:
            self._exchange.cut_off()

    def _tell_over(self) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_result(None)
