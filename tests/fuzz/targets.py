"""Targets of the fuzzer: each takes any bytes and raises where a promise is broken.

`connection`   whatever a peer says, and however it is chunked: no exception, the same outcome, bounded memory, silence
               after the end.
`hpack_blocks` blocks are read as the hpack package reads them; what it refuses is refused.
`huffman_code` likewise, and what is decoded is encoded to the same bytes.
`infer_codec`  a codec that remembers what it met decodes like one that meets everything for the first time.
`large_message` a message read without protobuf's parser means what the parser says, or is refused.
`json_body`    a JSON request is refused, or its tensors are those that Python's parser reads.
`pipelines`   a document is a pipeline that fits its models, or is refused with words.
`onnx_facts`  names in an ONNX file are those that the onnx package's parser finds, or the file is refused.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from typing import Any

import hpack as oracle
import numpy as np
import onnx
from google.protobuf.message import DecodeError
from hpack.exceptions import HPACKDecodingError, HPACKError
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.huffman_table import decode_huffman

from gateway.common.domain.errors import ConfigurationError, Fault, RequestError
from gateway.common.domain.manifest import ModelManifest, Preprocess, TensorSpec
from gateway.common.domain.onnx_file import read_onnx
from gateway.common.domain.pipeline_toml import read_pipeline
from gateway.common.domain.tensor import Datatype, finish
from gateway.serving.domain.infer import InferRequest
from gateway.serving.frontends.grpc_v2.calls import CallInfo, parse_message
from gateway.serving.frontends.grpc_v2.codec.decode import decode_request as grpc_request
from gateway.serving.frontends.grpc_v2.codec.decode import request_steps
from gateway.serving.frontends.grpc_v2.codec.infer_codec import LAYOUTS_LIMIT, PATTERNS_LIMIT, InferCodec
from gateway.serving.frontends.grpc_v2.codec.protocol import message
from gateway.serving.frontends.grpc_v2.http2 import frames, huffman
from gateway.serving.frontends.grpc_v2.http2.blocks import KNOWN_HEADERS
from gateway.serving.frontends.grpc_v2.http2.connection import Http2Connection
from gateway.serving.frontends.grpc_v2.http2.errors import Code, ProtocolError
from gateway.serving.frontends.grpc_v2.http2.events import (
    Event,
    PingAcknowledged,
    RequestReceived,
    StreamDropped,
    StreamOpened,
)
from gateway.serving.frontends.grpc_v2.http2.hpack import MOST_RESIZES, TABLE_BYTES, Decoder, Headers
from gateway.serving.frontends.grpc_v2.http2.limits import Http2Limits
from gateway.serving.frontends.grpc_v2.http2.reader import NOTHING
from gateway.serving.frontends.grpc_v2.http2.requests import read_request
from gateway.serving.frontends.grpc_v2.http2.streams import CLOSED, KEPT_CLOSED, Stream
from gateway.serving.frontends.grpc_v2.service import large_requests as reading
from gateway.serving.frontends.oip_json import decode_request
from gateway.serving.pipelines.plan import plan
from tests.simulators.constants import settings_with
from tests.simulators.http2_peer import HEAD, TRAILERS, WELCOME, parsed

LIMITS = settings_with(
    Http2Limits(),
    max_streams=5,
    max_header_bytes=4096,
    max_frame_bytes=16_384,
    connection_window_bytes=65_536,
    stream_window_bytes=65_535,
)
NOW_NS = 10**12
CHUNKS = (1, 2, 9, 10, 64, 1000)


# ---- the connection -------------------------------------------------------------------------------------------------
class Owner:
    """Connection owner that answers what is complete, gives windows, and records what it saw, without chunks."""

    def __init__(self, limits: Http2Limits, *, answers: bool) -> None:
        self.connection, self._limits, self._answers = Http2Connection(limits, read_request), limits, answers
        self.seen: dict[int, list[Any]] = {}
        self.said = bytearray(b"".join(self.connection.take()))

    def hear(self, words: bytes) -> None:
        connection = self.connection
        failed = connection.failed is not None
        events = connection.receive(memoryview(words), NOW_NS)
        assert not (failed and events)
        for event in events:
            self._note(event)
        while connection.behind:
            for event in connection.receive(NOTHING, NOW_NS):
                self._note(event)
        pieces = b"".join(connection.take())
        assert not (failed and pieces)
        parsed(pieces)
        self.said += pieces
        self._check()

    def _note(self, event: Event) -> None:
        if isinstance(event, PingAcknowledged):
            assert len(event.payload) == 8
            return
        stream = event.stream
        notes = self.seen.setdefault(stream.id, [b"", False, False])
        if isinstance(event, StreamDropped):
            assert stream.state == CLOSED
            notes[2] = True
            return
        if not isinstance(event, StreamOpened):
            assert not notes[1]
            notes[0] += bytes(event.payload) if isinstance(event, RequestReceived) else b"".join(event.parts)
        notes[1] = getattr(event, "ended", True)
        if self._answers:
            self._answer(stream, notes)

    def _answer(self, stream: Stream, notes: list[Any]) -> None:
        connection = self.connection
        if not notes[1]:
            connection.grant(stream, len(notes[0]) % 1000)
        elif stream.id % 4 == 1:
            connection.respond(stream, HEAD, (notes[0], b"x" * 50_000), len(notes[0]) + 50_000, TRAILERS)
        else:
            connection.begin(stream, HEAD)
            connection.data(stream, notes[0] * 9)
            connection.end(stream, TRAILERS.payload)

    def _check(self) -> None:
        connection, blocks = self.connection, self.connection._blocks
        assert len(connection.streams) <= self._limits.max_streams
        assert connection.sender.waiting_bytes == sum(stream.waiting_bytes for stream in connection.streams.values())
        assert len(connection._reader._rest) <= 9 + 5 * self._limits.max_frame_bytes
        assert len(blocks._parts) <= 5 * self._limits.max_header_bytes + self._limits.max_frame_bytes
        assert max(len(blocks._essences), len(blocks._shapes)) <= KNOWN_HEADERS
        assert blocks._decoder._used_bytes <= TABLE_BYTES
        assert len(connection._closed_by_us) <= KEPT_CLOSED


def connection(words: bytes) -> None:
    """Feed the words to connections; the first byte says how: after a welcome or not, and in which chunks."""
    how, words = words[:1] or b"\0", words[1:]
    words = (WELCOME if how[0] & 0x80 == 0 else frames.PREFACE if how[0] & 0x40 == 0 else b"") + words
    chunk = max(CHUNKS[how[0] % len(CHUNKS)], len(words) // 500)
    whole, parts, busy = Owner(LIMITS, answers=False), Owner(LIMITS, answers=False), Owner(LIMITS, answers=True)
    whole.hear(words)
    for place in range(0, len(words), chunk):
        parts.hear(words[place : place + chunk])
        busy.hear(words[place : place + chunk])
    _same(whole, parts)
    for owner in (whole, busy):
        owner.hear(WELCOME * 2)


def _same(whole: Owner, parts: Owner) -> None:
    ends = [None if owner.connection.failed is None else owner.connection.failed.code for owner in (whole, parts)]
    assert ends[0] is ends[1]
    assert _without_windows(whole) == _without_windows(parts)
    assert {number: notes for number, notes in whole.seen.items() if not notes[2]} == {
        number: notes for number, notes in parts.seen.items() if not notes[2]
    }


def _without_windows(owner: Owner) -> list[Any]:
    """Return what the owner said, without the connection's window: DATA frames in a row widen it at once."""
    return [each for each in parsed(bytes(owner.said)) if (each.kind, each.stream) != (frames.WINDOW_UPDATE, 0)]


