"""One HTTP/1.1 connection: uvicorn's h11 protocol, with a time limit on everything that a peer can delay."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import cast

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from gateway.common.wire.asgi import Headers, Plain
from gateway.common.wire.bounds import LATE_S, PortBounds
from gateway.common.wire.connection_schedule import CallerQueue, ConnectionSchedule, ScheduledConnection
from gateway.common.wire.parser import Parser

BUDGET_NS = 2_000_000
"""Time for parsing connections in one pass of the event loop."""
READ_BYTES = 16 * 1024
"""Most bytes of one read: the event loop reads all ready sockets, one after the other."""
LARGE_READ_BYTES = 256 * 1024
"""Most bytes of the next read if the last one was mostly one piece of a body: asyncio's own bound."""
LARGE_PIECE_BYTES = 2048
"""Smallest size of such a piece."""
REQUEST_NS = 1_000_000
"""Estimated cost of a request for the application: a small inference takes that long."""


class ReadQueue:
    """Connections of one port that wait to be parsed: long parsing leaves the event loop free for other work."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.turns = ConnectionSchedule()
        self._until_ns = 0
        self._timed = self._called = False

    def has_time(self) -> bool:
        """Return True if a connection may be parsed in this pass of the event loop: none waits, and time is left."""
        if self.turns.waiting:
            return False
        now_ns = time.monotonic_ns()
        if not self._timed:
            self._timed, self._until_ns = True, now_ns + BUDGET_NS
            self._loop.call_soon(self._begin_turn)
        return now_ns < self._until_ns

    def wait(self, turn: ScheduledConnection) -> None:
        """Let a connection wait for its turn."""
        self.turns.add(turn)
        if not self._called:
            self._called = True
            self._loop.call_soon(self._serve)

    def _begin_turn(self) -> None:
        self._timed = False

    def _serve(self) -> None:
        self._called, left_ns = False, BUDGET_NS
        while self.turns.waiting and left_ns > 0:
            left_ns -= self.turns.serve()
        if self.turns.waiting and not self._called:
            self._called = True
            self._loop.call_soon(self._serve)


class PortState(ServerState):
    """State that the connections of a port share."""

    def __init__(self) -> None:
        super().__init__()
        self.reading = ReadQueue()


class Flow(FlowControl):
    """Flow control that stops reading while a connection is behind with the bytes that it has read."""

    def __init__(self, transport: asyncio.Transport, parser: Parser) -> None:
        super().__init__(transport)
        self._parser = parser

    def resume_reading(self) -> None:
        """Read again, unless the connection waits for its turn."""
        if not self._parser.behind:
            super().resume_reading()


class BoundedConnection(H11Protocol):
    """Connection with limits in addition to uvicorn's: on headers, on unread bodies and on answers that are not taken.

    A subclass decides in `connection_made` which peers are admitted, and how many.
    """

    share_key = ""
    """Caller in whose turns the connection is served; "": its address."""

    def __init__(self, config: Config, state: ServerState, bounds: PortBounds, plain: Plain) -> None:
        super().__init__(config, state, {})
        self.conn: Parser = Parser(bounds.max_header_bytes)
        self._bounds, self._plain, self._reading = bounds, plain, cast("PortState", state).reading
        self.work_ns, self.queued, self.caller = 0, False, CallerQueue()
        self.lost = asyncio.Event()
        self._refused = False
        self._waiting: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time limit for the first headers."""
        super().connection_made(transport)
        self._bound_reads(READ_BYTES)
        self.flow = Flow(transport, self.conn)
        self.caller = self._reading.turns.caller(self.share_key or (self.client[0] if self.client else ""))
        self._bound_waiting(self._bounds.header_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers and set `lost`, for code that waits for the end."""
        super().connection_lost(exc)
        self.lost.set()
        self.caller.connections -= 1
        self._bound_waiting(None)
        self._bound_writing(None)

    def data_received(self, data: bytes) -> None:
        """Feed the parser; an incomplete request has a deadline after that."""
        if not self._refused:
            if not self.conn.behind and self._reading.has_time():
                self.conn.begin_slice()
            super().data_received(data)
            large = self.conn.piece_bytes >= max(LARGE_PIECE_BYTES, len(data) // 2)
            self._bound_reads(LARGE_READ_BYTES if large else READ_BYTES)
            self._watch()

    def handle_events(self) -> None:
        """Process events of the parser for one slice; the rest waits for its turn."""
        super().handle_events()
        if self.conn.behind:
            self._reading.wait(self)

    @property
    def behind(self) -> bool:
        """Return True if the connection waits for its turn again."""
        return self.conn.behind and not self._refused and not self.lost.is_set()

    def serve(self) -> int:
        """Process the next slice. Return its cost in nanoseconds: its time, and the application's for a request."""
        if not self.behind:
            return 0
        began_ns = time.monotonic_ns()
        self.conn.begin_slice()
        self.handle_events()
        self._watch()
        if self._reads():
            self.flow.resume_reading()
        return time.monotonic_ns() - began_ns + REQUEST_NS * self.conn.began

    def on_response_complete(self) -> None:
        """Limit the time for the rest of a body whose request was answered before: it is read and discarded."""
        super().on_response_complete()
        if self._draining():
            self._bound_waiting(self._bounds.body_timeout_s)

    def pause_writing(self) -> None:
        """Start the time limit for an answer that the peer does not take."""
        super().pause_writing()
        self._bound_writing(self._bounds.write_timeout_s)

    def resume_writing(self) -> None:
        """Stop that time limit: the peer takes its answer again."""
        super().resume_writing()
        self._bound_writing(None)

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that h11 cannot parse, or headers above the limit."""
        limit = self._bounds.max_header_bytes
        problem = f"this is no HTTP/1.1 request, or its headers exceed {limit} bytes: {self.conn.problem}"
        self.turn_away(400, problem)

    def turn_away(self, status: int, message: str, headers: Headers = ()) -> None:
        """Answer in place of the application, ignore further input, and close. `self.transport` must be set."""
        self._refused = True
        answer = self._plain(status, message, headers)
        lines = [f"HTTP/1.1 {answer.status} Refused", f"content-type: {answer.media_type}", "connection: close"]
        lines += [f"content-length: {len(answer.body)}", *(f"{name}: {value}" for name, value in answer.headers)]
        self.transport.write("\r\n".join([*lines, "", ""]).encode() + answer.body)
        self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """Ignore an Upgrade that is not offered (RFC 9110, 7.8), without a warning."""

    def _reads(self) -> bool:
        """Return True if only its turn kept the connection from reading."""
        full = self.cycle is not None and len(self.cycle.body) > HIGH_WATER_LIMIT
        return not (self.conn.behind or self.conn.paused or full or self._refused or self.transport.is_closing())

    def _bound_reads(self, size: int) -> None:
        """Bound the size of asyncio's reads without TLS; `handshakes` bounds it with TLS."""
        vars(self.transport)["max_size"] = size

    def _watch(self) -> None:
        if self.conn.their_state is h11.IDLE:
            limit_s: float | None = self._bounds.header_timeout_s
        else:
            limit_s = self._bounds.body_timeout_s if self._draining() else None
        # A running deadline is kept: more bytes must not extend it.
        if limit_s is None or self._waiting is None:
            self._bound_waiting(limit_s)

    def _draining(self) -> bool:
        return self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY

    def _bound_waiting(self, limit_s: float | None) -> None:
        self._waiting = self._rearm(self._waiting, limit_s, self._bound_waiting)

    def _bound_writing(self, limit_s: float | None) -> None:
        self._writing = self._rearm(self._writing, limit_s, self._bound_writing)

    def _rearm(
        self, timer: asyncio.TimerHandle | None, limit_s: float | None, bound: Callable[[float], None]
    ) -> asyncio.TimerHandle | None:
        if timer is not None:
            timer.cancel()
        if limit_s is None:
            return None
        due_s = self.loop.time() + limit_s
        return self.loop.call_at(due_s, self._expire, bound, limit_s, due_s)

    def _expire(self, bound: Callable[[float], None], limit_s: float, due_s: float) -> None:
        """End the connection, or grant the time again if not the peer is late, but this process.

        A peer that floods a body that is discarded keeps the parser behind itself: it gets no more time by that.
        """
        if (self.behind and not self._draining()) or self.loop.time() > due_s + LATE_S:
            bound(limit_s)
        else:
            self.transport.abort()
