"""Small requests of a ModelStreamInfer call, in the engine's batches as those of unary calls: no task for each.

A message that no batch takes (large, compressed or of unknown form, or too many in flight) is passed to the method.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.common.domain.errors import RequestError
from gateway.common.domain.tensor import Raw
from gateway.serving.domain.infer import InferResponse, ResponseForm
from gateway.serving.frontends.grpc_v2.calls import parse_message, unexpected
from gateway.serving.frontends.grpc_v2.codec.encode import encode_stream_error, encode_stream_reply
from gateway.serving.frontends.grpc_v2.codec.infer_codec import Known
from gateway.serving.frontends.grpc_v2.codec.patterns import WHOLE_BYTES
from gateway.serving.frontends.grpc_v2.codec.protocol import message
from gateway.serving.frontends.grpc_v2.framing import PREFIX, Encoded
from gateway.serving.frontends.grpc_v2.http2.streams import CLOSED, Stream
from gateway.serving.frontends.grpc_v2.transport.messages import ReceivedMessage
from gateway.serving.frontends.grpc_v2.transport.ports import CallConnection

FINAL = b"triton_enable_empty_final_response"
"""Parameter of requests whose answer is marked."""
NOTED_SHARE = 4
"""Divisor of `stream_idle_s`: after that time a request goes to the method, which ends streams without requests."""

Token = tuple[bytes, Known]
_read_prefix = PREFIX.unpack_from


class StreamRequests:
    """Requests of one stream. Implements `domain.ports.RawSink`.

    `in_flight` requests are in a batch. `noted_ns`: time at which the method took its last message. `again` takes a
    message that its batch does not answer. `changed` is called after each answer.
    """

    __slots__ = ("_again", "_changed", "_connection", "_stream", "in_flight", "noted_ns")

    def __init__(
        self,
        connection: CallConnection,
        stream: Stream,
        again: Callable[[ReceivedMessage], None],
        changed: Callable[[], None],
    ) -> None:
        self._connection, self._stream, self._again, self._changed = connection, stream, again, changed
        self.noted_ns = stream.opened_ns
        self.in_flight = 0

    def take(self, payload: memoryview, now_ns: int, most: int) -> memoryview:
        """Add the first requests of `payload` to batches, until `most` are in flight. Return the rest."""
        while self.in_flight < most and len(payload) > PREFIX.size:
            flag, size = _read_prefix(payload)
            stop = PREFIX.size + size
            if flag or size > WHOLE_BYTES or stop > len(payload):
                break
            if not self._collect(bytes(payload[PREFIX.size : stop]), now_ns):
                break
            payload = payload[stop:]
        return payload

    def offer(self, message: ReceivedMessage, now_ns: int, most: int) -> bool:
        """Add a message to a batch unless `most` are in flight. Return False if the method must take it."""
        small = not message.compressed and len(message.content) <= WHOLE_BYTES
        return small and self.in_flight < most and self._collect(bytes(message.content), now_ns)

    def _collect(self, raw: bytes, now_ns: int) -> bool:
        connection, headers = self._connection, self._stream.headers
        if now_ns - self.noted_ns > connection.settings.stream_idle_s * 1e9 / NOTED_SHARE:
            return False
        known = connection.submission.find(raw)
        if known is None or FINAL in raw:
            return False
        ends_ns = headers.ends_ns(self._stream.opened_ns)
        if not connection.submission.collect(self, (raw, known), headers.info, now_ns, ends_ns):
            return False
        self.in_flight += 1
        return True

    # ---- RawSink ---------------------------------------------------------------------------------------------------
    def part(self, token: Token, response: InferResponse) -> None:
        """Implement `Sink.part`: as `answer`."""
        raise NotImplementedError

    def answer(self, token: Token, response: InferResponse) -> None:
        """Implement `Sink.answer`: requests are submitted by the method."""
        raise NotImplementedError

    def answer_raw(self, token: Token, form: ResponseForm, contents: Sequence[Raw]) -> None:
        """Implement `RawSink.answer_raw`."""
        try:
            encoded = encode_stream_reply(self._connection.submission.encode_raw(form, token[1][1], contents))
        except Exception as error:  # noqa: BLE001 - a sink must not raise
            self.refuse(token, unexpected(error, self._stream.headers.rpc.path))
        else:
            self._send(encoded)

    def submit_again(self, token: Token) -> None:
        """Implement `RawSink.submit_again`."""
        self.in_flight -= 1
        self._again(ReceivedMessage(token[0], compressed=False))

    def refuse(self, token: Token, error: RequestError) -> None:
        """Implement `Sink.refuse`."""
        sent = parse_message(message("inference.ModelInferRequest"), token[0])
        self._send(encode_stream_error(error, sent, final=False))

    def flush(self) -> None:
        """Implement `Sink.flush`."""
        self._connection.flush()

    def _send(self, answer: Encoded) -> None:
        self.in_flight -= 1
        if self._stream.call is not None and self._stream.state != CLOSED:
            self._connection.write(self._stream, answer[0])
        self._changed()