# ---- header blocks --------------------------------------------------------------------------------------------------
def hpack_blocks(words: bytes) -> None:
    """Read blocks, each after a byte of its length."""
    theirs, ours = oracle.Decoder(1 << 16), Decoder(1 << 16)
    theirs.max_allowed_table_size = TABLE_BYTES
    while words:
        block, words = words[1 : 1 + words[0]], words[1 + words[0] :]
        expected, got = _oracle(theirs, block), _ours(ours, block)
        if got is None:
            assert expected is None or _has_large_integer(block) or MANY_RESIZES.match(block)
            return
        assert got == expected


MANY_RESIZES = re.compile(rb"(?:[\x20-\x3e]|\x3f[\x80-\xff]*[\x00-\x7f]){%d}" % (MOST_RESIZES + 1))
"""More changes of the table's size than our decoder reads before a block (RFC 7541, section 4.2: two are enough)."""


def _ours(decoder: Decoder, block: bytes) -> Headers | None:
    try:
        return decoder.decode(block)
    except ProtocolError as error:
        if error.code not in {Code.COMPRESSION_ERROR, Code.ENHANCE_YOUR_CALM}:
            raise
        return None


def _oracle(decoder: oracle.Decoder, block: bytes) -> Headers | None:
    try:
        return tuple((bytes(name), bytes(value)) for name, value in decoder.decode(block, raw=True))
    except (HPACKError, UnicodeDecodeError):
        return None


