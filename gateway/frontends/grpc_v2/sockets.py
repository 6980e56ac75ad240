"""The gRPC server's sockets, accepted, read and written here rather than by asyncio's transports.

All of them stand behind one epoll of their own, which the loop watches as a single descriptor: what is ready is dealt
with in one callback, where asyncio would schedule one per socket. `secure` puts TLS on a wire.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

READY_LIMIT = 256
"""Sockets that one turn of the loop deals with; the others have the next."""
BUDGET_NS = 1_000_000
"""How long sockets are dealt with before the loop looks at everything else that it has to do."""
ACCEPT_LIMIT = 64
"""Connections that one turn accepts."""
PIECES_LIMIT = 64
"""Pieces that one system call writes (IOV_MAX is 1024)."""
HIGH_BYTES, LOW_BYTES = 64 * 1024, 16 * 1024
"""Bytes that wait for the peer when it is told to be slow, and when it is told that it has caught up: asyncio's own."""
LINGER_S = 1.0
"""How long a connection that we closed is read and not looked at: what came unread would make the kernel reset it, and
the peer might never see why it was closed (RFC 9112, section 9.6)."""
AT_ONCE = struct.pack("ii", 1, 0)
"""SO_LINGER for no time at all: the kernel drops what was not taken, and resets the connection."""
FULL_WAIT_S = 1.0
"""How long nothing is accepted where this process has no descriptor or memory left."""
_FULL = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_IN, _OUT, _GONE = select.EPOLLIN, select.EPOLLOUT, select.EPOLLHUP | select.EPOLLERR

log = logging.getLogger(__name__)


class _Watched(Protocol):
    def ready(self, events: int) -> None: ...
    def abort(self) -> None: ...


