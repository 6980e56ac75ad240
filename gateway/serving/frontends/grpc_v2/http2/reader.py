"""Splitting of bytes into frames: a read may end anywhere. DATA is passed on as it comes, other frames as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gateway.serving.frontends.grpc_v2.http2.errors import Code, ProtocolError
from gateway.serving.frontends.grpc_v2.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADER,
    HEADER_BYTES,
    HEADERS,
    LARGEST_STREAM,
    PADDED,
    PREFACE,
    data_run,
)
from gateway.serving.frontends.grpc_v2.http2.work import RUN_NS, SLICE_NS, Meter

NOTHING = memoryview(b"")
"""Empty input: reading continues with the bytes received before."""
RUNS = frozenset({0, END_STREAM})
"""Flags of DATA frames that are processed together."""
_read_header = HEADER.unpack_from


class Frames(Protocol):
    """Receiver of the frames. Every method may raise ProtocolError.

    `read_request` processes HEADERS at `place`, with what follows them if that is their whole body. It returns the
    bytes used, or 0 if it has not processed any. `begin_data` is called for each DATA frame, or for several in a row as
    if they were one. `read_data` is called for parts of its content; `last`: it has no more.
    """

    def read_request(self, data: memoryview, place: int, number: int, length: int) -> int: ...
    def check_frame(self, kind: int, length: int) -> bool: ...
    def read_frame(self, kind: int, flags: int, number: int, payload: memoryview) -> None: ...
    def begin_data(self, flags: int, number: int, length: int, content: int) -> None: ...
    def read_data(self, parts: Sequence[memoryview], last: bool) -> None: ...


class FrameReader:
    """Reader with the incomplete rest: part of a frame other than DATA, and the size of the DATA still to come.

    The part is examined again once `_needed` bytes of it are here. A frame that comes byte by byte thus costs no more
    copying than another. Reading stops once the meter shows a slice of work. The bytes that are not read are kept,
    `behind` is their number, and `read` of no bytes continues with them.
    """

    def __init__(self, meter: Meter | None = None) -> None:
        self.behind = 0
        self._meter = meter or Meter()
        self._preface = PREFACE
        self._rest, self._needed = bytearray(), HEADER_BYTES
        self._content = self._skip = 0

    def read(self, data: memoryview, frames: Frames) -> None:
        """Process bytes from the socket. Raises ProtocolError."""
        self.behind = 0
        if self._rest:
            self._rest += data
            if len(self._rest) < self._needed:
                return
            whole, self._rest = self._rest, bytearray()
            data = memoryview(whole)
        needed, end, meter = 0, len(data), self._meter
        place = self._read_preface(data) if self._preface else 0
        while place < end and meter.ns < SLICE_NS and not needed:
            if self._content or self._skip:
                place = self._go_on(data, place, end, frames)
                continue
            if place + HEADER_BYTES > end:
                break
            high, low, kind, flags, number = _read_header(data, place)
            length, number = high << 16 | low, number & LARGEST_STREAM
            if kind == HEADERS and flags == END_HEADERS and (used := frames.read_request(data, place, number, length)):
                place += used
            elif kind == DATA and flags in RUNS and 0 < length <= end - place - HEADER_BYTES:
                place = self._read_run(data, place, (flags, number, length), frames)
            else:
                place, needed = self._read_frame(data, place, (kind, flags, number, length), frames)
        if place < end:
            self.behind = end - place if meter.ns >= SLICE_NS else 0
            self._rest, self._needed = bytearray(data[place:]), 0 if self.behind else needed or HEADER_BYTES

    def _read_run(self, data: memoryview, place: int, header: tuple[int, int, int], frames: Frames) -> int:
        """Process complete DATA frames of one stream. Return the next place."""
        flags, number, length = header
        frames.check_frame(DATA, length)
        contents, stop, flags = data_run(data, place, number, length, flags)
        size = stop - place - HEADER_BYTES * len(contents)
        self._meter.ns += RUN_NS * len(contents)
        frames.begin_data(flags, number, size, size)
        frames.read_data(contents, True)
        return stop

    def _read_frame(
        self, data: memoryview, place: int, header: tuple[int, int, int, int], frames: Frames
    ) -> tuple[int, int]:
        """Process the frame at `place`, DATA up to its content. Return the next place, and the bytes it needs."""
        kind, flags, number, length = header
        start = place + HEADER_BYTES
        stop = start + length
        if frames.check_frame(kind, length):
            if stop > len(data):
                return place, HEADER_BYTES + length
            frames.read_frame(kind, flags, number, data[start:stop])
            return stop, 0
        if kind != DATA:
            self._skip = length
            return start, 0
        if flags & PADDED and length and start == len(data):
            return place, HEADER_BYTES + 1
        looked_at = padding = 0  # sizes of the padding's length field and of the padding (RFC 9113, section 6.1)
        if flags & PADDED:
            if not length:
                raise ProtocolError(Code.FRAME_SIZE_ERROR, "DATA without the padding's length")
            if data[start] >= length:
                raise ProtocolError(Code.PROTOCOL_ERROR, "padding as long as its frame")
            looked_at, padding = 1, data[start]
        content = length - looked_at - padding
        frames.begin_data(flags, number, length, content)
        self._content, self._skip = content, padding
        return start + looked_at, 0

    def _read_preface(self, data: memoryview) -> int:
        size = min(len(data), len(self._preface))
        if data[:size] != self._preface[:size]:
            raise ProtocolError(Code.PROTOCOL_ERROR, "this is no HTTP/2: gRPC is spoken here")
        self._preface = self._preface[size:]
        return size

    def _go_on(self, data: memoryview, place: int, end: int, frames: Frames) -> int:
        if self._content:
            stop = min(place + self._content, end)
            self._content -= stop - place
            frames.read_data((data[place:stop],), not self._content)
            return stop
        stop = min(place + self._skip, end)
        self._skip -= stop - place
        return stop
