"""ModelInferRequests of every kind, and the content of decoded requests in a form that can be compared."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gateway.common.domain.errors import RequestError
from gateway.common.domain.tensor import Datatype, encode_raw
from gateway.serving.domain.infer import InferRequest
from gateway.serving.frontends.grpc_v2.calls import CallInfo, parse_message
from gateway.serving.frontends.grpc_v2.codec.decode import decode_request
from gateway.serving.frontends.grpc_v2.codec.infer_codec import InferCodec
from gateway.serving.frontends.grpc_v2.codec.protobuf import field_header
from gateway.serving.frontends.grpc_v2.codec.protocol import message
from gateway.serving.frontends.grpc_v2.codec.typed import FIELDS
from gateway.serving.frontends.grpc_v2.service.message_memory import MessageMemory
from gateway.serving.frontends.pools import Pools
from gateway.serving.frontends.regions import Regions
from tests.simulators.grpc_gateway import UNDIVIDED

NOW_NS = 10**12
CALL = CallInfo("ann")
NAMES = ("x", "y", "größe", "a_rather_long_name_of_a_tensor")
REGION_BYTES = 4096
Facts = tuple[Any, ...]


def message_memory_of(size: int) -> MessageMemory:
    """Return memory for messages of `size` bytes together, without shares of callers."""
    return MessageMemory(Pools(UNDIVIDED).make_bytes("grpc request bytes", "[grpc] max_receiving_bytes", size))


def field(number: int, content: bytes) -> bytes:
    """Return a length-delimited field of a protobuf message."""
    return field_header(number, len(content)) + content


def arrays(datatype: Datatype, min_side: int = 0) -> st.SearchStrategy[np.ndarray[Any, Any]]:
    """Return any array of the datatype, including scalars and empty arrays."""
    shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=min_side, max_side=4)
    if datatype is Datatype.BYTES:
        return hnp.arrays(object, shapes, elements=st.binary(max_size=9), fill=st.nothing())
    if datatype is Datatype.BF16:
        return hnp.arrays("<u2", shapes).map(lambda bits: np.asarray(bits.astype("<u4") << 16).view("<f4"))
    return hnp.arrays(datatype.dtype, shapes)


@st.composite
def requests(draw: st.DrawFn, *, region: str = "") -> Any:
    """Draw a valid ModelInferRequest. Some inputs and outputs are in `region` if it is given."""
    sent = message("inference.ModelInferRequest")(
        model_name=draw(st.sampled_from(["m", "modell"])),
        model_version=draw(st.sampled_from(["", "1"])),
        id=draw(st.sampled_from(["", "7", "request 17", "größe", "z" * 130]) | st.text(max_size=9)),
    )
    raw = draw(st.booleans())
    for name in draw(st.lists(st.sampled_from(NAMES), min_size=0, max_size=3, unique=True)):
        _add_input(draw, sent, name, raw, region)
    for name in draw(st.lists(st.sampled_from(NAMES), max_size=2, unique=True)):
        _add_output(draw, sent.outputs.add(name=name), region)
    _add_parameters(draw, sent.parameters)
    return sent


def respelled(draw: st.DrawFn, sent: Any) -> Any:
    """Draw the same request with other tensors and another id of the same lengths."""
    other = type(sent).FromString(sent.SerializeToString())
    for index, raw in enumerate(sent.raw_input_contents):
        other.raw_input_contents[index] = draw(st.binary(min_size=len(raw), max_size=len(raw)))
    for described in other.inputs:
        for width, values in ((32, described.contents.fp32_contents), (64, described.contents.fp64_contents)):
            values[:] = draw(st.lists(st.floats(width=width), min_size=len(values), max_size=len(values)))  # type: ignore[arg-type]
    if sent.id.isascii():
        other.id = draw(st.text(st.characters(max_codepoint=127), min_size=len(sent.id), max_size=len(sent.id)))
    return other


def _add_input(draw: st.DrawFn, sent: Any, name: str, raw: bool, region: str) -> None:
    datatype = draw(st.sampled_from([d for d in Datatype if raw or d not in {Datatype.FP16, Datatype.BF16}]))
    array = draw(arrays(datatype))
    described = sent.inputs.add(name=name, datatype=datatype.label, shape=array.shape)
    content = encode_raw(datatype, array)
    if region and content and draw(st.booleans()):
        _place(draw, described.parameters, region, len(content))
    elif raw:
        sent.raw_input_contents.append(content)
    else:
        field = FIELDS[datatype]
        getattr(described.contents, field).extend(array.ravel().tolist())
    if draw(st.booleans()):
        described.parameters["unknown"].bool_param = True


def _add_output(draw: st.DrawFn, described: Any, region: str) -> None:
    if region and draw(st.booleans()):
        _place(draw, described.parameters, region, 64)
    elif draw(st.booleans()):
        described.parameters["classification"].int64_param = draw(st.integers(0, 5))
    if draw(st.booleans()):
        described.parameters["other"].double_param = 0.5


def _place(draw: st.DrawFn, parameters: Any, region: str, size: int) -> None:
    parameters["shared_memory_region"].string_param = region
    parameters["shared_memory_byte_size"].int64_param = size
    if draw(st.booleans()):
        parameters["shared_memory_offset"].int64_param = draw(st.integers(0, REGION_BYTES - 512))


def _add_parameters(draw: st.DrawFn, parameters: Any) -> None:
    if draw(st.booleans()):
        parameters["timeout"].int64_param = draw(st.integers(0, 10**6))
    if draw(st.booleans()):
        parameters["priority"].uint64_param = draw(st.integers(0, 9))
    sequence = draw(st.sampled_from([None, 0, 7, "", "front door"]))
    if isinstance(sequence, str):
        parameters["sequence_id"].string_param = sequence
    elif sequence is not None:
        parameters["sequence_id"].int64_param = sequence
    if draw(st.booleans()):
        parameters["nobody"].string_param = "knows"


def facts(request: InferRequest) -> Facts:
    """Return the content of a decoded request."""
    tensors = [
        (name, tensor.datatype, tensor.array.shape, tensor.array.dtype.str, _content(tensor.datatype, tensor.array))
        for name, tensor in request.inputs.items()
    ]
    rest = (request.model, request.version, request.id, request.outputs, request.deadline_ns, request.priority)
    return (*rest, request.caller, request.stream, request.ignored_parameters, tensors)


def told(act: Any) -> Facts:
    """Return the result of decoding: a request, or the error."""
    try:
        return facts(act())
    except RequestError as error:
        return error.fault, error.message


def expected(raw: bytes, call: CallInfo = CALL, regions: Regions | None = None) -> Facts:
    """Return the content of the protobuf message."""
    kind = message("inference.ModelInferRequest")
    return told(lambda: decode_request(parse_message(kind, raw), call, NOW_NS, regions))


def decoded(codec: InferCodec, raw: bytes | memoryview, call: CallInfo = CALL, *, lent: bool = False) -> Facts:
    """Return the codec's result. Lent memory is overwritten afterwards, as a transport would do."""
    if not lent:
        return told(lambda: codec.decode(raw, call, NOW_NS, lent=False))
    memory = bytearray(len(raw) + 1)
    memory[1:] = raw
    try:
        request = codec.decode(memoryview(memory)[1:], call, NOW_NS, lent=True)
    except RequestError as error:
        return error.fault, error.message
    memory[:] = b"\xa5" * len(memory)
    assert all(tensor.array.flags.aligned for tensor in request.inputs.values())
    return facts(request)


def _content(datatype: Datatype, array: np.ndarray[Any, Any]) -> Any:
    return array.tolist() if datatype is Datatype.BYTES else np.ascontiguousarray(array).tobytes()
