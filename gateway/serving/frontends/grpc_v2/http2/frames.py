"""Frames of HTTP/2 (RFC 9113, sections 4 and 6): header, types, flags, and the frames that a server sends."""

from __future__ import annotations

import struct

HEADER_BYTES = 9
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)

ACK = END_STREAM = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITISED = 0x20

HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = (
    range(1, 7)
)
"""Identifiers of settings (RFC 9113, section 6.5.2)."""

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DEFAULT_WINDOW = 65_535
DEFAULT_FRAME_SIZE = 16_384
LARGEST_FRAME_SIZE = 2**24 - 1
LARGEST_WINDOW = 2**31 - 1
LARGEST_STREAM = 2**31 - 1
PRIORITY_BYTES = 5
STOPPING = "the gateway is stopping"
"""Text of a GOAWAY without an error."""

HEADER = struct.Struct(">BHBBI")
"""Length (its high byte apart), type, flags, stream: nine bytes, read at once."""
SETTING = struct.Struct(">HI")
LENGTH_TYPE_FLAGS = struct.Struct(">BHBB")
"""Header without its stream."""
UINT32 = struct.Struct(">I")
TWO_UINT32 = struct.Struct(">II")
_WINDOW_UPDATE = struct.Struct(">BHBBII")
WINDOW_UPDATE_BYTES = _WINDOW_UPDATE.size

RUN_FRAMES = 64
"""Most DATA frames that are processed in one step."""


def opening(kind: int, flags: int, length: int) -> bytes:
    """Return the first five bytes of a frame; the stream's four and the payload follow."""
    return LENGTH_TYPE_FLAGS.pack(length >> 16, length & 0xFFFF, kind, flags)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return a whole frame."""
    return HEADER.pack(len(payload) >> 16, len(payload) & 0xFFFF, kind, flags, stream) + payload


def whole_body(data: memoryview, place: int, number: int) -> tuple[int, int, int] | None:
    """Return begin, end and widening of the body of stream `number`, if it is one complete, unpadded frame at `place`.

    gRPC's C core sends a WINDOW_UPDATE of the stream before it: the widening, else 0. An empty body is None, too.
    """
    widened, end = 0, len(data)
    begin = place + HEADER_BYTES
    if end > place + WINDOW_UPDATE_BYTES and data[place + 3] == WINDOW_UPDATE:
        high, low, _, _, stream, increment = _WINDOW_UPDATE.unpack_from(data, place)
        widened = increment & LARGEST_WINDOW
        if stream != number or high or low != UINT32.size or not widened:
            return None
        begin += WINDOW_UPDATE_BYTES
    if begin >= end:
        return None
    high, low, kind, flags, stream = HEADER.unpack_from(data, begin - HEADER_BYTES)
    stop = begin + (high << 16 | low)
    if kind != DATA or flags != END_STREAM or stream != number or not begin < stop <= end:
        return None
    return begin, stop, widened


def data_run(data: memoryview, place: int, number: int, length: int, flags: int) -> tuple[list[memoryview], int, int]:
    """Return contents, end and flags of the DATA frames of stream `number` from `place` on: one, or several in a row.

    The first is complete, has `length` bytes and these flags, and no padding. A further one belongs to the run if that
    is true of it, too, if it is not empty, and no longer than the first.
    """
    contents, end, most = [], len(data), length
    while True:
        place += HEADER_BYTES
        contents.append(data[place : place + length])
        place += length
        if flags or place + HEADER_BYTES >= end or len(contents) == RUN_FRAMES:
            break
        high, low, kind, following, stream = HEADER.unpack_from(data, place)
        size = high << 16 | low
        whole = 0 < size <= most and place + HEADER_BYTES + size <= end
        if kind != DATA or stream != number or following & ~END_STREAM or not whole:
            break
        flags, length = following, size
    return contents, place, flags


def settings_frame(values: dict[int, int]) -> bytes:
    """Return SETTINGS with these values by identifier."""
    return frame(SETTINGS, 0, 0, b"".join(SETTING.pack(key, value) for key, value in values.items()))


def settings_in(payload: memoryview) -> dict[int, int]:
    """Return values by identifier: the last of each; for header tables the smallest.

    An encoder must have reported the smallest size of its table.
    """
    found: dict[int, int] = {}
    for identifier, value in SETTING.iter_unpack(payload):
        found[identifier] = min(value, found.get(identifier, value)) if identifier == HEADER_TABLE_SIZE else value
    return found


def reset_frame(stream: int, code: int) -> bytes:
    """Return RST_STREAM."""
    return frame(RST_STREAM, 0, stream, UINT32.pack(code))


def window_frame(stream: int, increment: int) -> bytes:
    """Return WINDOW_UPDATE; stream 0 is the connection."""
    return frame(WINDOW_UPDATE, 0, stream, UINT32.pack(increment))


def goaway_frame(last_stream: int, code: int, debug: str) -> bytes:
    """Return GOAWAY; `debug` is for the peer's log."""
    return frame(GOAWAY, 0, 0, TWO_UINT32.pack(last_stream, code) + debug.encode())
