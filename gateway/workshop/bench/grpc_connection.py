"""Connection of the load over gRPC: the least of a client's HTTP/2 (RFC 9113), one call in flight.

The gateway has a server of its own and no client; grpcio is no dependency of a device. This client is for the load
only: no TLS, no retries, the same message each time.
"""

from __future__ import annotations

import socket

from gateway.serving.frontends.grpc_v2.http2.hpack import Decoder, encode
from gateway.workshop.bench.bodies import METHOD
from gateway.workshop.bench.http_connection import READ_BYTES, LoadError

DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
ACK = END_STREAM = 1
END_HEADERS = 4
FRAME_HEAD_BYTES = 9
INITIAL_WINDOW, MAX_FRAME = 4, 5
DEFAULT_WINDOW_BYTES, DEFAULT_FRAME_BYTES = 65_535, 16_384
WIDEST_WINDOW_BYTES = 2**31 - 1
REFILL_BYTES = 2**29
"""Received bytes after which the window of the connection is opened again."""
HEADERS_LIMIT_BYTES = 65_536
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return a frame (RFC 9113, 4.1)."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


class GrpcLoadConnection:
    """Connection to `address`; `message` is sent each time, length-prefixed. `headers`: more than gRPC's."""

    def __init__(
        self, address: tuple[str, int], message: bytes, timeout_s: float, headers: tuple[tuple[bytes, bytes], ...] = ()
    ) -> None:
        self.socket = socket.create_connection(address, timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        host = f"{address[0]}:{address[1]}".encode()
        named = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", METHOD.encode()), (b":authority", host))
        self._message, self._block = (
            message,
            encode((*named, (b"content-type", b"application/grpc"), (b"te", b"trailers"), *headers)),
        )
        self._decoder, self._left, self._stream, self._ended = Decoder(HEADERS_LIMIT_BYTES), b"", -1, False
        self._window = self._stream_window = self._initial_window = DEFAULT_WINDOW_BYTES
        self._frame_bytes, self._received_bytes, self._ready = DEFAULT_FRAME_BYTES, 0, False
        wide = INITIAL_WINDOW.to_bytes(2, "big") + WIDEST_WINDOW_BYTES.to_bytes(4, "big")
        opened = frame(WINDOW_UPDATE, 0, 0, (WIDEST_WINDOW_BYTES - DEFAULT_WINDOW_BYTES).to_bytes(4, "big"))
        try:
            self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0, wide) + opened)
            while not self._ready:
                self.receive()
        except (OSError, LoadError):
            self.close()
            raise

    def send(self) -> None:
        """Begin a call and send its message, as far as the windows permit; then read until they open."""
        self._stream += 2
        self._ended, self._stream_window = False, self._initial_window
        out, at = bytearray(frame(HEADERS, END_HEADERS, self._stream, self._block)), 0
        while at < len(self._message):
            count = min(len(self._message) - at, self._frame_bytes, self._window, self._stream_window)
            if count <= 0:
                self.socket.sendall(out)
                out.clear()
                self.receive()
                continue
            last = at + count == len(self._message)
            out += frame(DATA, END_STREAM if last else 0, self._stream, self._message[at : at + count])
            at += count
            self._window -= count
            self._stream_window -= count
        self.socket.sendall(out)

    def receive(self) -> bool:
        """Read what has come; return True if the call has ended. Raise LoadError if it failed."""
        piece = self.socket.recv(READ_BYTES)
        if not piece:
            raise LoadError("the gateway closed the connection; see its log")
        data, at = self._left + piece, 0
        while len(data) - at >= FRAME_HEAD_BYTES:
            end = at + FRAME_HEAD_BYTES + int.from_bytes(data[at : at + 3], "big")
            if end > len(data):
                break
            stream = int.from_bytes(data[at + 5 : at + FRAME_HEAD_BYTES], "big")
            self._frame(data[at + 3], data[at + 4], stream, data[at + FRAME_HEAD_BYTES : end])
            at = end
        self._left = data[at:]
        return self._ended

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == HEADERS:
            self._headers(flags, payload)
        elif kind == DATA:
            count_bytes = len(payload)
            self._received_bytes += count_bytes
            if self._received_bytes >= REFILL_BYTES:
                self.socket.sendall(frame(WINDOW_UPDATE, 0, 0, self._received_bytes.to_bytes(4, "big")))
                self._received_bytes = 0
        elif kind == SETTINGS and not flags & ACK:
            self._settings(payload)
        elif kind == WINDOW_UPDATE:
            self._opened(stream, int.from_bytes(payload, "big"))
        elif kind == PING and not flags & ACK:
            self.socket.sendall(frame(PING, ACK, 0, payload))
        elif kind in {RESET, GOAWAY, CONTINUATION}:
            raise LoadError(f"the gateway ended the call (frame {kind}, {payload[:100]!r}); see its log")

    def _headers(self, flags: int, block: bytes) -> None:
        headers = dict(self._decoder.decode(block) or ())
        if flags & END_STREAM:
            if headers.get(b"grpc-status") != b"0":
                reason = headers.get(b"grpc-message", b"").decode("utf-8", "replace")
                raise LoadError(f"the gateway refused a call: status {headers.get(b'grpc-status')!r}, {reason:.300}")
            self._ended = True

    def _settings(self, payload: bytes) -> None:
        for at in range(0, len(payload) - 5, 6):
            key, value = int.from_bytes(payload[at : at + 2], "big"), int.from_bytes(payload[at + 2 : at + 6], "big")
            if key == INITIAL_WINDOW:
                self._stream_window += value - self._initial_window
                self._initial_window = value
            elif key == MAX_FRAME:
                self._frame_bytes = value
        self.socket.sendall(frame(SETTINGS, ACK, 0, b""))
        self._ready = True

    def _opened(self, stream: int, count_bytes: int) -> None:
        if not stream:
            self._window += count_bytes
        elif stream == self._stream:
            self._stream_window += count_bytes