class Sockets:
    """`link` makes the protocol of a new connection; `before` and `after` are called around the reading of all that are
    ready. At most `most` connections are open, in whatever state; one more is closed unheard."""

    def __init__(
        self,
        link: Callable[[], asyncio.BufferedProtocol],
        before: Callable[[], None],
        after: Callable[[], None],
        *,
        most: int,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._link, self._before, self._after, self._most = link, before, after, most
        self._epoll = select.epoll()
        self._watched: dict[int, _Watched] = {}
        self._listeners: list[_Listener] = []
        self.loop.add_reader(self._epoll.fileno(), self._ready)

    def listen(self, listener: socket.socket, wire: Callable[..., Wire]) -> None:
        """Accept what comes there; `wire` makes a connection of the arguments that Wire takes."""

        def connect(connected: socket.socket, name: Any) -> None:
            if len(self._watched) - len(self._listeners) < self._most:
                wire(self, connected, name, self._link())
            else:
                connected.close()

        self._listeners.append(_Listener(self, listener, connect))

    def stop_listening(self) -> None:
        """Accept no more."""
        for listener in self._listeners:
            listener.abort()
        self._listeners.clear()

    def close(self) -> None:
        """Watch nothing any more; connections that are still open end at once."""
        self.stop_listening()
        for watched in list(self._watched.values()):
            watched.abort()
        self.loop.remove_reader(self._epoll.fileno())
        self._epoll.close()

    def watch(self, descriptor: int, watched: _Watched, events: int) -> None:
        """Tell `watched` what happens to a descriptor."""
        self._epoll.register(descriptor, events)
        self._watched[descriptor] = watched

    def change(self, descriptor: int, events: int) -> None:
        """Tell it of other events."""
        self._epoll.modify(descriptor, events)

    def forget(self, descriptor: int) -> None:
        """Tell it nothing more."""
        if self._watched.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def _ready(self) -> None:
        """Deal with what is ready, and with what became so meanwhile, for a while: asking again costs less than
        a turn of the loop."""
        until_ns = time.monotonic_ns() + BUDGET_NS
        while ready := self._epoll.poll(0, READY_LIMIT):
            self._read(ready)
            if time.monotonic_ns() >= until_ns:
                break

    def _read(self, ready: Iterable[tuple[int, int]]) -> None:
        self._before()
        try:
            for descriptor, events in ready:
                watched = self._watched.get(descriptor)
                if watched is not None:  # else one before it closed it
                    watched.ready(events)
        finally:
            self._after()


class _Listener:
    def __init__(self, sockets: Sockets, listener: socket.socket, connect: Callable[[socket.socket, Any], Any]) -> None:
        self._sockets, self._listener, self._connect = sockets, listener, connect
        self._open()

    def ready(self, events: int) -> None:
        """Somebody wants to connect."""
        del events
        for _ in range(ACCEPT_LIMIT):
            try:
                connected, name = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._wait(error)
                return
            try:
                self._connect(connected, name)
            except OSError as error:  # no epoll takes it, or it is gone already
                self._sockets.forget(connected.fileno())
                connected.close()
                self._wait(error)
                return

    def abort(self) -> None:
        """Let nobody in any more."""
        self._sockets.forget(self._listener.fileno())
        self._listener.close()

    def _open(self) -> None:
        if self._listener.fileno() >= 0:
            self._sockets.watch(self._listener.fileno(), self, _IN)

    def _wait(self, error: OSError) -> None:
        if error.errno not in _FULL:  # that connection's own (accept(2), "Error handling")
            log.warning("a connection could not be accepted: %s", error)
        else:
            log.error("connections cannot be accepted: %s; the next try is in %s s", error, FULL_WAIT_S)
            self._sockets.forget(self._listener.fileno())
            self._sockets.loop.call_later(FULL_WAIT_S, self._open)


class Wire(asyncio.Transport):
    """One connection, as a protocol sees a transport. What `write` cannot send at once waits here, uncopied."""

    def __init__(self, sockets: Sockets, connected: socket.socket, name: Any, link: asyncio.BufferedProtocol) -> None:
        super().__init__()
        connected.setblocking(False)
        if connected.family != socket.AF_UNIX:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sockets, self._socket, self._name, self._link = sockets, connected, name, link
        self._descriptor = connected.fileno()
        self._buffer = memoryview(link.get_buffer(-1))
        self._waiting: deque[memoryview] = deque()
        self._waiting_bytes = 0
        self._reads, self._held = True, False
        self._closing = self._lingering = self._gone = False
        sockets.watch(self._descriptor, self, _IN)
        self._begin()

    # ---- what happens to the socket --------------------------------------------------------------------------------
    def ready(self, events: int) -> None:
        """It can be read or written, or it is gone."""
        try:
            if events & _OUT:
                self._send_waiting()
            if not self._gone and events & (_IN | _GONE):
                self._receive()
        except Exception as error:  # the boundary: a defect that one connection meets ends that connection
            log.exception("a connection is closed because of a defect of ours")
            self._end(error)

    def _receive(self) -> None:
        try:
            size = self._socket.recv_into(self._buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(error)
            return
        if self._lingering and size:
            return
        if not size:
            self._end(None)
            return
        self._took(size)

    def _send_waiting(self) -> None:
        try:
            sent = self._socket.sendmsg(
                [self._waiting[index] for index in range(min(PIECES_LIMIT, len(self._waiting)))]
            )
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(error)
            return
        self._drop(sent)
        if not self._waiting:
            self._watch()
            if self._closing:
                self._linger()
        if self._held and self._waiting_bytes <= LOW_BYTES:
            self._held = False
            self._link.resume_writing()

    def _drop(self, sent: int) -> None:
        self._waiting_bytes -= sent
        while sent:
            first = self._waiting.popleft()
            if sent < len(first):
                self._waiting.appendleft(first[sent:])
                return
            sent -= len(first)

    # ---- what a protocol asks of a transport ------------------------------------------------------------------------
    def write(self, data: Any) -> None:
        """Send, or keep what cannot be sent yet."""
        if self._waiting or self._closing:
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
        """As `write`, of several pieces by one system call."""
        idle = not self._waiting
        self._keep(list_of_data)
        if idle and self._waiting:
            self._send_waiting()
            if self._waiting:
                self._watch()

    def get_write_buffer_size(self) -> int:
        """Bytes that wait for the peer."""
        return self._waiting_bytes

    def pause_reading(self) -> None:
        """Read nothing until `resume_reading`."""
        self._reads = False
        self._watch()

    def resume_reading(self) -> None:
        """Read again."""
        self._reads = True
        self._watch()

    def close(self) -> None:
        """Send what waits, then end the connection."""
        if not self._closing:
            self._closing = True
            if not self._waiting:
                self._linger()

    def abort(self) -> None:
        """End the connection at once, also what the kernel still holds of it: a peer that reads nothing would leave
        megabytes there for minutes."""
        if not self._gone:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
        self._end(None)

    def is_closing(self) -> bool:
        """Whether it was told to end."""
        return self._closing or self._gone

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """The `socket` and its `peername`."""
        return {"socket": self._socket, "peername": self._name}.get(name, default)

    # ---- within ----------------------------------------------------------------------------------------------------
    def _keep(self, pieces: Iterable[Any]) -> None:
        if self._closing:
            return
        for piece in pieces:
            view = memoryview(piece)
            if view:
                self._waiting.append(view)
                self._waiting_bytes += len(view)
        if self._waiting_bytes > HIGH_BYTES and not self._held:
            self._held = True
            self._link.pause_writing()

    def _watch(self) -> None:
        if not self._gone:
            reads = _IN if self._reads or self._lingering else 0
            self._sockets.change(self._descriptor, reads | (_OUT if self._waiting else 0))

    def _linger(self) -> None:
        """All was sent: say so, and let the peer finish its sentence."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            self._end(error)
            return
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
        self._waiting_bytes = 0
        self._lost(error)

    # ---- what TLS does otherwise -----------------------------------------------------------------------------------
    def _begin(self) -> None:
        self._link.connection_made(self)

    def _took(self, size: int) -> None:
        """The buffer holds `size` bytes from the socket."""
        self._link.buffer_updated(size)

    def _lost(self, error: Exception | None) -> None:
        self._sockets.loop.call_soon(self._link.connection_lost, error)
