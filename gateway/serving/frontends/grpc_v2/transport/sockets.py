"""Sockets of the gRPC server, accepted, read and written here rather than by asyncio's transports.

All of them are in one epoll: that of a `DirectLoop`, or one that the event loop watches as a single descriptor. One
call handles all ready sockets, where asyncio would schedule a callback for each. `tls_transport` adds TLS.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gateway.common.wire.connection_schedule import ConnectionSchedule
from gateway.common.wire.direct_loop import DirectLoop, DirectSelector
from gateway.serving.frontends.grpc_v2.http2.reader import NOTHING
from gateway.serving.frontends.grpc_v2.transport.listening_socket import Admit, ListeningSocket, SocketProtocol

PIECES_LIMIT = 64
"""Most pieces that one system call writes (IOV_MAX is 1024)."""
READY_LIMIT = 256
"""Sockets handled in one pass of the event loop; the others wait for the next."""
BUDGET_NS = 2_000_000
"""Work of a pass (http2/work.py) before the event loop handles everything else, such as timers ..."""
LIMIT_NS = 8_000_000
"""... and its time: work after the protocol is not charged, and a busy machine takes longer for everything."""
READ_BYTES = 16 * 1024
"""Bytes of one read. After bytes that cost little, as of a large message, the next read takes the whole buffer."""
CHEAP_NS_PER_BYTE = 2
"""Most work per byte of cheap bytes: DATA in frames of 2 KiB and more."""
KEPT_BYTES = 16 * 1024 * 1024
"""Bytes of all connections that were read and wait for their turn; above it every read is small."""
REST_TURNS = 3
"""Passes without sockets after one whose time was too short: HTTP requests, timers and threads need several."""
HIGH_BYTES, LOW_BYTES = 64 * 1024, 16 * 1024
"""Bytes that wait for the peer when the protocol must pause, and when it may resume: asyncio's own values."""
LINGERING_LIMIT = 256
"""Connections that linger at one time; further ones end at once."""
LINGER_S = 1.0
"""Time for which the input of a closed connection is read and discarded.

Unread input would make the kernel reset it, and the peer might never get the reason (RFC 9112, section 9.6).
"""
AT_ONCE = struct.pack("ii", 1, 0)
"""SO_LINGER with no time: the kernel drops the bytes that were not taken, and resets the connection."""
_IN, _OUT, _GONE, _HALF = select.EPOLLIN, select.EPOLLOUT, select.EPOLLHUP | select.EPOLLERR, select.EPOLLRDHUP

log = logging.getLogger(__name__)


