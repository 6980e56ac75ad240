"""Connection of the load over HTTP/1.1: one request in flight, the same bytes each time."""

from __future__ import annotations

import re
import socket

READ_BYTES = 262_144
REASON_BYTES = 300
"""Most of a refusal that an error repeats."""
_LENGTH = re.compile(rb"\r\ncontent-length:\s*([0-9]{1,12})\r\n", re.IGNORECASE)
_STATUS = re.compile(rb"HTTP/1\.[01] ([0-9]{3})")


class LoadError(Exception):
    """A request of the load failed: what came instead of the answer, and what to do."""


class HttpLoadConnection:
    """Connection to `address`; `request` is sent each time. `limit_bytes`: largest answer."""

    def __init__(self, address: tuple[str, int], request: bytes, timeout_s: float, limit_bytes: int) -> None:
        self.socket = socket.create_connection(address, timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._request, self._limit_bytes = request, limit_bytes
        self._content = bytearray()
        self._wanted_bytes, self._status = 0, b""

    def send(self) -> None:
        """Send the request."""
        self._content.clear()
        self._wanted_bytes = 0
        self.socket.sendall(self._request)

    def receive(self) -> bool:
        """Read what has come; return True if the answer is complete. Raise LoadError."""
        piece = self.socket.recv(READ_BYTES)
        if not piece:
            raise LoadError("the gateway closed the connection; see its log")
        self._content += piece
        if not self._wanted_bytes:
            self._wanted_bytes = self._head()
        if not 0 < self._wanted_bytes <= len(self._content):
            return False
        if self._status != b"200":
            reason = self.content()[:REASON_BYTES].decode("utf-8", "replace")
            raise LoadError(f"the gateway answered {self._status.decode()}: {reason}")
        return True

    def content(self) -> bytes:
        """Return the last answer's body."""
        return bytes(self._content).partition(b"\r\n\r\n")[2]

    def exchange(self) -> bytes:
        """Send the request once; return the body of the answer. Raise LoadError, OSError."""
        try:
            self.send()
            while not self.receive():
                pass
        except TimeoutError:
            raise LoadError("no answer came in time; see the gateway's log") from None
        return self.content()

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def _head(self) -> int:
        """Return the size of the whole answer; 0 if its head is not complete. Raise LoadError."""
        end = self._content.find(b"\r\n\r\n")
        if end < 0:
            return 0
        head = bytes(self._content[: end + 2])
        length, status = _LENGTH.search(head), _STATUS.match(head)
        if not length or not status or int(length[1]) > self._limit_bytes:
            raise LoadError(f"the answer has no length that is read here: {head[:200]!r}")
        self._status = status[1]
        return end + 4 + int(length[1])
