"""Client side of HTTP/2 as bytes: valid and invalid input for our connection, and the frames it sends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from gateway.serving.frontends.grpc_v2.http2 import frames
from gateway.serving.frontends.grpc_v2.http2.connection import Http2Connection
from gateway.serving.frontends.grpc_v2.http2.errors import Code
from gateway.serving.frontends.grpc_v2.http2.events import Event, StreamOpened
from gateway.serving.frontends.grpc_v2.http2.hpack import Headers, encode
from gateway.serving.frontends.grpc_v2.http2.limits import Http2Limits
from gateway.serving.frontends.grpc_v2.http2.reader import NOTHING
from gateway.serving.frontends.grpc_v2.http2.requests import read_request
from gateway.serving.frontends.grpc_v2.http2.sender import FieldBlock
from gateway.serving.frontends.grpc_v2.http2.streams import Stream

SECOND_NS = 1_000_000_000
ASKED: Headers = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/inference.GRPCInferenceService/ModelInfer"),
    (b":authority", b"gateway"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
)
REQUEST = encode(ASKED)
HEAD = FieldBlock(encode(((b":status", b"200"), (b"content-type", b"application/grpc"))))
TRAILERS = FieldBlock(encode(((b"grpc-status", b"0"),)))
WELCOME = frames.PREFACE + frames.frame(frames.SETTINGS, 0, 0)


class Said(NamedTuple):
    """A frame that the connection sent."""

    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def ends(self) -> bool:
        """Return whether it has END_STREAM."""
        return bool(self.flags & frames.END_STREAM) and self.kind in (frames.DATA, frames.HEADERS)


def parsed(words: bytes) -> list[Said]:
    """Return the frames in the connection's output, which must be complete."""
    found, place = [], 0
    while place < len(words):
        high, low, kind, flags, number = frames.HEADER.unpack_from(words, place)
        place += frames.HEADER_BYTES + (high << 16 | low)
        assert place <= len(words)
        found.append(Said(kind, flags, number, words[place - (high << 16 | low) : place]))
    return found


def said(connection: Http2Connection) -> list[Said]:
    """Return the frames that the connection sends now."""
    return parsed(b"".join(connection.take()))


def welcomed(limits: Http2Limits | None = None, settings: dict[int, int] | None = None) -> Http2Connection:
    """Return a connection after the peer's preface and settings. Its output so far is discarded."""
    connection = Http2Connection(limits or Http2Limits(), read_request)
    tell(connection, frames.PREFACE + frames.settings_frame(settings or {}))
    assert connection.failed is None
    connection.take()
    return connection


def tell(connection: Http2Connection, words: bytes, now_ns: int = SECOND_NS) -> list[Event]:
    """Return the connection's events for these bytes."""
    events = list(connection.receive(memoryview(words), now_ns))
    while connection.behind:
        events += connection.receive(NOTHING, now_ns)
    return events


def opened(connection: Http2Connection, number: int = 1, flags: int = 0, block: bytes = REQUEST) -> Stream:
    """Open a stream as the peer."""
    (event,) = tell(connection, headers(number, flags, block))
    assert isinstance(event, StreamOpened)
    return event.stream


def headers(number: int, flags: int = 0, block: bytes = REQUEST) -> bytes:
    """Return a complete HEADERS frame."""
    return frames.frame(frames.HEADERS, flags | frames.END_HEADERS, number, block)


def data(number: int, payload: bytes, flags: int = 0, padding: int | None = None) -> bytes:
    """Return a DATA frame with `padding` bytes of padding."""
    if padding is not None:
        payload, flags = bytes([padding]) + payload + bytes(padding), flags | frames.PADDED
    return frames.frame(frames.DATA, flags, number, payload)


def asked(number: int, payload: bytes = b"message") -> bytes:
    """Return a complete request."""
    return headers(number) + data(number, payload, frames.END_STREAM)


def answer(connection: Http2Connection, stream: Stream, body: bytes = b"reply") -> None:
    """Send a complete response."""
    connection.respond(stream, HEAD, (body,), len(body), TRAILERS)


def body_of(words: Iterable[Said], number: int) -> bytes:
    """Return a stream's body."""
    return b"".join(frame.payload for frame in words if (frame.kind, frame.stream) == (frames.DATA, number))


def reset_code(words: Iterable[Said], number: int) -> Code | None:
    """Return the code with which a stream was reset, or None."""
    for frame in words:
        if (frame.kind, frame.stream) == (frames.RST_STREAM, number):
            return Code(frames.UINT32.unpack(frame.payload)[0])
    return None


def goaway(words: Iterable[Said]) -> tuple[int, Code] | None:
    """Return the last stream and the code of the last GOAWAY, or None."""
    found = None
    for frame in words:
        if frame.kind == frames.GOAWAY:
            last, code = frames.TWO_UINT32.unpack_from(frame.payload)
            found = last, Code(code)
    return found