class Sockets:
    """All sockets of the server. `before` and `after` are called around the reading of all ready ones."""

    def __init__(self, before: Callable[[], None], after: Callable[[], None]) -> None:
        self.loop = asyncio.get_running_loop()
        self.lingering = 0
        """Connections closed by this side whose peer may still send."""
        self._before, self._after = before, after
        self._direct: DirectSelector | None = None
        if isinstance(self.loop, DirectLoop) and self.loop.direct.serve is None:  # else another server has it
            self._direct = self.loop.direct
        self._epoll = select.epoll() if self._direct is None else self._direct.epoll
        self._transports: dict[int, SocketTransport] = {}
        self._accepting: dict[int, ListeningSocket] = {}
        self._listeners: list[ListeningSocket] = []
        self.turns = ConnectionSchedule()
        self.kept_bytes = 0
        """Bytes of all connections that were read and wait for their turn."""
        self._called, self._rest = False, 0
        self._left_ns = self._until_ns = 0
        self._open = True
        if self._direct is not None:
            self._direct.serve = self._serve_direct
        else:
            self.loop.add_reader(self._epoll.fileno(), self._ready)

    def listen(self, listener: socket.socket, transport: Callable[..., SocketTransport], admit: Admit) -> None:
        """Accept connections that `admit` admits. `transport` makes a `SocketTransport` of its arguments."""

        def connect(connected: socket.socket, name: Any) -> None:
            protocol = admit(connected, name)
            if protocol is None:
                connected.close()
                return
            try:
                transport(self, connected, name, protocol)
            except BaseException:
                protocol.socket_closed()
                raise

        self._listeners.append(ListeningSocket(self, listener, connect))

    def stop_listening(self) -> None:
        """Accept no more connections."""
        for listener in self._listeners:
            listener.abort()
        self._listeners.clear()

    def close(self) -> None:
        """Stop watching; connections that are still open end at once."""
        self.stop_listening()
        for transport in list(self._transports.values()):
            transport.abort()
        self._open = False
        if self._direct is not None:
            self._direct.serve, self._direct.resting = None, False
        else:
            self.loop.remove_reader(self._epoll.fileno())
            self._epoll.close()

    def watch(self, descriptor: int, transport: SocketTransport, events: int) -> None:
        """Call `transport` for events of a descriptor."""
        self._epoll.register(descriptor, events)
        self._transports[descriptor] = transport

    def watch_listener(self, descriptor: int, listener: ListeningSocket) -> None:
        """Let a listener accept when connections wait."""
        self._epoll.register(descriptor, _IN)
        self._accepting[descriptor] = listener

    def change(self, descriptor: int, events: int) -> None:
        """Change the events of a descriptor."""
        self._epoll.modify(descriptor, events)

    def forget(self, descriptor: int) -> None:
        """Stop watching a descriptor."""
        if (self._transports.pop(descriptor, None) or self._accepting.pop(descriptor, None)) is not None:
            self._epoll.unregister(descriptor)

    def call(self) -> None:
        """Serve waiting connections in the next pass of the event loop."""
        if not self._called:
            self._called = True
            if self._direct is not None:
                self._direct.resting = True
            self.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._called = False
        if self._direct is not None:
            self._direct.resting = False
        if self._rest and self.turns.waiting:
            self._rest -= 1
            self.call()
        elif self._open:
            self._ready()

    def _serve_direct(self, ready: Sequence[tuple[int, int]]) -> None:
        """Handle ready sockets within the event loop's poll, which must not raise."""
        try:
            if not self._called:
                self._ready(ready)
        except Exception as error:  # noqa: BLE001  as the event loop does with its callbacks
            self.loop.call_exception_handler({"message": "serving sockets failed", "exception": error})

    def _ready(self, ready: Sequence[tuple[int, int]] = ()) -> None:
        """Handle ready sockets, and those that become ready, for a limited time: a poll costs less than a pass.

        Connections for which the time is too short wait, and so do all others then.
        """
        if self._called:
            return
        turns, self._left_ns, self._until_ns = self.turns, BUDGET_NS, time.monotonic_ns() + LIMIT_NS
        ready = ready or self._poll()
        while ready or turns.waiting:
            self._before()
            try:
                self._serve(ready)
            finally:
                self._after()
            # One socket: its peer has yet to read the answer.
            if self._left_ns <= 0 or time.monotonic_ns() >= self._until_ns or len(ready) == 1:
                break
            ready = self._poll()
        if turns.waiting:
            self._rest = REST_TURNS
            self.call()

    def _poll(self) -> Sequence[tuple[int, int]]:
        """Return the ready sockets of this server: others may be in the same epoll."""
        ready = self._epoll.poll(0, READY_LIMIT)
        return ready if self._direct is None else [each for each in ready if each[0] != self._direct.own]

    def _has_time(self) -> bool:
        return self._left_ns > 0 and time.monotonic_ns() < self._until_ns

    def _serve(self, ready: Iterable[tuple[int, int]]) -> None:
        """Serve ready sockets in any order as long as the pass has time, by fair turns after that."""
        turns = self.turns
        waiting = bool(turns.waiting)
        for descriptor, events in ready:
            transport = self._transports.get(descriptor)
            if transport is None:
                if (listener := self._accepting.get(descriptor)) is not None:  # else an earlier one closed it
                    listener.accept()
                continue
            if events != _IN and not transport.ready(events):
                continue
            if waiting:
                turns.add(transport)
                continue
            self._left_ns -= transport.serve()
            if transport.kept_bytes and transport.behind:
                turns.add(transport)
            waiting = self._left_ns <= 0 or time.monotonic_ns() >= self._until_ns
        while turns.waiting:
            self._left_ns -= turns.serve()
            if not self._has_time():
                break


