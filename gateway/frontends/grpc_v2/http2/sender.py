"""What we say on a connection: frames in order, DATA within the peer's windows (RFC 9113, section 5.2), by turns.

Who owns what: payloads are handed over and not copied; `take` gives the pieces to whoever writes them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from gateway.frontends.grpc_v2.http2.errors import Code, ProtocolError
from gateway.frontends.grpc_v2.http2.frames import (
    DATA,
    DEFAULT_FRAME_SIZE,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    LARGEST_WINDOW,
    LENGTH_TYPE_FLAGS,
    UINT32,
    opening,
)
from gateway.frontends.grpc_v2.http2.streams import Ending, Stream

Piece = bytes | memoryview
_stream_number = UINT32.pack


class Block:
    """A header block that is said often: its frame's first bytes, before and at a stream's end, are made once."""

    __slots__ = ("begins", "ends", "payload")

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self.begins = opening(HEADERS, END_HEADERS, len(payload))
        self.ends = opening(HEADERS, END_HEADERS | END_STREAM, len(payload))


class Sender:
    """`window` and `frame_bytes` are the peer's wishes. While `held`, the transport takes no more and DATA waits.

    `ended` is called when a stream's end was said.
    """

    def __init__(self, ended: Callable[[Stream], None]) -> None:
        self.window, self.frame_bytes, self.initial_window = DEFAULT_WINDOW, DEFAULT_FRAME_SIZE, DEFAULT_WINDOW
        self.held = False
        self.waiting_bytes = self.frames = 0
        self._out: list[Piece] = []
        self._waiting: dict[int, Stream] = {}
        self._ended = ended

    def take(self) -> list[Piece]:
        """What is to be written now."""
        out, self._out = self._out, []
        return out

    def say(self, frame: bytes) -> None:
        """A control frame: goes out whatever the windows are."""
        self._out.append(frame)

    def respond(self, stream: Stream, head: Block, message: Sequence[bytes], size: int, trailers: Block) -> None:
        """A whole response: headers, one body of `size` bytes, trailers; one piece where the windows allow it."""
        if (
            size > self.window
            or size > stream.send_window
            or size > self.frame_bytes
            or self.held
            or stream.waiting is not None
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
        self._out.append(opening(HEADERS, END_HEADERS, len(block)) + _stream_number(stream.id) + block)
        self.frames += 1

    def data(self, stream: Stream, payload: Piece) -> None:
        """Body bytes: now, or when windows and transport allow."""
        if not payload:
            return
        if stream.waiting is None:
            stream.waiting = deque()
            self._waiting[stream.id] = stream
        stream.waiting.append(memoryview(payload))
        stream.waiting_bytes += len(payload)
        self.waiting_bytes += len(payload)
        self._advance(stream)

    def end(self, stream: Stream, trailers: bytes) -> None:
        """Trailers, behind whatever waits."""
        if stream.waiting is None:
            self._say_end(stream, trailers)
        else:
            stream.waiting.append(Ending(trailers))

    def forget(self, stream: Stream) -> None:
        """The stream is closed; what waits is dropped."""
        if self._waiting.pop(stream.id, None) is not None:
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
            self._advance(stream)
        return True

    def resume(self) -> None:
        """Go on with what waits, a frame of each stream in turn, so that a large response holds up no small one."""
        moved = True
        while moved and not self.held and self.window > 0:
            moved = False
            for stream in list(self._waiting.values()):
                moved |= self._say_one(stream)

    def _advance(self, stream: Stream) -> None:
        while not self.held and self._say_one(stream):
            pass

    def _say_one(self, stream: Stream) -> bool:
        """One DATA frame of what waits, or the end behind it; False where nothing can go."""
        waiting = stream.waiting
        if waiting is None:
            return False
        if not waiting:
            self._waiting.pop(stream.id)
            stream.waiting = None
            return False
        piece = waiting[0]
        if isinstance(piece, Ending):
            self._waiting.pop(stream.id)
            stream.waiting = None
            self._say_end(stream, piece.trailers)
            return False
        size = min(len(piece), self.window, stream.send_window, self.frame_bytes)
        if size <= 0:
            return False
        if size == len(piece):
            waiting.popleft()
        else:
            waiting[0] = piece[size:]
        self._say_data(stream, piece, size)
        return True

    def _say_data(self, stream: Stream, piece: memoryview, size: int) -> None:
        self._out += (opening(DATA, 0, size) + _stream_number(stream.id), piece[:size])
        self.window -= size
        stream.send_window -= size
        stream.waiting_bytes -= size
        self.waiting_bytes -= size
        self.frames += 1

    def _say_end(self, stream: Stream, trailers: bytes) -> None:
        head = opening(HEADERS, END_HEADERS | END_STREAM, len(trailers)) + _stream_number(stream.id)
        self._out.append(head + trailers)
        self.frames += 1
        self._ended(stream)