def _has_large_integer(block: bytes) -> bool:
    """Return whether an integer has more than five bytes, which only zeros can make small (RFC 7541, section 5.1).

    Our decoder reads none of these.
    """
    return any(all(byte & 0x80 for byte in block[place : place + 4]) for place in range(len(block) - 3))


ENCODER = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)


def huffman_code(words: bytes) -> None:
    """Decode any bytes as a code, and encode them as a string."""
    assert huffman.decode(ENCODER.encode(words)) == words
    try:
        expected = bytes(decode_huffman(words))
    except HPACKDecodingError:
        expected = None
    try:
        decoded = huffman.decode(words)
    except ProtocolError:
        decoded = None
    assert decoded == expected
    assert decoded is None or ENCODER.encode(decoded) == words


# ---- messages -------------------------------------------------------------------------------------------------------
def infer_codec(words: bytes) -> None:
    """Read messages, each after two bytes of its length."""
    remembers = InferCodec(None)
    call = CallInfo("caller", None)
    while words:
        size = int.from_bytes(words[:2], "big")
        raw, words = words[2 : 2 + size], words[2 + size :]
        for lent in (False, True, False):
            assert _decoded(remembers, raw, call, lent) == _decoded(InferCodec(None), raw, call, lent)
        assert remembers._known <= PATTERNS_LIMIT
        assert all(len(layouts) <= LAYOUTS_LIMIT for layouts in remembers._layouts.values())


def _decoded(codec: InferCodec, raw: bytes, call: CallInfo, lent: bool) -> tuple[Any, ...]:
    try:
        request = codec.decode(memoryview(bytearray(raw)) if lent else raw, call, NOW_NS, lent=lent)
    except RequestError as error:
        return error.fault, error.message
    return ("for the reader of large messages",) if request is None else _facts(request)


def large_message(words: bytes) -> None:
    """Read a message like a large one: what is accepted is what protobuf's parser says."""
    try:
        opened = finish(reading._opening(memoryview(words)))
        found = finish(request_steps(opened.sent, opened.parts, CallInfo(), NOW_NS, None))
    except RequestError as error:
        if error.fault not in {Fault.INVALID, Fault.TOO_LARGE}:
            raise
        return
    sent = parse_message(message("inference.ModelInferRequest"), words)
    assert _facts(found) == _facts(grpc_request(sent, CallInfo(), NOW_NS))


def _facts(request: InferRequest) -> tuple[Any, ...]:
    tensors = [
        (name, tensor.datatype, tensor.array.shape, tensor.array.dtype.str, _content(tensor.datatype, tensor.array))
        for name, tensor in request.inputs.items()
    ]
    ways = request.model, request.version, request.id, request.outputs, request.deadline_ns, request.priority
    return (*ways, request.caller, request.stream, request.ignored_parameters, tensors)


def _content(datatype: Datatype, array: np.ndarray[Any, Any]) -> Any:
    return array.tolist() if datatype is Datatype.BYTES else np.ascontiguousarray(array).tobytes()


