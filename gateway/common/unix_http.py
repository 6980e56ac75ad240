"""HTTP/1.1 over a UNIX socket, for clients of a program on this machine."""

from __future__ import annotations

import http.client
import math
import socket
import struct
import time
from typing import Any


class UnixConnection(http.client.HTTPConnection):
    """HTTP connection to the socket at `path`. Raises OSError as connections over TCP do.

    `timeout_s`: timeout of connecting, of each send and of each read. `exchange_s`: time after connecting, and after
    the beginning of each further request, in which all reads must end (default: `timeout_s`).
    """

    def __init__(self, path: str, timeout_s: float, exchange_s: float | None = None) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path, self._timeout_s = path, timeout_s
        self._exchange_s = timeout_s if exchange_s is None else exchange_s

    def connect(self) -> None:
        """Connect to the path in place of a host."""
        self.sock = connected = _BoundedSocket(socket.AF_UNIX, socket.SOCK_STREAM)
        # A blocking socket, unlike one with settimeout: connect then waits while the backlog is full (unix(7)).
        patience = struct.pack("@ll", max(1, round(self._timeout_s)), 0)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, patience)
        connected.read_s, connected.deadline_s = self._timeout_s, time.monotonic() + self._exchange_s
        connected.connect(self._path)
        connected.settimeout(self._timeout_s)

    def putrequest(self, *arguments: Any, **options: Any) -> None:
        """Begin a request; on a connection that is open, its deadline begins as well."""
        if isinstance(self.sock, _BoundedSocket):
            self.sock.settimeout(self._timeout_s)
            self.sock.deadline_s = time.monotonic() + self._exchange_s
        super().putrequest(*arguments, **options)


class _BoundedSocket(socket.socket):
    """Socket with one deadline for all reads: a peer that sends single bytes gains no time."""

    read_s = deadline_s = math.inf

    def recv_into(self, *arguments: Any) -> int:
        """Read as any socket does. Raise TimeoutError after the deadline."""
        left_s = self.deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        self.settimeout(min(self.read_s, left_s))
        return super().recv_into(*arguments)
