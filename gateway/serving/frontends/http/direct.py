"""Requests that are served without h11 and ASGI: those that come alone and at once, with a small and plain head.

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

from gateway.common.wire.connection import LARGE_READ_BYTES
from gateway.common.wire.parser import MOST_FIELDS
from gateway.serving.frontends.http.connection import HttpConnection

HEAD_BYTES = 4096
"""Largest head of a direct request."""
BODY_BYTES = 64 * 1024
"""Largest body that waits for its end in as many bytes as what arrives early. A larger one is counted as it comes."""
UPLOAD_BYTES = 16 * 1024 * 1024
"""Largest body of a direct request."""
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

    def open(self, connection: DirectConnection, route: Any, size: int) -> IncomingRequest | None:
        """Return the exchange of a request with a large body that is still to come; None: it takes the usual way.

        A request that would be refused takes the usual way, where it is refused and counted.
        """


class Exchange(Protocol):
    """A direct request in progress."""

    def cancel(self) -> None:
        """Stop because the peer closed the connection. A call after the response has no effect."""

    def cut_off(self) -> None:
        """Respond at once: the server stops."""


class IncomingRequest(Exchange, Protocol):
    """A direct request whose body is coming. `cancel` releases what it holds."""

    body: bytearray
    """Part of the body that has come: memory that is only announced is not allocated."""
    size: int
    """Size of the whole body."""

    def hold(self, size: int) -> bool:
        """Count `size` more bytes that have come. Return False if they would be refused."""

    def begin_received(self) -> None:
        """Serve the request: its body is complete."""


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
            or not (length.isdigit() and len(length) <= len(str(UPLOAD_BYTES)))
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
        self._upload: IncomingRequest | None = None
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
        elif self._upload is not None:
            self._fill(self._upload, data)
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
        for under_way in (self._exchange, self._upload):
            if under_way is not None:
                under_way.cancel()
        self._exchange = self._upload = None
        self._tell_over()

    def shutdown(self) -> None:
        """Close, after the answer if one is due, also to a request whose body is still coming."""
        if self._exchange is None and self._early:
            self.conn.begin_slice()
            self._proceed(b"", split=False, turn=True)
        if self._upload is not None:
            self._leave(self._upload, b"")
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
        return self._exchange is None and self._upload is None and not self._early and super().idle

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
        if not begin or len(data) > end or (len(data) < end and not split):
            return False
        if end - begin > BODY_BYTES:
            return self._receive(data, begin, end - begin)
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

    def _receive(self, data: bytes, begin: int, size: int) -> bool:
        """Begin to receive a large body, of which `data` has what follows `begin`. Return False for the usual way."""
        upload = self._direct.open(self, self._head.route, size) if size <= UPLOAD_BYTES else None
        if upload is None:
            return False
        self._unset_keepalive_if_required()
        self._bound_waiting(None)
        self._bound_reads(LARGE_READ_BYTES)
        self._set_split(SPLIT_S)
        self._upload = upload
        self._fill(upload, data[begin:])
        return True

    def _fill(self, upload: IncomingRequest, data: bytes) -> None:
        """Receive the next part of a large body. What follows it waits."""
        part = data[: upload.size - len(upload.body)]
        if not upload.hold(len(part)):
            self._leave(upload, data)
            return
        upload.body += part
        if len(upload.body) == upload.size:
            self._early = data[len(part) :]
            self._set_split(None)
            self._upload, self._exchange = None, upload
            upload.begin_received()

    def _leave(self, upload: IncomingRequest, data: bytes) -> None:
        """Let a request whose body is coming take the usual way, with its limits."""
        received = self._head.text + upload.body + data
        upload.cancel()
        self._set_split(None)
        self._upload, self._unparsed = None, False
        super().data_received(received)

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
        if self._upload is not None:
            self._leave(self._upload, b"")
        else:
            self._proceed(b"", split=False)

    def _cut_off(self, over: asyncio.Future[None]) -> None:
        if over.cancelled() and self._exchange is not None:
            self._exchange.cut_off()

    def _tell_over(self) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_result(None)
