"""Load whose requests all differ: HTTP/2 frames made beforehand, one request in flight on each connection.

h2load posts one body with one set of headers. Here each request may bring an id or a traceparent of its own; every byte
that is sent exists before the clock starts, so that the loop does little else than receive, check and send. What it can
do at most is its figure divided by `load_busy`. Arguments: JSON of `Plan`. Prints JSON.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hpack import Decoder

DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, END_STREAM = 0, 1, 3, 4, 6, 7, 1
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000 04 00 00000000")
WIDE_OPEN = bytes.fromhex("000004 08 00 00000000 7fff0000")
"""WINDOW_UPDATE of the connection: replies are never throttled, so none is needed later."""
SETTINGS_ACK = bytes.fromhex("000000 04 01 00000000")
READ_BYTES = 65536
SILENCE_S = 10.0
ID_CHARS = 16


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan of a run: `requests` per connection, made beforehand; it ends after `seconds`, or when one has none left."""

    port: int
    body: str
    path: str
    vary: str
    connections: int
    seconds: float
    requests: int


class RefusedError(Exception):
    """Wrong answer of the server; the message says what came."""


# ---- requests, made beforehand --------------------------------------------------------------------------------------
def rendered(plan: Plan, connection: int) -> Iterator[bytes]:
    """Yield HEADERS and DATA of the requests of one connection, in the order in which they are sent."""
    body, fields = Path(plan.body).read_bytes(), headers(plan.port, plan.path)
    extend, vary = EXTENSIONS.get(plan.vary, _no_header), plan.vary == "id"
    for index in range(plan.requests):
        block = fields + extend(connection, index)
        data = _with_id(body, connection, index) if vary else body
        stream = 2 * index + 1
        yield frame(HEADERS, 4, stream, block) + frame(DATA, END_STREAM, stream, data)


def headers(port: int, path: str) -> bytes:
    """Return the headers that never change, without touching the HPACK table.

    They are literals without indexing: RFC 7541 section 6.2.2.
    """
    post_http = b"\x83\x86"
    method = b"\x04" + _string(path.encode())  # static names: 4 :path, 1 :authority, 31 content-type
    authority = b"\x01" + _string(f"127.0.0.1:{port}".encode())
    content = b"\x0f\x10" + _string(b"application/grpc")
    return post_http + method + authority + content + b"\x00" + _string(b"te") + _string(b"trailers")


def _string(value: bytes) -> bytes:
    if len(value) > 126:
        raise ValueError(f"{value!r} is too long for a length of one byte")
    return bytes([len(value)]) + value


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _with_id(body: bytes, connection: int, index: int) -> bytes:
    """Return the request with field 3, `id`, before its other fields; protobuf takes fields in any order."""
    text = f"{connection:04d}-{index:0{ID_CHARS - 5}d}".encode()
    message = b"\x1a" + _string(text) + body[5:]
    return b"\x00" + len(message).to_bytes(4, "big") + message


def _traceparent(connection: int, index: int) -> bytes:
    return _string(f"00-{connection:08x}{index:024x}-{index:016x}-01".encode())


def _never_indexed(connection: int, index: int) -> bytes:
    """Return a literal without indexing, its name in full: C-core (seen with 1.85) sends unknown metadata like this."""
    return b"\x00" + _string(b"traceparent") + _traceparent(connection, index)


def _indexed(connection: int, index: int) -> bytes:
    """Return a literal with incremental indexing, like grpc-go and Java: each request changes the HPACK table."""
    name = b"\x7e" if index else b"\x40" + _string(b"traceparent")  # 62: the newest entry of the dynamic table
    return name + _traceparent(connection, index)


def _no_header(_connection: int, _index: int) -> bytes:
    return b""


EXTENSIONS: dict[str, Callable[[int, int], bytes]] = {"traceparent": _never_indexed, "traceparent-indexed": _indexed}


