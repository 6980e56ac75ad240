"""Required form of each kind of control frame (RFC 9113, section 6), as one table."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.serving.frontends.grpc_v2.http2 import frames
from gateway.serving.frontends.grpc_v2.http2.errors import Code, ProtocolError


@dataclass(frozen=True, slots=True)
class Shape:
    """Form of a control frame.

    `on_stream`: it concerns a stream (True), the connection (False) or either (None). It has `fewest` to `most` bytes,
    in units of `unit`.
    """

    name: str
    on_stream: bool | None
    fewest: int
    most: float
    unit: int = 1


SHAPES = {
    frames.PRIORITY: Shape("PRIORITY", True, 5, 5),
    frames.RST_STREAM: Shape("RST_STREAM", True, 4, 4),
    frames.SETTINGS: Shape("SETTINGS", False, 0, float("inf"), 6),
    frames.PING: Shape("PING", False, 8, 8),
    frames.GOAWAY: Shape("GOAWAY", False, 8, float("inf")),
    frames.WINDOW_UPDATE: Shape("WINDOW_UPDATE", None, 4, 4),
}


def check_shape(kind: int, number: int, payload: memoryview) -> None:
    """Check a control frame's stream and length.

    Raises ProtocolError PROTOCOL_ERROR if its stream or its dependency is not allowed, FRAME_SIZE_ERROR if its length
    is wrong for its kind.
    """
    shape, size = SHAPES[kind], len(payload)
    if shape.on_stream is not None and shape.on_stream != bool(number):
        raise ProtocolError(Code.PROTOCOL_ERROR, f"{shape.name} on stream {number}")
    if not shape.fewest <= size <= shape.most or size % shape.unit:
        raise ProtocolError(Code.FRAME_SIZE_ERROR, f"{shape.name} of {size} bytes")
    if kind == frames.PRIORITY:
        check_dependency(number, payload)


def check_dependency(number: int, priority: memoryview) -> None:
    """Raise ProtocolError PROTOCOL_ERROR if a stream's priority depends on the stream itself (RFC 7540, section 5.3.1).

    RFC 9113 has no priorities and no such rule; other servers keep it. The stream may be idle, so it cannot be reset.
    """
    if frames.UINT32.unpack_from(priority)[0] & frames.LARGEST_STREAM == number:
        raise ProtocolError(Code.PROTOCOL_ERROR, f"stream {number} depends on itself")
