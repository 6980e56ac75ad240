"""Sending side of a connection: frames in order, DATA within the peer's windows (RFC 9113, section 5.2), by turns.

Ownership: payloads are passed on and not copied; `take` gives the pieces to the code that writes them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from gateway.serving.frontends.grpc_v2.http2.errors import Code, ProtocolError
from gateway.serving.frontends.grpc_v2.http2.frames import (
    CONTINUATION,
    DATA,
    DEFAULT_FRAME_SIZE,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    LARGEST_FRAME_SIZE,
    LARGEST_WINDOW,
    LENGTH_TYPE_FLAGS,
    UINT32,
    opening,
)
from gateway.serving.frontends.grpc_v2.http2.streams import Ending, Stream

Piece = bytes | memoryview
DEFAULT_TABLE = 4096
"""Bytes of a header table before SETTINGS change it."""
NO_TABLE = b"\x20"
"""Dynamic table size update to 0 (RFC 7541, section 6.3)."""
_stream_number, _first_bytes = UINT32.pack, LENGTH_TYPE_FLAGS.pack


class FieldBlock:
    """A field block that is sent often. Its frame's first bytes are made once, in a stream and at its end."""

    __slots__ = ("begins", "ends", "payload")

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self.begins = opening(HEADERS, END_HEADERS, len(payload))
        self.ends = opening(HEADERS, END_HEADERS | END_STREAM, len(payload))


