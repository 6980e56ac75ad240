"""One connection of the gateway's own gRPC server: an asyncio protocol around the HTTP/2 connection, with calls.

Everything runs on the event loop. One write answers all frames of one read; one write sends the answers of one run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import cast

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.tensor import Raw
from gateway.common.timeouts import timeout_at
from gateway.serving.domain.infer import InferResponse, RequestedOutput, ResponseForm
from gateway.serving.frontends.connections import HALF_OPEN_S
from gateway.serving.frontends.grpc_v2.calls import unexpected
from gateway.serving.frontends.grpc_v2.codec.infer_codec import Known
from gateway.serving.frontends.grpc_v2.codec.patterns import WHOLE_BYTES
from gateway.serving.frontends.grpc_v2.framing import PREFIX
from gateway.serving.frontends.grpc_v2.http2.connection import Http2Connection
from gateway.serving.frontends.grpc_v2.http2.errors import Code, ProtocolError
from gateway.serving.frontends.grpc_v2.http2.events import DataReceived, RequestReceived, StreamDropped, StreamOpened
from gateway.serving.frontends.grpc_v2.http2.frames import STOPPING
from gateway.serving.frontends.grpc_v2.http2.sender import Piece
from gateway.serving.frontends.grpc_v2.http2.streams import CLOSED, Stream
from gateway.serving.frontends.grpc_v2.service.load import ConnectionLoad
from gateway.serving.frontends.grpc_v2.settings import GrpcSettings
from gateway.serving.frontends.grpc_v2.transport import replies
from gateway.serving.frontends.grpc_v2.transport.listening_socket import SocketProtocol
from gateway.serving.frontends.grpc_v2.transport.messages import ReceivedMessage
from gateway.serving.frontends.grpc_v2.transport.ports import ConnectionOwner
from gateway.serving.frontends.grpc_v2.transport.request_headers import FIELDS, RequestHeaders, RequestHeadersReader
from gateway.serving.frontends.grpc_v2.transport.streaming import Streaming
from gateway.serving.frontends.grpc_v2.transport.timeouts import Timeouts, are_half_open
from gateway.serving.frontends.grpc_v2.transport.unary import AwaitedReply, Unary, answer_message, one_request
from gateway.serving.frontends.grpc_v2.transport.write_ahead import WriteAhead
from gateway.serving.frontends.peer import Peer, certified

OWN = (Unary, AwaitedReply, Streaming)  # types of a stream's call other than a submitted request
DRAINED = b"drained\0"  # PING whose answer shows that the peer has read the GOAWAY (RFC 9113, section 6.8)
Collected = tuple[Stream, Raw, Known]
"""Token of a unary request in a batch: its stream, its message, and what is known of it."""
_unpack_prefix = PREFIX.unpack_from


class GrpcConnection(SocketProtocol):
    """Connection of the gRPC server. Implements `domain.ports.Sink`: the token of a submitted request is its stream."""

    def __init__(self, server: ConnectionOwner[GrpcConnection], peer: Peer) -> None:
        self._server, self._peer, self.share_key = server, peer, peer.share_key
        self.settings: GrpcSettings = server.settings
        self.bounds, self.memory, self.decoding = server.bounds, server.memory, server.decoding
        self.incoming, self.buffer, self.submission = server.incoming, server.buffer, server.submission
        self._most_bytes, self.write_ahead = server.settings.max_message_bytes, WriteAhead()
        self._infer = server.infer
        self._asked: dict[Stream, Sequence[RequestedOutput]] = {}
        self._now_ns = self.received_ns = self._made_ns = 0

    # ---- asyncio ---------------------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the connection with the peer, or refuse it."""
        self._transport, self._made_ns = cast("asyncio.Transport", transport), time.monotonic_ns()
        server, settings, peer = self._server, self.settings, certified(self._peer, transport)
        self.load = ConnectionLoad(server.load, settings, peer)
        self._reader = RequestHeadersReader(server.rpcs, peer, server.authentication, settings.retry_after_s)
        self._h2 = Http2Connection(settings.http2, self._reader.read, FIELDS)
        self._timeouts = Timeouts(self, settings)
        tls = transport.get_extra_info("ssl_object")
        if not server.enter(self, peer):
            self._h2.take()  # no SETTINGS are sent, so that gRPC's clients back off
            self._transport.close()
        elif tls is not None and tls.selected_alpn_protocol() != "h2":
            self._h2.fail(ProtocolError(Code.INADEQUATE_SECURITY, "gRPC over TLS needs ALPN to agree on h2"))
        self.flush()

    def connection_lost(self, _error: Exception | None) -> None:
        """Cancel everything that is under way."""
        self._timeouts.stop()
        self._server.leave(self)
        for stream in self.streams():
            self._h2.reset(stream, Code.CANCEL)
            self._cancel_call(stream)
        self.load.count_waiting(0)

    def socket_closed(self) -> None:
        """Implement `SocketProtocol.socket_closed`: free the connection's place."""
        self._server.closed(self)

    def receive(self, data: memoryview) -> int:
        """Implement `SocketProtocol.receive`."""
        h2 = self._h2
        self._now_ns = now_ns = time.monotonic_ns()
        for event in h2.receive(data, now_ns):
            if type(event) is RequestReceived:
                self._requested(event.stream, event.payload)
            elif isinstance(event, DataReceived):
                self._received(event)
            elif isinstance(event, StreamOpened):
                self._opened(event)
            elif isinstance(event, StreamDropped):
                self._cancel_call(event.stream)
            elif event.payload == DRAINED:
                h2.drain()
        if h2.sender.out or h2.failed or h2.draining or h2.sender.waiting_bytes != self.load.waiting_bytes:
            self.flush()
        if self.write_ahead.waiting:
            self.write_ahead.wake()
        self.received_ns, self.behind = now_ns, h2.behind
        if self._timeouts.was_idle:
            self._timeouts.wake()
        return h2.meter.ns

    def pause_writing(self) -> None:
        """Stop reading while the peer takes nothing: the waiting bytes would grow."""
        self._h2.hold()
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Continue: the peer takes bytes again."""
        self._h2.release()
        self._transport.resume_reading()
        self.flush()

    # ---- requests --------------------------------------------------------------------------------------------------
    def _requested(self, stream: Stream, payload: memoryview) -> None:
        headers = stream.headers
        if type(headers) is RequestHeaders and headers.unary and len(payload) >= PREFIX.size:
            flag, size = _unpack_prefix(payload)
            if not flag and size == len(payload) - PREFIX.size and size <= self._most_bytes:
                self._start(stream, payload[PREFIX.size :], lent=True)
                return
        self._opened(StreamOpened(stream, ended=False))
        self._received(DataReceived(stream, (payload,), ended=True))

    def _opened(self, event: StreamOpened) -> None:
        stream, headers = event.stream, event.stream.headers
        if type(headers) is not RequestHeaders:
            self._h2.end(stream, headers)
        elif not headers.unary:
            self._begin(stream, Streaming(self, stream, ended=event.ended))
        elif event.ended:
            self.end_with_error(stream, one_request("none came"))
        else:
            try:
                stream.call = Unary(self, stream)
            except RequestError as error:
                self.end_with_error(stream, error)

    def _received(self, event: DataReceived) -> None:
        call = event.stream.call
        if call is not None and event.stream.state != CLOSED:  # else it was refused, or its answers are not taken
            call.received(event.parts, event.ended, self._now_ns)

    def start(self, stream: Stream, message: ReceivedMessage) -> None:
        """Start a unary call whose request is complete."""
        if message.compressed:
            self._begin(stream, AwaitedReply(self, stream, answer_message, message, stream, self))
        else:
            self._start(stream, message.content, lent=False)

    def _start(self, stream: Stream, content: Raw, *, lent: bool) -> None:
        headers = stream.headers
        if headers.rpc is not self._infer:
            self._call(stream, content, lent=lent)
            return
        raw = bytes(content) if (small := len(content) <= WHOLE_BYTES) else content
        try:
            known = self.submission.find(raw)
            collects = known is not None and known[0].batch is not None and not self.load.waiting_bytes
            if collects and (small or not lent):
                ends_ns = None if headers.timeout_ns is None else stream.opened_ns + headers.timeout_ns
                if self.submission.collect(self, (stream, raw, known), headers.info, self._now_ns, ends_ns):
                    return
        except Exception as error:  # noqa: BLE001 - the boundary: a defect must not show its traceback
            self.end_with_error(stream, unexpected(error, headers.rpc.path))
            return
        self._submit(stream, raw, known, lent=lent)

    def _submit(self, stream: Stream, content: Raw, known: Known | None, *, lent: bool) -> None:
        headers = stream.headers
        info = headers.info if headers.timeout_ns is None else headers.info_at(stream.opened_ns)
        try:
            self.load.begin_call(info)
        except RequestError as error:
            self.end_with_error(stream, error)
            return
        try:
            begun = self.submission.submit(self, stream, content, known, info, now_ns=self._now_ns, lent=lent)
            if begun is None:
                self.load.end_call(info)  # its task counts again
                self._call(stream, content, lent=lent)
                return
            request, stream.call = begun
            if request.outputs:
                self._asked[stream] = request.outputs
        except Exception as error:  # noqa: BLE001 - as in `_start`
            self.refuse(stream, unexpected(error, headers.rpc.path))

    def _call(self, stream: Stream, content: Raw, *, lent: bool) -> None:
        """Call the method of a complete request."""
        message = ReceivedMessage(bytes(content) if lent else content, compressed=False)
        self._begin(stream, AwaitedReply(self, stream, answer_message, message, stream, self))

    def _begin(self, stream: Stream, call: AwaitedReply | Streaming) -> None:
        """Run a call's method in a task of its own."""
        load, info, streaming = self.load, stream.headers.info, type(call) is Streaming
        try:
            load.begin_stream(info) if streaming else load.begin_call(info)
        except RequestError as error:
            self.end_with_error(stream, error)
            return
        stream.call = call
        task = asyncio.get_running_loop().create_task(self._guarded(stream, call), name=stream.headers.rpc.path)
        task.add_done_callback(lambda _: load.end_stream(info) if streaming else load.end_call(info))
        call.task = task

    async def _guarded(self, stream: Stream, call: AwaitedReply | Streaming) -> None:
        """Run a call to its end: any error is sent to the caller."""
        ends_s = None if stream.headers.timeout_ns is None else (stream.opened_ns + stream.headers.timeout_ns) / 1e9
        try:
            async with timeout_at(ends_s) as time_left:
                await call.run()
        except Exception as error:  # noqa: BLE001 - as in `_start`
            late = isinstance(error, TimeoutError) and time_left.expired()
            refusal = RequestError(Fault.EXPIRED, "the call's time was over before its answer was there")
            self.end_with_error(stream, refusal if late else unexpected(error, stream.headers.rpc.path))
        finally:
            del time_left  # else the task and its CancelledError hold each other, and the message
        self.flush()

    def _cancel_call(self, stream: Stream) -> None:
        """Cancel a stream's call: the caller no longer waits for its answer."""
        call, stream.call = stream.call, None
        self._asked.pop(stream, None)
        if call is not None:
            call.cancel()
            if not isinstance(call, OWN):
                self.load.end_call(stream.headers.info)

    # ---- answers: Sink ---------------------------------------------------------------------------------------------
    def part(self, token: Stream, response: InferResponse) -> None:
        """Implement `Sink.part`: ModelInfer asks for none."""

    def answer(self, token: Stream, response: InferResponse) -> None:
        """Implement `Sink.answer`."""
        token.call = None
        asked = self._asked.pop(token, ()) if self._asked else ()
        self.load.end_call(token.headers.info)
        try:
            encoded = self._server.codec.encode(response, asked)
        except Exception as error:  # noqa: BLE001 - as in `_start`; a sink must not raise
            self.end_with_error(token, unexpected(error, token.headers.rpc.path))
        else:
            if encoded is not None:
                self._h2.respond(token, replies.RESPONSE, encoded[0], encoded[1], replies.OK)
            else:
                self._begin(token, AwaitedReply(self, token, self._server.encode, response, asked, token.headers.info))

    def refuse(self, token: Stream, error: RequestError) -> None:
        """Implement `Sink.refuse`."""
        self.load.end_call(token.headers.info)
        self._asked.pop(token, None)
        self.end_with_error(token, error)

    def answer_raw(self, token: Collected, form: ResponseForm, contents: Sequence[Raw]) -> None:
        """Implement `RawSink.answer_raw`."""
        stream = token[0]
        try:
            pieces, size = self.submission.encode_raw(form, token[2][1], contents)
        except Exception as error:  # noqa: BLE001 - as in `answer`
            self.end_with_error(stream, unexpected(error, stream.headers.rpc.path))
        else:
            self._h2.respond(stream, replies.RESPONSE, pieces, size, replies.OK)

    def submit_again(self, token: Collected) -> None:
        """Implement `RawSink.submit_again`."""
        stream, raw, known = token
        if stream.state != CLOSED:
            self._submit(stream, raw, known, lent=True)

    def flush(self) -> None:
        """Implement `Sink.flush`: write all frames; close the connection after the last ones."""
        h2, sender = self._h2, self._h2.sender
        if pieces := sender.out:
            sender.out = []
            self._transport.write(pieces[0]) if len(pieces) == 1 else self._transport.writelines(pieces)
        if sender.waiting_bytes != self.load.waiting_bytes:
            self.load.count_waiting(sender.waiting_bytes)
        if self.write_ahead.waiting:
            self.write_ahead.wake()
        if h2.failed or (h2.draining and not h2.streams):
            self._transport.close()

    # ---- interface of calls ----------------------------------------------------------------------------------------
    def grant(self, stream: Stream, size: int) -> None:
        """Let the peer send at least `size` bytes more of a stream."""
        self._h2.grant(stream, size - stream.receive_window)

    def reply(self, stream: Stream, pieces: Sequence[Piece], size: int) -> None:
        """Send a unary call's whole reply."""
        stream.call = None
        self._h2.respond(stream, replies.RESPONSE, pieces, size, replies.OK)

    def write(self, stream: Stream, pieces: Sequence[Piece]) -> None:
        """Send one message of a streaming reply with the next `flush`."""
        if not stream.begun:
            self._h2.begin(stream, replies.RESPONSE)
        for piece in pieces:
            self._h2.data(stream, piece)

    def end(self, stream: Stream) -> None:
        """End a streaming reply."""
        stream.call = None
        self.write(stream, ())
        self._h2.end(stream, replies.OK.payload)

    def end_with_error(self, stream: Stream, error: RequestError) -> None:
        """End a call with an error, at any stage."""
        stream.call = None
        ending = replies.ending if stream.begun else replies.refusal
        self._h2.end(stream, ending(error, self.settings.retry_after_s))

    # ---- interface of timeouts and the server ----------------------------------------------------------------------
    @property
    def settled(self) -> bool:
        """Return True if the peer has completed the HTTP/2 handshake."""
        return self._h2.settled

    @property
    def idle(self) -> bool:
        """Return True if the connection could be closed without loss, and is not ending."""
        if not self._made_ns:  # the TLS handshake has limits of its own
            return False
        silent = not self._h2.settled and time.monotonic_ns() - self._made_ns > HALF_OPEN_S * 1e9
        return silent or not (self.busy or self._h2.draining or self._h2.failed)

    @property
    def half_open(self) -> bool:
        """Implement `Yielding.half_open`."""
        # the TLS handshake, before the connection is made, has limits of its own
        return (
            bool(self._made_ns)
            and not (self.has_unsent_bytes or self._h2.behind)
            and are_half_open(self._h2.streams.values())
        )

    def give_way(self) -> None:
        """Implement `Yielding.give_way`: close this connection in favour of another."""
        is_idle = self._h2.settled and not self._h2.streams
        if not is_idle:
            self.end_calls(RequestError(Fault.OVERLOADED, "too many requests wait for their rest; send it at once"))
        self.drain("idle for longest; connect again when needed") if is_idle else self.abort()

    @property
    def busy(self) -> bool:
        """Return True if anything is under way that the peer could delay."""
        return bool(self._h2.streams) or not self._h2.settled or self.has_unsent_bytes

    @property
    def has_unsent_bytes(self) -> bool:
        """Return True if bytes wait that the peer has not taken."""
        return bool(self._h2.sender.waiting_bytes or self._transport.get_write_buffer_size())

    @property
    def written(self) -> tuple[int, int]:
        """Return a value that changes whenever the peer takes waiting bytes."""
        return self._h2.sender.waiting_bytes, self._transport.get_write_buffer_size()

    def streams(self) -> list[Stream]:
        """Return the open streams, the oldest first."""
        return list(self._h2.streams.values())

    def ping(self, payload: bytes) -> None:
        """Send a PING, to find out if the peer is alive."""
        self._h2.ping(payload)
        self.flush()

    def abort(self) -> None:
        """End the connection at once."""
        self._transport.abort()

    def begin_drain(self) -> None:
        """Ask the peer to connect elsewhere; streams that it opens after it has read that are ignored."""
        self._h2.announce_drain()
        self.ping(DRAINED)

    def drain(self, why: str = STOPPING) -> None:
        """Ignore new streams, even if the peer does not know yet."""
        self._h2.drain(why)
        self.flush()

    def end_calls(self, error: RequestError) -> None:
        """End all calls under way with `error`."""
        for stream in self.streams():
            self._end_call(stream, error)
        self.drain()

    def check_callers(self) -> None:
        """Identify callers again: tokens or grants were replaced. Calls in progress end if `check_again` refuses."""
        self._h2.forget_parsed()
        for stream in self.streams():
            headers = stream.headers
            if type(headers) is RequestHeaders:  # else it was refused, and its answer waits to be taken
                try:
                    self._reader.check_again(headers)
                except RequestError as error:
                    self._end_call(stream, error)
        self.flush()

    def _end_call(self, stream: Stream, error: RequestError) -> None:
        call = stream.call
        self.end_with_error(stream, error)
        stream.call = call
        self._cancel_call(stream)
