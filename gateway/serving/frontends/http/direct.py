"""Requests that are served without h11 and ASGI: those that come alone and complete, with a small and plain head.

A pattern of RFC 9112's grammar, stricter than h11's, matches such a head. If the application knows its target, its body
goes to the application at once. Whatever differs takes the usual way.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import h11

from gateway.common.wire.parser import MOST_FIELDS
from gateway.serving.frontends.http.connection import HttpConnection

HEAD_BYTES = 4096
"""Largest head of a direct request."""
BODY_BYTES = 64 * 1024
"""Largest body of a direct request: it waits for its end in as many bytes as what arrives early."""
SPLIT_S = 1.0
"""Time for the rest of a request whose head came alone, as many clients send it; then it takes the usual way."""
EARLY_BYTES = 64 * 1024
"""Bytes that may arrive while a request is answered, before the connection is read no more."""
_HEAD = re.compile(rb"([A-Z]+) ([!-~]+) HTTP/1\.1\r\n((?:[!#$%&'+*.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*\r\n)+)\r\n")
"""Method, target and fields (RFC 9112, sections 3 and 5); each character is read once."""
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
class RequestHead:
    """Head of a request, up to its empty line. `route`: what the application returned; None: it takes the usual way."""

    text: bytes = b""
    length: int = 0
    route: Any | None = None

    @classmethod
    def of(cls, text: bytes, direct: Direct) -> RequestHead:
        """Read a head."""
        found = _HEAD.fullmatch(text)
        lines = found[3].split(b"\r\n")[:-1] if found else []
        fields = {name.lower(): value.strip(b" \t") for name, _, value in (line.partition(b":") for line in lines)}
        length = fields.get(b"content-length", b"")
        if (
            found is None
            or not len(lines) == len(fields) <= MOST_FIELDS
            or not (length.isdigit() and len(length) <= len(str(BODY_BYTES)))
            or b"host" not in fields
            or any(name in fields for name in _USUAL)
            or fields.get(b"connection", b"keep-alive").lower() != b"keep-alive"
        ):
            return cls(text)
        return cls(text, int(length), direct.route(found[1].decode(), found[2].decode(), fields))


class DirectConnection(HttpConnection):
    """Connection whose requests are direct if possible."""

    def __init__(self, direct: Direct, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._direct = direct
        self._head = RequestHead()
        self._unparsed = False
        """True if the parser has seen nothing since it was found idle."""
        self._others = getattr(self.loop, "_ready", (None,))
        """Callbacks left in this pass of the event loop; without asyncio's queue of them, there is always one."""
        self._early = b""
        """Bytes that wait: the beginning of a request, or what came while one was answered."""
        self._exchange: Exchange | None = None
        self._split: asyncio.TimerHandle | None = None
        self._keeping: asyncio.TimerHandle | None = None
        self._used_s = 0.0
        self._over: asyncio.Future[None] | None = None

    # ---- asyncio ---------------------------------------------------------------------------------------------------
    def data_received(self, data: bytes) -> None:
        """Serve a direct request, or feed the parser."""
        if self._exchange is not None:
            self._early += data
            if len(self._early) > EARLY_BYTES:
                self.flow.pause_reading()
        elif self._early:
            self._proceed(data, split=self._split is not None)
        elif not self._take(data, split=True):
            self._unparsed = False
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
        """Close, after the answer if one is due, also to a request whose body is still coming."""
        if self._exchange is None and self._early:
            self.conn.begin_slice()
            self._proceed(b"", split=False, turn=True)
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

    @property
    def alone(self) -> bool:
        """Return True if no other callback and no other connection waits in this pass of the event loop."""
        return not (self._others or self._reading.turns.waiting)

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
        if not self._take(data, split=split, turn=turn):
            self._set_split(None)
            self._unparsed = False
            super().data_received(data)
        if self._reads():
            self.flow.resume_reading()

    def _take(self, data: bytes, *, split: bool, turn: bool = False) -> bool:
        """Serve the request in `data`. Return False if it takes the usual way.

        `split`: its rest may come later. `turn`: it is the connection's turn.
        """
        if self._refused or self.flow.write_paused or not (self._unparsed or self._parser_is_idle()):
            return False
        begin, end = self._known(data)
        if not begin or end - begin > BODY_BYTES or len(data) > end or (len(data) < end and not split):
            return False
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()
        if len(data) < end:
            self._early = data
            self._bound_reads(HEAD_BYTES + BODY_BYTES)  # the next one of this size comes in one read
            if self._split is None:  # a running deadline is kept: more bytes must not extend it
                self._set_split(SPLIT_S)
            return True
        if self._split is not None:
            self._set_split(None)
        if turn or self.alone or self._reading.has_time():
            if self._waiting is not None:
                self._bound_waiting(None)
            self._exchange = self._direct.begin(self, self._head.route, memoryview(data)[begin:end])
        else:
            self._early = data
            self._reading.wait(self)
        return True

    def _parser_is_idle(self) -> bool:
        conn = self.conn
        idle = conn.our_state is h11.IDLE and conn.their_state is h11.IDLE
        self._unparsed = idle and not (conn.behind or conn.trailing_data[0])  # bytes of a request
        return self._unparsed

    def _known(self, data: bytes) -> tuple[int, int]:
        """Return begin and end of the body of a direct request, or (0, 0)."""
        head = self._head
        if head.route is not None and data.startswith(head.text):
            return len(head.text), len(head.text) + head.length
        end = data.find(b"\r\n\r\n", 0, min(HEAD_BYTES, self._bounds.max_header_bytes)) + 4
        if end < 4:
            return 0, 0
        if data[:end] != self._head.text:
            self._head = RequestHead.of(data[:end], self._direct)
        return (end, end + self._head.length) if self._head.route is not None else (0, 0)

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
        self._split = None
        self._proceed(b"", split=False)

    def _cut_off(self, over: asyncio.Future[None]) -> None:
        if over.cancelled() and self._exchange is not None:
            self._exchange.cut_off()

    def _tell_over(self) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_result(None)
