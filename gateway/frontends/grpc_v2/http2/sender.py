"""What we say on a connection: frames in order, DATA within the peer's windows (RFC 9113, section 5.2), by turns.

Who owns what: payloads are handed over and not copied; `take` gives the pieces to whoever writes them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from gateway.frontends.grpc_v2.http2.errors import Code, ProtocolError
from gateway.frontends.grpc_v2.http2.frames import (
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
from gateway.frontends.grpc_v2.http2.streams import Ending, Stream

Piece = bytes | memoryview
DEFAULT_TABLE = 4096
"""Bytes of a header table until SETTINGS say otherwise."""
NO_TABLE = b"\x20"
"""Dynamic table size update to 0 (RFC 7541, section 6.3)."""
_stream_number = UINT32.pack


class Block:
    """A header block that is said often: its frame's first bytes, before and at a stream's end, are made once."""

    __slots__ = ("begins", "ends", "payload")

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self.begins = opening(HEADERS, END_HEADERS, len(payload))
        self.ends = opening(HEADERS, END_HEADERS | END_STREAM, len(payload))


class Sender:
    """`window` and `frame_bytes` are the peer's wishes. While `held`, the transport takes no more: DATA waits, and what
    is said all the same counts as `unread_bytes`.

    `ended` is called when a stream's end was said. A stream has its turn while it has something to say and a window to
    say it in; `waiting` is None or begins with bytes.
    """

    def __init__(self, ended: Callable[[Stream], None]) -> None:
        self.window, self.frame_bytes, self.initial_window = DEFAULT_WINDOW, DEFAULT_FRAME_SIZE, DEFAULT_WINDOW
        self.held = False
        self.waiting_bytes = self.unread_bytes = self.frames = 0
        self._out: list[Piece] = []
        self._turns: dict[int, Stream] = {}
        self._ended = ended
        self._table_told, self._before = False, b""

    def take(self) -> list[Piece]:
        """What is to be written now."""
        out, self._out = self._out, []
        return out

    def say(self, frame: bytes) -> None:
        """A control frame: goes out whatever the windows are."""
        self._out.append(frame)
        if self.held:
            self.unread_bytes += len(frame)

    def respond(self, stream: Stream, head: Block, message: Sequence[Piece], size: int, trailers: Block) -> None:
        """A whole response: headers, one body of `size` bytes, trailers; one piece where the windows allow it."""
        if (
            size > self.window
            or size > stream.send_window
            or size > self.frame_bytes
            or self.held
            or stream.waiting is not None
            or self._before
        ):
            self.begin(stream, head.payload)
            for piece in message:
                self.data(stream, piece)
            self.end(stream, trailers.payload)
            return
        number = _stream_number(stream.id)
        data = LENGTH_TYPE_FLAGS.pack(size >> 16, size & 0xFFFF, DATA, 0)
        self._out.append(
            b"".join(
                (head.begins, number, head.payload, data, number, *message, trailers.ends, number, trailers.payload)
            )
        )
        self.window -= size
        self.frames += 1
        self._ended(stream)

    def begin(self, stream: Stream, block: bytes) -> None:
        """Response headers."""
        self._say_headers(stream, block, 0)

    def data(self, stream: Stream, payload: Piece) -> None:
        """Body bytes: now, or when windows and transport allow."""
        if not payload:
            return
        if stream.waiting is None:
            stream.waiting = deque()
        stream.waiting.append(memoryview(payload))
        stream.waiting_bytes += len(payload)
        self.waiting_bytes += len(payload)
        self._give_turn(stream)

    def end(self, stream: Stream, trailers: bytes) -> None:
        """Trailers, behind whatever waits."""
        if stream.waiting is None:
            self._say_end(stream, trailers)
        else:
            stream.waiting.append(Ending(trailers))

    def forget(self, stream: Stream) -> None:
        """The stream is closed; what waits is dropped."""
        if stream.waiting is not None:
            self._turns.pop(stream.id, None)
            self.waiting_bytes -= stream.waiting_bytes
            stream.waiting, stream.waiting_bytes = None, 0

    def widen(self, increment: int) -> None:
        """The peer takes `increment` bytes more over all streams. Raises ProtocolError FLOW_CONTROL_ERROR."""
        self.window += increment
        if self.window > LARGEST_WINDOW:
            raise ProtocolError(Code.FLOW_CONTROL_ERROR, "the connection's window grew over 2^31-1")
        self.resume()

    def widen_stream(self, stream: Stream, increment: int) -> bool:
        """The peer takes `increment` bytes more (or less) of one stream; False where that is more than there can be."""
        stream.send_window += increment
        if stream.send_window > LARGEST_WINDOW:
            return False
        if stream.waiting is not None:
            self._give_turn(stream)
        return True

    def resize_windows(self, streams: Iterable[Stream], value: int) -> None:
        """Open streams' windows move by the difference, and may become negative (section 6.9.2). Raises ProtocolError
        FLOW_CONTROL_ERROR."""
        if value > LARGEST_WINDOW:
            raise ProtocolError(Code.FLOW_CONTROL_ERROR, f"SETTINGS_INITIAL_WINDOW_SIZE of {value}")
        difference, self.initial_window = value - self.initial_window, value
        for stream in streams:
            if not self.widen_stream(stream, difference):
                raise ProtocolError(Code.FLOW_CONTROL_ERROR, "a stream's window grew over 2^31-1")

    def resize_frames(self, value: int) -> None:
        """The largest frame that the peer takes. Raises ProtocolError PROTOCOL_ERROR."""
        if not DEFAULT_FRAME_SIZE <= value <= LARGEST_FRAME_SIZE:
            raise ProtocolError(Code.PROTOCOL_ERROR, f"SETTINGS_MAX_FRAME_SIZE of {value}")
        self.frame_bytes = value

    def bound_table(self, size: int) -> None:
        """The peer keeps a header table of `size` bytes. We use none; where that is less than there is at first, the
        next block must say so (RFC 7541, section 4.2), and says 0, which no later bound is below."""
        if size < DEFAULT_TABLE and not self._table_told:
            self._table_told, self._before = True, NO_TABLE

    def release(self) -> None:
        """The transport takes more."""
        self.held, self.unread_bytes = False, 0
        self.resume()

    def resume(self) -> None:
        """Go on with what waits, a frame of each stream in turn, so that a large response holds up no small one. Costs
        what it says: streams without a window are not looked at."""
        turns = self._turns
        while turns and self.window > 0 and not self.held:
            stream = turns.pop(next(iter(turns)))
            self._say_one(stream)
            if stream.waiting is not None and stream.send_window > 0:
                turns[stream.id] = stream

    def _give_turn(self, stream: Stream) -> None:
        if stream.send_window > 0:
            self._turns.setdefault(stream.id, stream)
            self.resume()
        else:
            self._turns.pop(stream.id, None)

    def _say_one(self, stream: Stream) -> None:
        """One DATA frame of what waits, and the end where it was the last."""
        waiting = stream.waiting
        if not waiting or isinstance(piece := waiting.popleft(), Ending):
            return
        size = min(len(piece), self.window, stream.send_window, self.frame_bytes)
        if size < len(piece):
            waiting.appendleft(piece[size:])
        self._say_data(stream, piece, size)
        if not waiting:
            stream.waiting = None
        elif isinstance(ending := waiting[0], Ending):
            stream.waiting = None
            self._say_end(stream, ending.trailers)

    def _say_data(self, stream: Stream, piece: memoryview, size: int) -> None:
        self._out += (opening(DATA, 0, size) + _stream_number(stream.id), piece[:size])
        self.window -= size
        stream.send_window -= size
        stream.waiting_bytes -= size
        self.waiting_bytes -= size
        self.frames += 1

    def _say_end(self, stream: Stream, trailers: bytes) -> None:
        self._say_headers(stream, trailers, END_STREAM)
        self._ended(stream)

    def _say_headers(self, stream: Stream, block: bytes, flags: int) -> None:
        """HEADERS, and CONTINUATION where the peer takes no frame so large."""
        number, most = _stream_number(stream.id), self.frame_bytes
        block, self._before = self._before + block, b""
        if len(block) <= most:
            self.say(opening(HEADERS, flags | END_HEADERS, len(block)) + number + block)
        else:
            parts = [opening(HEADERS, flags, most) + number + block[:most]]
            for place in range(most, len(block), most):
                part = block[place : place + most]
                last = END_HEADERS if place + most >= len(block) else 0
                parts.append(opening(CONTINUATION, last, len(part)) + number + part)
            self.say(b"".join(parts))
        self.frames += 1