def json_body(words: bytes) -> None:
    """Read a body of HTTP or MQTT. Python's parser knows NaN and Infinity too, but neither Inf nor -NaN."""
    try:
        read = decode_request(words, "m", now_ns=NOW_NS).request.inputs
    except RequestError as error:
        if error.fault not in {Fault.INVALID, Fault.UNSUPPORTED}:
            raise
        return
    try:  # keys that are ignored may hold other bytes than UTF-8
        sent = {item["name"]: item for item in json.loads(words.decode(errors="replace"))["inputs"]}
    except json.JSONDecodeError:
        assert b"Inf" in words or b"-NaN" in words
        return
    assert read.keys() == sent.keys()
    for name, tensor in read.items():
        values = np.array(sent[name]["data"], object).ravel()[: tensor.array.size]
        if tensor.datatype is Datatype.BYTES:
            values = np.array([text.encode() for text in values], object)
        np.testing.assert_array_equal(tensor.array.ravel(), values.astype(tensor.datatype.dtype))


# ---- model files ----------------------------------------------------------------------------------------------------
def onnx_facts(words: bytes) -> None:
    """Read an ONNX file: what the onnx package's parser finds is found, or the file is refused with ValueError."""
    try:
        facts = read_onnx(io.BytesIO(words))
    except ValueError:
        return
    try:
        model = onnx.ModelProto.FromString(words)
    except DecodeError:
        return
    operators, external = onnx_names(model)
    assert facts.operators >= operators
    assert set(facts.external) >= set(external)


def onnx_names(model: onnx.ModelProto) -> tuple[set[str], tuple[str, ...]]:
    """Return operators and external files in messages of any kind, found by walking all of them."""
    operators: set[str] = set()
    external: dict[str, None] = {}
    waiting: list[Any] = [model]
    while waiting:
        message = waiting.pop()
        if isinstance(message, onnx.NodeProto):
            own = message.domain in {"", "ai.onnx"}
            operators.add(message.op_type if own else f"{message.domain}::{message.op_type}")
        if isinstance(message, onnx.TensorProto) and message.data_location == onnx.TensorProto.EXTERNAL:
            external.update((entry.value, None) for entry in message.external_data if entry.key == "location")
        inner = [value for field, value in message.ListFields() if field.message_type]
        waiting.extend(
            part for value in reversed(inner) for part in (reversed(value) if hasattr(value, "append") else [value])
        )
    return operators, tuple(external)


# ---- pipelines ------------------------------------------------------------------------------------------------------
def _manifest(name: str, version: str) -> ModelManifest:
    """Return the manifest of a model. Raises RequestError if none is called so."""
    del version
    if name == "four":
        specs = [TensorSpec(each, Datatype.FP32, (-1, 4)) for each in "xy"]
        return ModelManifest("four", "1", (specs[0],), (specs[1],), (), batch=True)
    if name == "find":
        image = TensorSpec("image", Datatype.UINT8, (-1, 3, 8, 8), preprocess=Preprocess(("png",), resize=(8, 8)))
        found = {"boxes": (-1, -1, 4), "scores": (-1, -1)}
        outputs = [TensorSpec(each, Datatype.FP32, shape) for each, shape in found.items()]
        outputs.append(TensorSpec("classes", Datatype.INT32, (-1, -1)))
        answered = ("boxes", "scores", "classes")
        return ModelManifest("find", "1", (image,), tuple(outputs), (), batch=True, answered=answered)
    raise RequestError(Fault.NOT_FOUND, f"no model is called {name}")


def pipelines(words: bytes) -> None:
    """Read a pipeline and compile it: it fits its models, or is refused with words."""
    try:
        pipeline = read_pipeline(words.decode(errors="replace"), "pipeline.toml")
        compiled = plan(pipeline, _manifest, lambda _: (np.ones((2, 4), np.float32), (b"a", b"b")))
    except ConfigurationError as error:
        if error.file != "pipeline.toml" or len(str(error)) > 2_000:
            raise
    except RequestError as error:
        if error.fault is not Fault.NOT_FOUND:
            raise
    else:
        assert len(compiled.manifest.outputs) > len(pipeline.outputs)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "connection": connection,
    "hpack_blocks": hpack_blocks,
    "huffman_code": huffman_code,
    "infer_codec": infer_codec,
    "json_body": json_body,
    "large_message": large_message,
    "onnx_facts": onnx_facts,
    "pipelines": pipelines,
}