# ---- one connection -------------------------------------------------------------------------------------------------
class Connection:
    """Connection that sends the next request when the reply to the last has ended with `grpc-status: 0`."""

    def __init__(self, port: int, requests: list[bytes]) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.laps_ns: list[int] = []
        self._requests, self._next, self._sent_ns = requests, 0, 0
        self._left = b""
        self._decoder = Decoder()
        self._known: dict[bytes, dict[str, str]] = {}  # blocks that leave the table alone, and what they say
        self.socket.sendall(PREFACE + WIDE_OPEN)

    @property
    def spent(self) -> bool:
        """All of its requests were sent."""
        return self._next == len(self._requests)

    def send(self) -> None:
        """Send the next request."""
        self._sent_ns = time.perf_counter_ns()
        self.socket.sendall(self._requests[self._next])
        self._next += 1

    def receive(self) -> bool:
        """Take what has come; whether the reply has ended."""
        chunk = self.socket.recv(READ_BYTES)
        if not chunk:
            raise RefusedError("the server closed the connection")
        data = self._left + chunk if self._left else chunk
        at, ended = 0, False
        while len(data) - at >= 9:
            end = at + 9 + int.from_bytes(data[at : at + 3], "big")
            if end > len(data):
                break
            kind, flags = data[at + 3], data[at + 4]
            if kind == HEADERS:
                stream = int.from_bytes(data[at + 5 : at + 9], "big")
                ended = self._headers(data[at + 9 : end], flags, stream) or ended
            elif kind == DATA:
                self.data(data[at + 9 : end])
            else:
                self._other(kind, flags, data[at + 9 : end])
            at = end
        self._left = data[at:]
        if ended:
            self.laps_ns.append(time.perf_counter_ns() - self._sent_ns)
        return ended

    def data(self, payload: bytes) -> None:
        """Take a part of a reply's body: it is not looked at."""

    def _headers(self, block: bytes, flags: int, stream: int) -> bool:
        said = self._known.get(block)
        if said is None:
            said = self._decode(block)
        if not flags & END_STREAM:
            return False
        if said.get("grpc-status") != "0" or stream != 2 * self._next - 1:
            raise RefusedError(f"request {self._next} was answered {said} on stream {stream}")
        return True

    def _decode(self, block: bytes) -> dict[str, str]:
        entries = list(self._decoder.header_table.dynamic_entries)
        said = {str(name): str(value) for name, value in self._decoder.decode(block)}
        if entries == list(self._decoder.header_table.dynamic_entries):
            self._known[block] = said
        else:
            self._known.clear()
        return said

    def _other(self, kind: int, flags: int, payload: bytes) -> None:
        if kind in (RESET, GOAWAY):
            raise RefusedError(f"{'RST_STREAM' if kind == RESET else 'GOAWAY'} with {payload!r}")
        if kind == SETTINGS and not flags:
            self.socket.sendall(SETTINGS_ACK)
        if kind == PING and not flags:
            self.socket.sendall(frame(PING, 1, 0, payload))


# ---- the loop -------------------------------------------------------------------------------------------------------
def drive(plan: Plan) -> dict[str, float]:
    """Run the plan. Raises RefusedError."""
    connections = [Connection(plan.port, list(rendered(plan, index))) for index in range(plan.connections)]
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection.socket, selectors.EVENT_READ, connection)
        began, cpu = time.perf_counter(), time.process_time()
        for connection in connections:
            connection.send()
        end = began + plan.seconds
        more = True
        while (now := time.perf_counter()) < end and more:
            more = _turn(selector)
        cpu_s = time.process_time() - cpu
    laps = np.array([lap for connection in connections for lap in connection.laps_ns]) / 1000
    p50, p99 = np.percentile(laps, (50, 99))
    figures = {"requests": len(laps), "per_s": len(laps) / (now - began), "load_busy": cpu_s / (now - began)}
    return figures | {"p50_us": float(p50), "p99_us": float(p99)}


def _turn(selector: selectors.BaseSelector) -> bool:
    """Read answers that have come, and send the requests that follow; return False once a connection has none left."""
    ready: list[tuple[Any, int]] = selector.select(SILENCE_S)
    if not ready:
        raise RefusedError(f"no answer came for {SILENCE_S} s")
    for key, _ in ready:
        connection: Connection = key.data
        if connection.receive():
            if connection.spent:
                return False
            connection.send()
    return True


if __name__ == "__main__":
    try:
        sys.stdout.write(json.dumps(drive(Plan(**json.loads(sys.argv[1])))))
    except RefusedError as error:
        sys.exit(f"wire: {error}")
