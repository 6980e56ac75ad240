"""Server's side of one HTTP/2 connection. Its state is here, in `streams`, `reader` and `sender`.

`receive` takes bytes from the socket and returns events; `take` returns the bytes to write. An error of the peer ends
the stream, or the connection if the broken rule concerns all of it (RFC 9113, section 5.4).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gateway.serving.frontends.grpc_v2.http2 import frames, work
from gateway.serving.frontends.grpc_v2.http2.blocks import SIZE_FACTOR, Blocks, fragment
from gateway.serving.frontends.grpc_v2.http2.controls import KINDS, Controls
from gateway.serving.frontends.grpc_v2.http2.errors import Code, ProtocolError, StreamError
from gateway.serving.frontends.grpc_v2.http2.events import (
    DataReceived,
    Event,
    RequestReceived,
    StreamDropped,
    StreamOpened,
)
from gateway.serving.frontends.grpc_v2.http2.guard import Guard
from gateway.serving.frontends.grpc_v2.http2.hpack import Headers
from gateway.serving.frontends.grpc_v2.http2.limits import Http2Limits
from gateway.serving.frontends.grpc_v2.http2.reader import FrameReader
from gateway.serving.frontends.grpc_v2.http2.requests import are_trailers
from gateway.serving.frontends.grpc_v2.http2.sender import FieldBlock, Piece, Sender
from gateway.serving.frontends.grpc_v2.http2.shapes import check_shape
from gateway.serving.frontends.grpc_v2.http2.streams import (
    CLOSED,
    MOVES,
    OPEN,
    PEER_DONE,
    PEER_ENDS,
    RESET,
    WE_END,
    ClosedStreams,
    ReceiveWindow,
    Stream,
)

ParseHeaders = Callable[[Headers], Any]
_read_header, _read_uint32 = frames.HEADER.unpack_from, frames.UINT32.unpack_from


class Http2Connection:
    """Connection without I/O. `failed` is set once it must be closed, after its last bytes were written.

    `parse` converts a request's headers to the owner's type, and may raise StreamError. The result is remembered
    with the fields among `names`, and may depend on these only.
    """

    def __init__(self, limits: Http2Limits, parse: ParseHeaders, names: frozenset[bytes] = frozenset()) -> None:
        self.streams: dict[int, Stream] = {}
        self.failed: ProtocolError | None = None
        self.draining = False
        self._limits, self._guard, self.meter = limits, Guard(limits), work.Meter()
        self.sender, self._blocks = Sender(self._end_sent), Blocks(limits, parse, names, self.meter)
        self._controls = Controls(self._guard, self.sender, self.streams, self.meter)
        self._now_ns = self._last_stream = 0
        self._last_taken = frames.LARGEST_STREAM
        self._closed_by_us = ClosedStreams()
        self._most_block_bytes = min(limits.max_frame_bytes, SIZE_FACTOR * limits.max_header_bytes)
        self._window, self._most_at_once = ReceiveWindow(limits.connection_window_bytes), limits.most_at_once
        self._reader = FrameReader(self.meter)
        self.behind = 0
        """Bytes that were received and not processed yet."""
        self._body: Stream | None = None
        self._body_ends = False
        self._events: list[Event] = []
        self.sender.send_control(limits.settings_frame())
        self.sender.send_control(frames.window_frame(0, limits.connection_window_bytes - frames.DEFAULT_WINDOW))
        self.take, self.forget_parsed = self.sender.take, self._blocks.forget_parsed
        """Function that returns the bytes to write now; `Blocks.forget_parsed`."""

    # ---- owner's interface -----------------------------------------------------------------------------------------
    def receive(self, data: memoryview, now_ns: int) -> Sequence[Event]:
        """Process bytes from the peer, or those that are `behind`. Payloads in the events are lent until the next call.

        Stops after a slice of work; `meter` has the work that was done.
        """
        self._now_ns = now_ns
        self._events = []
        meter = self.meter
        meter.ns = work.READ_NS + len(data) // work.BYTES_PER_NS
        if self.failed is None:
            try:
                self._reader.read(data, self)
                self._guard.work(now_ns, meter.ns)
                if self.sender.unread_bytes:
                    self._guard.unread(self.sender.unread_bytes)
                self.behind = self._reader.behind
            except ProtocolError as fault:
                self.fail(fault)
        return self._events

    def respond(self, stream: Stream, start: FieldBlock, body: Sequence[Piece], size: int, end: FieldBlock) -> None:
        """Send a whole response: headers, one body of `size` bytes, trailers. Does nothing if the stream is closed."""
        if stream.state != CLOSED:
            self._guard.answered(self._now_ns)
            self.sender.respond(stream, start, body, size, end)

    def begin(self, stream: Stream, start: FieldBlock) -> None:
        """Send response headers; data and an end follow."""
        if stream.state != CLOSED:
            stream.begun = True
            self.sender.begin(stream, start.payload)

    def data(self, stream: Stream, payload: Piece) -> None:
        """Send body bytes; bytes beyond the windows wait (`waiting_bytes`)."""
        if stream.state != CLOSED:
            self._guard.answered(self._now_ns)
            self.sender.data(stream, payload)

    def end(self, stream: Stream, trailers: bytes) -> None:
        """Send trailers: the response is complete once all waiting bytes were sent."""
        if stream.state != CLOSED:
            self._guard.refused()
            self.sender.end(stream, trailers)

    def reset(self, stream: Stream, code: Code) -> None:
        """Reset a stream. No event follows."""
        if stream.state != CLOSED:
            self._send_reset(stream.id, code)
            self._close(stream, RESET)

    def grant(self, stream: Stream, increment: int) -> None:
        """Let the peer send `increment` bytes more on a stream."""
        if stream.state == OPEN and increment > 0:
            stream.receive_window += increment
            self.sender.send_control(frames.window_frame(stream.id, increment))

    def ping(self, payload: bytes) -> None:
        """Send a PING of eight bytes; `PingAcknowledged` follows."""
        self.sender.send_control(frames.frame(frames.PING, 0, 0, payload))

    def hold(self) -> None:
        """Let DATA wait: the transport takes no more."""
        self.sender.held = True

    def release(self) -> None:
        """Send DATA again: the transport takes more."""
        self.sender.release()

    @property
    def settled(self) -> bool:
        """Return True if the peer has sent its preface and its SETTINGS."""
        return self._controls.settled

    def announce_drain(self) -> None:
        """Begin a graceful end: ask the peer to connect elsewhere; streams under way are still accepted."""
        # Requests may be on their way. The greatest number tells the peer that none of them is lost (section 6.8).
        if not self.failed:
            self.sender.send_control(frames.goaway_frame(frames.LARGEST_STREAM, Code.NO_ERROR, frames.STOPPING))

    def drain(self, why: str = frames.STOPPING) -> None:
        """Complete a graceful end: streams opened from now on are ignored. `why` is for the peer's log."""
        if not (self.draining or self.failed):
            self.draining, self._last_taken = True, self._last_stream
            self.sender.send_control(frames.goaway_frame(self._last_stream, Code.NO_ERROR, why))

    def fail(self, fault: ProtocolError) -> None:
        """End the connection with a GOAWAY that states the reason."""
        if self.failed is None:
            self.failed, self.behind = fault, 0
            last = min(self._last_stream, self._last_taken)
            self.sender.send_control(frames.goaway_frame(last, fault.code, fault.problem))

    # ---- reading ---------------------------------------------------------------------------------------------------
    def check_frame(self, kind: int, length: int) -> bool:
        """Return True if the reader must collect the whole frame; unknown ones are ignored (section 4.1)."""
        if self._blocks.unfinished and kind != frames.CONTINUATION:
            raise ProtocolError(Code.PROTOCOL_ERROR, "a field block was interrupted")
        if not self._controls.settled and kind != frames.SETTINGS:
            raise ProtocolError(Code.PROTOCOL_ERROR, "the first frame must be SETTINGS")
        if length > self._limits.max_frame_bytes:
            raise ProtocolError(Code.FRAME_SIZE_ERROR, f"a frame of {length} bytes was not offered")
        self.meter.ns += work.FRAME_NS
        if kind == frames.DATA:
            return False
        if kind not in self._READERS and kind not in KINDS:
            self._guard.control(self._now_ns)
            return False
        if length > SIZE_FACTOR * self._limits.max_header_bytes:
            raise ProtocolError(Code.ENHANCE_YOUR_CALM, f"a control frame of {length} bytes is too large")
        return True

    def read_frame(self, kind: int, flags: int, number: int, payload: memoryview) -> None:
        """Process a whole frame other than DATA."""
        if kind in self._READERS:
            self._READERS[kind](self, flags, number, payload)
        elif event := self._controls.read(kind, flags, number, payload, self._now_ns):
            self._events.append(event)

    def read_request(self, data: memoryview, place: int, number: int, length: int) -> int:
        """Process a new stream's HEADERS with its whole body, as if one by one. Return the bytes used, or 0."""
        body, meter, blocks = place + frames.HEADER_BYTES + length, self.meter, self._blocks
        found = frames.whole_body(data, body, number)
        opens = number > self._last_stream and number & 1 and self._controls.settled and not blocks.unfinished
        if found is None or not opens or length > self._most_block_bytes:
            return 0
        self._last_stream = number
        block, streams, limits = bytes(data[place + frames.HEADER_BYTES : body]), self.streams, self._limits
        known = blocks.known.get(block)
        if known is None or self.draining or len(streams) >= limits.max_streams:
            meter.ns += work.FRAME_NS + work.STREAM_NS
            stream = self._open(number, block, ended=False)
            if stream is None:
                return body - place
        else:  # the usual case of `_open`
            meter.ns += work.FRAME_NS + work.STREAM_NS + work.BLOCK_NS
            sent = self.sender.initial_window
            streams[number] = stream = Stream(number, known[0], self._now_ns, limits.stream_window_bytes, sent)
            stream.announced = known[1]
        begin, stop, widened = found
        size = stop - begin
        fits = size <= self._most_at_once and (stream.announced is None or stream.announced == size)
        if not fits or (widened and not self._widen_new(stream, widened)):
            self._events.append(StreamOpened(stream, ended=False))
            return body - place
        meter.ns += work.FRAME_NS + work.DELIVERY_NS
        window = self._window
        if window.left - size >= window.half:
            window.left -= size
        elif again := window.spend(size):
            self.sender.send_control(frames.window_frame(0, again))
        stream.state = PEER_DONE
        self._events.append(RequestReceived(stream, data[begin:stop]))
        return stop - place + (self._widen_behind(data, stop) if stop < len(data) else 0)

    def _widen_behind(self, data: memoryview, place: int) -> int:
        """Process a WINDOW_UPDATE of the connection that follows a request, as from gRPC's C core.

        Return the bytes used; 0, with nothing done, if anything else follows.
        """
        if len(data) - place < frames.WINDOW_UPDATE_BYTES:
            return 0
        high, low, kind, _, number = _read_header(data, place)
        increment = _read_uint32(data, place + frames.HEADER_BYTES)[0] & frames.LARGEST_WINDOW
        odd = kind != frames.WINDOW_UPDATE or high or low != frames.UINT32.size or number & frames.LARGEST_STREAM
        if odd or not increment:
            return 0
        self.meter.ns += work.FRAME_NS + work.REPLY_NS
        self._guard.window_update(self._now_ns, self.sender.frames)
        self.sender.widen(increment)
        return frames.WINDOW_UPDATE_BYTES

    def _widen_new(self, stream: Stream, increment: int) -> bool:
        """Process a WINDOW_UPDATE of a new stream. Return False, with nothing done, if it is too wide."""
        if stream.send_window + increment > frames.LARGEST_WINDOW:
            return False
        self.meter.ns += work.FRAME_NS
        self._guard.window_update(self._now_ns, self.sender.frames)
        stream.send_window += increment
        return True

    # ---- DATA ------------------------------------------------------------------------------------------------------
    def begin_data(self, flags: int, number: int, length: int, content: int) -> None:
        """Process the header of DATA of `length` bytes, `content` of them without padding."""
        if again := self._window.spend(length):
            self.sender.send_control(frames.window_frame(0, again))
        self._body_ends = bool(flags & frames.END_STREAM)
        self._body = stream = self._receiving(number, length, content)
        if not content:
            if stream is not None and self._body_ends:
                self._deliver(stream, (), True)
            else:
                self._guard.control(self._now_ns)
        if content != length and stream is not None:
            self.meter.ns += work.REPLY_NS
            self.grant(stream, length - content)  # no event reports padding, so its bytes are granted here

    def read_data(self, parts: Sequence[memoryview], last: bool) -> None:
        """Process content of the DATA that was begun; `last`: it has no more."""
        stream = self._body
        if stream is not None and stream.state == OPEN:
            self._deliver(stream, parts, last and self._body_ends)

    def _deliver(self, stream: Stream, parts: Sequence[memoryview], ended: bool) -> None:
        self.meter.ns += work.DELIVERY_NS + work.PART_NS * len(parts)
        if ended:
            stream.state = MOVES[stream.state][PEER_ENDS]
        self._events.append(DataReceived(stream, parts, ended))

    def _receiving(self, number: int, length: int, content: int) -> Stream | None:
        stream = self.streams.get(number)
        if stream is None:
            self._check_opened("DATA", number)
            if not self._closed_by_us.ignores(number, self._body_ends):  # else the peer may not know yet
                self._refuse(number, Code.STREAM_CLOSED)
            return None
        stream.receive_window -= length
        if stream.announced is not None:
            stream.announced -= content
        if stream.state == PEER_DONE:
            self._break(stream, Code.STREAM_CLOSED)
        elif stream.receive_window < 0:
            self._break(stream, Code.FLOW_CONTROL_ERROR)
        elif stream.announced is not None and (stream.announced < 0 or (self._body_ends and stream.announced)):
            self._break(stream, Code.PROTOCOL_ERROR)  # RFC 9113, section 8.1.1
        else:
            return stream
        return None

    def _check_opened(self, what: str, number: int) -> None:
        """Raise ProtocolError if the frame is on a stream that is idle, or that no client can open."""
        if number > self._last_stream or not number & 1:
            raise ProtocolError(Code.PROTOCOL_ERROR, f"{what} on stream {number}, which is idle")

    # ---- headers ---------------------------------------------------------------------------------------------------
    def _read_headers(self, flags: int, number: int, payload: memoryview) -> None:
        if flags & (frames.PADDED | frames.PRIORITISED):
            payload = fragment(flags, number, payload)
        if flags & frames.END_HEADERS:
            self._take_block(flags, number, bytes(payload))
        else:
            self._blocks.begin(flags, number, payload)

    def _read_continuation(self, flags: int, number: int, payload: memoryview) -> None:
        self.meter.ns += work.REPLY_NS
        whole = self._blocks.go_on(flags, number, payload)
        if whole is not None:
            self._take_block(whole[0], number, whole[1])

    def _take_block(self, flags: int, number: int, block: bytes) -> None:
        ended = bool(flags & frames.END_STREAM)
        stream = self.streams.get(number)
        if stream is not None:
            self._take_trailers(stream, block, ended)
        elif not number & 1:
            raise ProtocolError(Code.PROTOCOL_ERROR, f"HEADERS on stream {number}, which no client can open")
        elif number > self._last_stream:
            self._last_stream = number
            self.meter.ns += work.STREAM_NS
            stream = self._open(number, block, ended)
            if stream is not None:
                stream.state = PEER_DONE if ended else OPEN
                self._events.append(StreamOpened(stream, ended))
        elif self._closed_by_us.ignores(number, ended):  # the peer sent it before our reset arrived (section 5.1)
            self._guard.control(self._now_ns)
            self._blocks.skim(block)
        else:
            raise ProtocolError(Code.STREAM_CLOSED, f"HEADERS on stream {number}, which is closed")

    def _open(self, number: int, block: bytes, ended: bool) -> Stream | None:
        """Return a new stream, or None if it is refused."""
        try:
            known = self._blocks.parsed(block)
        except StreamError as fault:
            self._refuse(number, fault.code)
            return None
        if known is None:
            self._refuse(number, Code.ENHANCE_YOUR_CALM)
        elif len(self.streams) >= self._limits.max_streams:
            self._refuse(number, Code.REFUSED_STREAM)
        elif self.draining:
            self._closed_by_us.add(number)
        elif ended and known[1]:
            self._refuse(number, Code.PROTOCOL_ERROR)
        else:
            windows = self._limits.stream_window_bytes, self.sender.initial_window
            self.streams[number] = stream = Stream(number, known[0], self._now_ns, *windows)
            stream.announced = known[1]
            return stream
        return None

    def _take_trailers(self, stream: Stream, block: bytes, ended: bool) -> None:
        """Process a request's trailers. They have no meaning here, but the block changes the peer's table."""
        fields = self._blocks.skim(block)
        if stream.state == PEER_DONE:
            self._break(stream, Code.STREAM_CLOSED)
        elif not ended or fields is None or not are_trailers(fields) or stream.announced:
            self._break(stream, Code.PROTOCOL_ERROR)
        else:
            stream.state = MOVES[stream.state][PEER_ENDS]
            self._events.append(DataReceived(stream, (), True))

    # ---- control frames of streams -----------------------------------------------------------------------------------
    def _read_reset(self, _flags: int, number: int, payload: memoryview) -> None:
        check_shape(frames.RST_STREAM, number, payload)
        self._check_opened("RST_STREAM", number)
        self._guard.reset(self._now_ns)
        self.meter.ns += work.RESET_NS
        stream = self.streams.get(number)
        if stream is not None:
            self._close(stream, RESET)
            self._events.append(StreamDropped(stream))
        self._closed_by_us.ignores(number, ended=True)

    def _read_window_update(self, _flags: int, number: int, payload: memoryview) -> None:
        check_shape(frames.WINDOW_UPDATE, number, payload)
        increment = frames.UINT32.unpack(payload)[0] & frames.LARGEST_WINDOW
        self._guard.window_update(self._now_ns, self.sender.frames)
        self.meter.ns += work.REPLY_NS
        stream = self.streams.get(number)
        if not number:
            if not increment:
                raise ProtocolError(Code.PROTOCOL_ERROR, "WINDOW_UPDATE by nothing")
            self.sender.widen(increment)
        elif stream is None:
            self._check_opened("WINDOW_UPDATE", number)
            if not increment:
                self._refuse(number, Code.PROTOCOL_ERROR)
        elif not increment:
            self._break(stream, Code.PROTOCOL_ERROR)
        elif not self.sender.widen_stream(stream, increment):
            self._break(stream, Code.FLOW_CONTROL_ERROR)

    # ---- the end of streams ------------------------------------------------------------------------------------------
    def _refuse(self, number: int, code: Code) -> None:
        """Reset a stream that is never opened, or no longer open."""
        self._guard.reset(self._now_ns)
        self.meter.ns += work.RESET_NS
        self._send_reset(number, code)

    def _break(self, stream: Stream, code: Code) -> None:
        """Reset a stream on which the peer broke a rule; it counts as a reset (CVE-2025-8671, "made you reset")."""
        self._close(stream, RESET)
        self._events.append(StreamDropped(stream))
        self._refuse(stream.id, code)

    def _end_sent(self, stream: Stream) -> None:
        if stream.state == OPEN:  # the rest of the request is not wanted, and the response stands (section 8.1)
            self._send_reset(stream.id, Code.NO_ERROR)
        self._close(stream, WE_END)

    def _send_reset(self, number: int, code: Code) -> None:
        self._closed_by_us.add(number)
        self.sender.send_control(frames.reset_frame(number, code))

    def _close(self, stream: Stream, how: int) -> None:
        stream.state = MOVES[stream.state][how]
        del self.streams[stream.id]
        if stream.waiting is not None:
            self.sender.forget(stream)

    _READERS: Mapping[int, Callable[[Http2Connection, int, int, memoryview], None]] = {
        frames.HEADERS: _read_headers,
        frames.RST_STREAM: _read_reset,
        frames.WINDOW_UPDATE: _read_window_update,
        frames.CONTINUATION: _read_continuation,
    }
