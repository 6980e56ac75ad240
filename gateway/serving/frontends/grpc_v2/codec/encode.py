"""Conversion of InferResponse to ModelInferResponse: always one `raw_output_contents` entry per output, in order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from gateway.common.domain.errors import RequestError
from gateway.common.domain.problem import error_text
from gateway.common.domain.tensor import CONVERTED, Array, Datatype, Raw, Steps, encode_raw, encode_steps, size_steps
from gateway.common.domain.text_model import FINAL
from gateway.serving.domain.infer import InferResponse, Parameter, RequestedOutput
from gateway.serving.frontends.grpc_v2.codec.protobuf import field_header
from gateway.serving.frontends.grpc_v2.codec.protocol import message
from gateway.serving.frontends.grpc_v2.codec.templates import IN_PLACE_BYTES, RAW_FIELD
from gateway.serving.frontends.grpc_v2.framing import PREFIX, Encoded, prefixed

INT64_LIMIT = 2**63
REPLY_FIELD = 2
"""Number of `infer_response` in ModelStreamInferResponse."""


def encode_response(response: InferResponse, asked: Iterable[RequestedOutput] = ()) -> Any:
    """Return the answer as tritonclient reads it: numbers only in `raw_output_contents`.

    An output with a destination in `asked` is written there, and its entry is empty. Raises RequestError if an output
    does not fit.
    """
    raws: list[list[Raw]] = []
    asked = tuple(asked)
    placed = {output.name for output in asked if output.destination is not None}
    for name, tensor in response.outputs.items():
        in_memory = name in placed and tensor.datatype not in CONVERTED
        raws += [[(_view if in_memory else encode_raw)(tensor.datatype, tensor.array)]]
    reply = _described(response, asked, raws)
    for raw in raws:
        reply.raw_output_contents.append(b"".join(raw))
    return reply


def _view(datatype: Datatype, array: Array) -> memoryview:
    """Return what `encode_raw` does for an output that is written elsewhere: without a copy, if it is contiguous."""
    return np.ascontiguousarray(array, datatype.dtype).reshape(-1).view(np.uint8).data


def reply_steps(response: InferResponse, asked: Iterable[RequestedOutput] = ()) -> Steps[Encoded]:
    """Encode as `encode_response` does, in steps. Raises as it does."""
    raws: list[list[Raw]] = []
    for tensor in response.outputs.values():
        raws += [[*(yield from encode_steps(tensor.datatype, tensor.array))]]
    pieces: list[Raw] = [_described(response, asked, raws).SerializeToString()]
    for raw in raws:
        pieces += [field_header(RAW_FIELD, sum(map(len, raw))), *raw]
    return prefixed(*pieces)


def reply_size_steps(response: InferResponse) -> Steps[int]:
    """Return the memory that `reply_steps` takes for contents, in steps."""
    size = 0
    for tensor in response.outputs.values():
        size += yield from size_steps(tensor.datatype, tensor.array)
    return size


def _described(response: InferResponse, asked: Iterable[RequestedOutput], raws: list[list[Raw]]) -> Any:
    """Return the answer without its contents `raws`. Those with a destination are written there, and are empty then."""
    destinations = {}
    for output in asked:
        if output.destination is not None:
            destinations[output.name] = output.destination
    reply = message("inference.ModelInferResponse")(
        model_name=response.model, model_version=response.version, id=response.id
    )
    for index, (name, tensor) in enumerate(response.outputs.items()):
        described = reply.outputs.add(name=name, datatype=tensor.datatype.label, shape=tensor.array.shape)
        if name in destinations:
            raw = raws[index][0] if len(raws[index]) == 1 else b"".join(raws[index])
            for key, value in destinations[name].put(raw).items():
                set_parameter(described.parameters[key], value)
            raws[index] = []
    for name, value in response.parameters.items():
        set_parameter(reply.parameters[name], value)
    return reply


def mark_final(response: InferResponse, *, is_final: bool = True) -> InferResponse:
    """Return an answer that says whether it is the last one of its request."""
    return replace(response, parameters={**response.parameters, FINAL: is_final})


def encode_stream_reply(reply: Encoded) -> Encoded:
    """Return an answer on a stream. A small one is in one piece, so that it is sent in one frame."""
    pieces, size = reply
    head = field_header(REPLY_FIELD, size - PREFIX.size) + pieces[0][PREFIX.size :]
    framed, size = prefixed(head, *pieces[1:])
    return ([b"".join(framed)] if size <= IN_PLACE_BYTES else framed), size


def encode_stream_error(error: RequestError, request: Any, *, final: bool) -> Encoded:
    """Return an error on a stream: in-band, with the request's id and model, so that the caller can assign it."""
    text = error_text(error.message) or error.fault.value  # an empty text would read as success
    answer = message("inference.ModelStreamInferResponse")(error_message=text)
    answer.infer_response.id = request.id
    answer.infer_response.model_name = request.model_name
    answer.infer_response.model_version = request.model_version
    if final:
        answer.infer_response.parameters[FINAL].bool_param = True
    return prefixed(answer.SerializeToString())


def set_parameter(parameter: Any, value: Parameter) -> None:
    """Store a Python value in an InferParameter."""
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, str):
        parameter.string_param = value
    elif isinstance(value, float):
        parameter.double_param = value
    elif value < INT64_LIMIT:
        parameter.int64_param = value
    else:
        parameter.uint64_param = value
