"""Scripted, misbehaving HTTP server: one behaviour per request, in order; the last one repeats.

It writes to a plain socket, so nothing corrects a behaviour. It records requests and the bytes of response bodies.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field


@dataclass
class Exchange:
    """One request and its response. `body_bytes` counts what `body` sent."""

    path: str
    headers: dict[str, str]
    _connection: socket.socket
    _stopping: threading.Event
    body_bytes: int = 0
    keep_alive: bool = False

    def head(self, status: str, *lines: str) -> None:
        """Send status line and header lines."""
        self.raw("\r\n".join((f"HTTP/1.1 {status}", *lines, "", "")).encode())

    def body(self, content: bytes) -> None:
        """Send bytes of the body."""
        self.raw(content)
        self.body_bytes += len(content)

    def raw(self, content: bytes) -> None:
        """Send any bytes."""
        self._connection.sendall(content)

    def rest(self, seconds: float) -> bool:
        """Wait. Return False once the server stops."""
        return not self._stopping.wait(seconds)

    def range_start(self) -> int:
        """Return the start of the requested range, 0 without one."""
        asked = self.headers.get("range", "")
        return int(asked.removeprefix("bytes=").partition("-")[0]) if asked else 0


Behaviour = Callable[[Exchange], None]


def serve(content: bytes, *lines: str, ranges: bool = True) -> Behaviour:
    """Respond correctly: with the whole content, or with the requested range."""

    def behave(exchange: Exchange) -> None:
        start = exchange.range_start() if ranges else 0
        span = [f"Content-Range: bytes {start}-{len(content) - 1}/{len(content)}"] if start else []
        status = "206 Partial Content" if start else "200 OK"
        exchange.head(status, f"Content-Length: {len(content) - start}", *span, *lines)
        exchange.body(content[start:])
        exchange.keep_alive = True

    return behave


def answer(status: str, *lines: str, body: bytes = b"") -> Behaviour:
    """Respond with this status and body."""

    def behave(exchange: Exchange) -> None:
        exchange.head(status, f"Content-Length: {len(body)}", *lines)
        exchange.body(body)
        exchange.keep_alive = True

    return behave


def say(content: bytes) -> Behaviour:
    """Send these bytes, then close the connection."""
    return lambda exchange: exchange.raw(content)


def cut(content: bytes, count: int) -> Behaviour:
    """Send `count` bytes of the requested content, then close the connection."""

    def behave(exchange: Exchange) -> None:
        start = exchange.range_start()
        span = [f"Content-Range: bytes {start}-{len(content) - 1}/{len(content)}"] if start else []
        exchange.head("206 Partial Content" if start else "200 OK", f"Content-Length: {len(content) - start}", *span)
        exchange.body(content[start : start + count])

    return behave


def trickle(head: bytes, every_s: float) -> Behaviour:
    """Send `head`, then one byte per interval for ever."""

    def behave(exchange: Exchange) -> None:
        exchange.raw(head)
        while exchange.rest(every_s):
            exchange.body(b"x")

    return behave


def endless(head: bytes, piece: bytes = b"x" * 65_536) -> Behaviour:
    """Send `head`, then bytes as fast as possible for ever."""

    def behave(exchange: Exchange) -> None:
        exchange.raw(head)
        while exchange.rest(0):
            exchange.body(piece)

    return behave


def silence(exchange: Exchange) -> None:
    """Send nothing until the server stops."""
    while exchange.rest(60):
        pass


@dataclass
class BadServer:
    """Misbehaving server. `script` may be changed between requests."""

    script: list[Behaviour]
    exchanges: list[Exchange] = field(default_factory=list)
    connections: int = 0
    url: str = ""

    @property
    def body_bytes(self) -> int:
        """Bytes of all response bodies so far."""
        return sum(exchange.body_bytes for exchange in self.exchanges)

    @contextmanager
    def running(self, context: ssl.SSLContext | None = None) -> Iterator[BadServer]:
        """Run on a free loopback port until the block ends."""
        stopping = threading.Event()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            name = "localhost" if context else "127.0.0.1"
            self.url = f"{'https' if context else 'http'}://{name}:{listener.getsockname()[1]}/"
            listener.settimeout(0.02)
            thread = threading.Thread(target=self._accept, args=(listener, context, stopping))
            thread.start()
            try:
                yield self
            finally:
                stopping.set()
                thread.join()

    def _accept(self, listener: socket.socket, context: ssl.SSLContext | None, stopping: threading.Event) -> None:
        threads: list[threading.Thread] = []
        while not stopping.is_set():
            with suppress(TimeoutError):
                connection = listener.accept()[0]
                self.connections += 1
                connection.settimeout(20)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # sends head and body separately
                threads.append(threading.Thread(target=self._answer, args=(connection, context, stopping)))
                threads[-1].start()
        for thread in threads:
            thread.join()

    def _answer(self, connection: socket.socket, context: ssl.SSLContext | None, stopping: threading.Event) -> None:
        with suppress(OSError), connection:
            if context:
                connection = context.wrap_socket(connection, server_side=True)
            with connection:
                while exchange := self._request(connection, stopping):
                    behave = self.script.pop(0) if len(self.script) > 1 else self.script[0]
                    behave(exchange)
                    if not exchange.keep_alive:
                        return

    def _request(self, connection: socket.socket, stopping: threading.Event) -> Exchange | None:
        received = b""
        connection.settimeout(0.02)
        while b"\r\n\r\n" not in received:
            try:
                piece = connection.recv(65_536)
            except TimeoutError:
                if stopping.is_set():
                    return None
                continue
            if not piece:
                return None
            received += piece
        connection.settimeout(20)
        request, *lines = received.decode("latin-1").split("\r\n\r\n")[0].split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        exchange = Exchange(request.split(" ")[1], headers, connection, stopping)
        self.exchanges.append(exchange)
        return exchange