class SendQueue:
    """Bytes that wait for a peer to take them, uncopied. `size` is the sum of their bytes."""

    __slots__ = ("pieces", "size")

    def __init__(self) -> None:
        self.pieces: deque[memoryview] = deque()
        self.size = 0

    def __bool__(self) -> bool:
        return bool(self.pieces)

    def add(self, pieces: Iterable[Any]) -> None:
        """Add pieces at the end of the queue."""
        for piece in pieces:
            view = memoryview(piece)
            if view:
                self.pieces.append(view)
                self.size += len(view)

    def clear(self) -> None:
        """Drop everything."""
        self.pieces.clear()
        self.size = 0

    def send(self, connected: socket.socket) -> None:
        """Send what the socket accepts at once. Raises OSError."""
        pieces = self.pieces
        sent = connected.sendmsg([pieces[index] for index in range(min(PIECES_LIMIT, len(pieces)))])
        self.size -= sent
        while sent:
            first = pieces.popleft()
            if sent < len(first):
                pieces.appendleft(first[sent:])
                return
            sent -= len(first)


class SocketTransport(asyncio.Transport):
    """One connection as an asyncio transport. Bytes that `write` cannot send at once wait here, uncopied."""

    def __init__(self, sockets: Sockets, connected: socket.socket, name: Any, protocol: SocketProtocol) -> None:
        super().__init__()
        connected.setblocking(False)
        if connected.family != socket.AF_UNIX:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sockets, self._socket, self._name, self._protocol = sockets, connected, name, protocol
        self._descriptor = connected.fileno()
        self._buffer = protocol.buffer
        self._small, self._cheap, self.kept_bytes = self._buffer[:READ_BYTES], False, 0
        self.work_ns, self.queued = 0, False
        self._waiting = SendQueue()
        self._reads, self._held = True, False
        self._closing = self._lingering = self._gone = False
        sockets.watch(self._descriptor, self, _IN | _HALF)
        self.caller = sockets.turns.caller(protocol.share_key)
        self._begin()

    # ---- events of the socket --------------------------------------------------------------------------------------
    def ready(self, events: int) -> bool:
        """Send waiting bytes. Return True if there is something to read.

        Input that waits for its turn is dropped once the peer has left: it takes no answer.
        """
        try:
            if events & _OUT and self._waiting:
                self._send_waiting()
            left = events & (_GONE | _HALF if self.queued else 0 if self._reads else _GONE)
            if left and not self._gone:
                code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                self._end(OSError(code, os.strerror(code)) if code else None)
        except Exception as error:  # noqa: BLE001  as in `serve`
            self._fail(error)
        return bool(events & (_IN | _GONE)) and not self._gone

    @property
    def behind(self) -> bool:
        """Return True if received bytes wait to be processed."""
        return self.kept_bytes > 0 and self._reads and not self._closing

    def serve(self) -> int:
        """Read, or process the bytes that were read, for a slice of work. Return the work in nanoseconds."""
        if self._gone or not (self._reads or self._lingering):
            return 0
        work_ns = 0
        try:
            work_ns = self._process(NOTHING) if self.kept_bytes and self.behind else self._receive()
        except Exception as error:  # noqa: BLE001  the boundary: a defect of one connection ends that connection
            self._fail(error)
        behind = self._protocol.behind
        if behind != self.kept_bytes and not self._gone:
            self._sockets.kept_bytes += behind - self.kept_bytes
            self.kept_bytes = behind
        return work_ns

    def _fail(self, error: Exception) -> None:
        log.error("a connection is closed because of a defect of ours", exc_info=error)
        self._end(error)

    def _receive(self) -> int:
        large = self._lingering or (self._cheap and self._sockets.kept_bytes < KEPT_BYTES)
        try:
            size = self._socket.recv_into(self._buffer if large else self._small)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            self._end(error)
            return 0
        if self._lingering or not size:
            if not size:
                self._end(None)
            return 0
        work_ns = self._process(self._buffer[:size])
        self._cheap = work_ns <= size * CHEAP_NS_PER_BYTE
        return work_ns

    def _send_waiting(self) -> None:
        try:
            self._waiting.send(self._socket)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(error)
            return
        if not self._waiting:
            self._watch()
            if self._closing:
                self._linger()
        if self._held and self._waiting.size <= LOW_BYTES:
            self._held = False
            self._protocol.resume_writing()

    # ---- interface of an asyncio transport --------------------------------------------------------------------------
    def write(self, data: Any) -> None:
        """Send, or keep bytes that cannot be sent yet."""
        if self._waiting.pieces or self._closing:
            self._keep((data,))
            return
        try:
            sent = self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._end(error)
            return
        if sent < len(data):
            self._keep((memoryview(data)[sent:],))
            self._watch()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        """Send several pieces as `write` does, by one system call."""
        idle = not self._waiting
        self._keep(list_of_data)
        if idle and self._waiting:
            self._send_waiting()
            if self._waiting:
                self._watch()

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that wait for the peer."""
        return self._waiting.size

    def pause_reading(self) -> None:
        """Read nothing until `resume_reading`."""
        self._reads = False
        self._watch()

    def resume_reading(self) -> None:
        """Read again."""
        self._reads = True
        self._watch()
        if self.behind:
            self._sockets.turns.add(self)
            self._sockets.call()

    def close(self) -> None:
        """Send the waiting bytes, then end the connection."""
        if not self._closing:
            self._closing = True
            if not self._waiting:
                self._linger()

    def abort(self) -> None:
        """End the connection at once, with its data in the kernel.

        A peer that reads nothing would keep megabytes there for minutes.
        """
        if not self._gone:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
        self._end(None)

    def is_closing(self) -> bool:
        """Return True if the connection is ending."""
        return self._closing or self._gone

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the `socket` or its `peername`."""
        return {"socket": self._socket, "peername": self._name}.get(name, default)

    # ---- internal --------------------------------------------------------------------------------------------------
    def _keep(self, pieces: Iterable[Any]) -> None:
        if self._closing:
            return
        self._waiting.add(pieces)
        if self._waiting.size > HIGH_BYTES and not self._held:
            self._held = True
            self._protocol.pause_writing()

    def _watch(self) -> None:
        if not self._gone:
            reads = _IN | _HALF if self._reads or self._lingering else 0
            self._sockets.change(self._descriptor, reads | (_OUT if self._waiting else 0))

    def _linger(self) -> None:
        """Shut down sending after the last byte, and let the peer finish its own."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            self._end(error)
            return
        if self._sockets.lingering >= LINGERING_LIMIT:
            self._end(None)
            return
        self._sockets.lingering += 1
        self._lingering = True
        self._watch()
        self._sockets.loop.call_later(LINGER_S, self._end, None)

    def _end(self, error: Exception | None) -> None:
        if self._gone:
            return
        self._gone = self._closing = True
        self._sockets.forget(self._descriptor)
        self._socket.close()
        self._waiting.clear()
        self.caller.connections -= 1
        self._sockets.kept_bytes -= self.kept_bytes
        self.kept_bytes = 0
        self._sockets.lingering -= self._lingering
        self._protocol.socket_closed()
        self._lost(error)

    # ---- parts that differ with TLS --------------------------------------------------------------------------------
    def _begin(self) -> None:
        self._protocol.connection_made(self)

    def _process(self, data: memoryview) -> int:
        """Pass on bytes that were read, or NOTHING to continue with earlier ones. Return the work in nanoseconds."""
        return self._protocol.receive(data)

    def _lost(self, error: Exception | None) -> None:
        self._sockets.loop.call_soon(self._protocol.connection_lost, error)