class Sender:
    """Sender of frames. `window` and `frame_bytes` are the peer's values.

    While `held`, the transport takes no more: DATA waits, and other frames count as `unread_bytes`. `ended` is called
    when a stream's end was sent. A stream has turns while it has data and a window for it. Its `waiting` is None or
    begins with bytes.
    """

    def __init__(self, ended: Callable[[Stream], None]) -> None:
        self.window, self.frame_bytes, self.initial_window = DEFAULT_WINDOW, DEFAULT_FRAME_SIZE, DEFAULT_WINDOW
        self.held = False
        self.waiting_bytes = self.unread_bytes = self.frames = 0
        self.out: list[Piece] = []
        self._turns: dict[int, Stream] = {}
        self._ended = ended
        self._table_announced, self._before = False, b""

    def take(self) -> list[Piece]:
        """Return the pieces to write now."""
        out, self.out = self.out, []
        return out

    def send_control(self, frame: bytes) -> None:
        """Send a control frame, independent of the windows."""
        self.out.append(frame)
        if self.held:
            self.unread_bytes += len(frame)

    def respond(self, stream: Stream, start: FieldBlock, body: Sequence[Piece], size: int, end: FieldBlock) -> None:
        """Send a whole response: headers (`start`), a body of `size` bytes, trailers (`end`).

        It is one piece if the windows allow it.
        """
        # One piece is one write, and the peer's client is woken once. A small response costs the same as its headers.
        if (
            size > self.window
            or size > stream.send_window
            or size > self.frame_bytes
            or self.held
            or stream.waiting is not None
            or self._before
        ):
            self.begin(stream, start.payload)
            for piece in body:
                self.data(stream, piece)
            self.end(stream, end.payload)
            return
        number, data = _stream_number(stream.id), _first_bytes(size >> 16, size & 0xFFFF, DATA, 0)
        self.out.append(
            b"".join((start.begins, number, start.payload, data, number, *body, end.ends, number, end.payload))
        )
        self.window -= size
        self.frames += 1
        self._ended(stream)

    def begin(self, stream: Stream, block: bytes) -> None:
        """Send response headers."""
        self._send_headers(stream, block, 0)

    def data(self, stream: Stream, payload: Piece) -> None:
        """Send body bytes: now, or when windows and transport allow."""
        size = len(payload)
        if not size:
            return  # an empty frame says nothing, and peers count it as abuse (CVE-2019-9518)
        if stream.waiting is None:
            if size <= min(self.window, stream.send_window, self.frame_bytes) and not self.held:
                self._send_data(stream, payload, size)
                return
            stream.waiting = deque()
        stream.waiting.append(memoryview(payload))
        stream.waiting_bytes += size
        self.waiting_bytes += size
        self._schedule(stream)

    def end(self, stream: Stream, trailers: bytes) -> None:
        """Send trailers after all waiting bytes."""
        if stream.waiting is None:
            self._send_end(stream, trailers)
        else:
            stream.waiting.append(Ending(trailers))

    def forget(self, stream: Stream) -> None:
        """Drop the waiting bytes of a closed stream."""
        self._turns.pop(stream.id, None)
        self.waiting_bytes -= stream.waiting_bytes
        stream.waiting, stream.waiting_bytes = None, 0

    def widen(self, increment: int) -> None:
        """Widen the connection's window by `increment` bytes. Raises ProtocolError FLOW_CONTROL_ERROR."""
        self.window += increment
        if self.window > LARGEST_WINDOW:
            raise ProtocolError(Code.FLOW_CONTROL_ERROR, "the connection's window grew over 2^31-1")
        if self._turns:
            self.resume()

    def widen_stream(self, stream: Stream, increment: int) -> bool:
        """Widen one stream's window by `increment` bytes, or narrow it. Return False above the largest window."""
        stream.send_window += increment
        if stream.send_window > LARGEST_WINDOW:
            return False
        if stream.waiting is not None:
            self._schedule(stream)
        return True

    def resize_windows(self, streams: Iterable[Stream], value: int) -> None:
        """Change open streams' windows by the difference; they may become negative (section 6.9.2).

        Raises ProtocolError FLOW_CONTROL_ERROR.
        """
        if value > LARGEST_WINDOW:
            raise ProtocolError(Code.FLOW_CONTROL_ERROR, f"SETTINGS_INITIAL_WINDOW_SIZE of {value}")
        difference, self.initial_window = value - self.initial_window, value
        for stream in streams:
            if not self.widen_stream(stream, difference):
                raise ProtocolError(Code.FLOW_CONTROL_ERROR, "a stream's window grew over 2^31-1")

    def resize_frames(self, value: int) -> None:
        """Set the largest frame that the peer accepts. Raises ProtocolError PROTOCOL_ERROR."""
        if not DEFAULT_FRAME_SIZE <= value <= LARGEST_FRAME_SIZE:
            raise ProtocolError(Code.PROTOCOL_ERROR, f"SETTINGS_MAX_FRAME_SIZE of {value}")
        self.frame_bytes = value

    def bound_table(self, size: int) -> None:
        """Note that the peer keeps a header table of `size` bytes; no table is used here.

        If that is less than the initial size, the next block must report it (RFC 7541, section 4.2). It reports 0, and
        no later bound is below that.
        """
        if size < DEFAULT_TABLE and not self._table_announced:
            self._table_announced, self._before = True, NO_TABLE

    def release(self) -> None:
        """Continue to send: the transport takes more."""
        self.held, self.unread_bytes = False, 0
        self.resume()

    def resume(self) -> None:
        """Send waiting bytes, a frame of each stream in turn, so that a large response delays no small one.

        The cost depends on the bytes that are sent: streams without a window are not examined.
        """
        turns = self._turns
        while turns and self.window > 0 and not self.held:
            stream = turns.pop(next(iter(turns)))
            self._send_one(stream)
            if stream.waiting is not None and stream.send_window > 0:
                turns[stream.id] = stream

    def _schedule(self, stream: Stream) -> None:
        if stream.send_window > 0:
            self._turns.setdefault(stream.id, stream)
            self.resume()
        else:
            self._turns.pop(stream.id, None)

    def _send_one(self, stream: Stream) -> None:
        """Send one DATA frame of the waiting bytes, and the end if it was the last."""
        waiting = stream.waiting
        if not waiting or isinstance(piece := waiting.popleft(), Ending):
            return
        size = min(len(piece), self.window, stream.send_window, self.frame_bytes)
        if size < len(piece):
            waiting.appendleft(piece[size:])
        self._send_data(stream, piece[:size], size)
        stream.waiting_bytes -= size
        self.waiting_bytes -= size
        if not waiting:
            stream.waiting = None
        elif isinstance(ending := waiting[0], Ending):
            stream.waiting = None  # gRPC ends with trailers: END_STREAM is on HEADERS, never on DATA (RFC 9113, 8.1)
            self._send_end(stream, ending.trailers)

    def _send_data(self, stream: Stream, payload: Piece, size: int) -> None:
        self.out += (opening(DATA, 0, size) + _stream_number(stream.id), payload)
        self.window -= size
        stream.send_window -= size
        self.frames += 1

    def _send_end(self, stream: Stream, trailers: bytes) -> None:
        self._send_headers(stream, trailers, END_STREAM)
        self._ended(stream)

    def _send_headers(self, stream: Stream, block: bytes, flags: int) -> None:
        """Send HEADERS, and CONTINUATION if the block exceeds the peer's frame size."""
        number, most = _stream_number(stream.id), self.frame_bytes
        # The frames of a block are one piece: no other frame may come between them (RFC 9113, section 6.10).
        block, self._before = self._before + block, b""
        if len(block) <= most:
            self.send_control(opening(HEADERS, flags | END_HEADERS, len(block)) + number + block)
        else:
            parts = [opening(HEADERS, flags, most) + number + block[:most]]
            for place in range(most, len(block), most):
                part = block[place : place + most]
                last = END_HEADERS if place + most >= len(block) else 0
                parts.append(opening(CONTINUATION, last, len(part)) + number + part)
            self.send_control(b"".join(parts))
        self.frames += 1
