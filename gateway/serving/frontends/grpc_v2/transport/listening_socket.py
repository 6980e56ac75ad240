"""Listening sockets of the gRPC server: accept new connections, a few at a time."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from typing import Any, Protocol

from gateway.common.wire.bounds import ACCEPTED_PER_PASS
from gateway.serving.frontends.grpc_v2.http2.reader import NOTHING

FULL_WAIT_S = 1.0
"""Pause of accepting when this process has no descriptor or memory left."""
_FULL = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

log = logging.getLogger(__name__)

Admit = Callable[[socket.socket, Any], "SocketProtocol | None"]
"""Function that makes the protocol of a connection from accept(2) and its peer's name. None: close it unread."""


class SocketProtocol(asyncio.BaseProtocol):
    """Protocol of a connection. `behind` counts the bytes that were passed to it and that it has not processed."""

    behind = 0
    share_key = ""
    """Caller in whose share the connection's work counts."""
    buffer = NOTHING
    """Memory into which bytes are read. Connections may share it: a read is processed before the next one."""

    def receive(self, data: memoryview) -> int:
        """Process bytes from the peer, or with NOTHING those that are `behind`. Return the work in nanoseconds."""
        raise NotImplementedError

    def socket_closed(self) -> None:
        """Note that the descriptor is free again. Called also if no connection was made."""


class ListenerWatch(Protocol):
    """Watch over the descriptors of listening sockets. Implemented by `Sockets`."""

    loop: asyncio.AbstractEventLoop

    def watch_listener(self, descriptor: int, listener: ListeningSocket) -> None:
        """Let a listener accept when connections wait."""

    def forget(self, descriptor: int) -> None:
        """Stop watching a descriptor."""


class ListeningSocket:
    """Listening socket. `connect` takes the result of accept(2)."""

    def __init__(
        self, sockets: ListenerWatch, listener: socket.socket, connect: Callable[[socket.socket, Any], Any]
    ) -> None:
        self._sockets, self._listener, self._connect = sockets, listener, connect
        self._open()

    def accept(self) -> None:
        """Accept connections that wait."""
        for _ in range(ACCEPTED_PER_PASS):
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
        """Accept no more connections."""
        self._sockets.forget(self._listener.fileno())
        self._listener.close()

    def _open(self) -> None:
        if self._listener.fileno() >= 0:
            self._sockets.watch_listener(self._listener.fileno(), self)

    def _wait(self, error: OSError) -> None:
        if error.errno not in _FULL:  # that connection's own (accept(2), "Error handling")
            log.warning("a connection could not be accepted: %s", error)
        else:
            log.error("connections cannot be accepted: %s; the next try is in %s s", error, FULL_WAIT_S)
            self._sockets.forget(self._listener.fileno())
            self._sockets.loop.call_later(FULL_WAIT_S, self._open)
