"""Conversion of InferResponse to ModelInferResponse: always one `raw_output_contents` entry per output, in order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gateway.domain.errors import RequestError
from gateway.domain.infer import InferResponse, Parameter, RequestedOutput
from gateway.domain.tensor import encode_raw
from gateway.frontends.grpc_v2.protocol import message
from gateway.frontends.status import error_text

INT64_LIMIT = 2**63


def encode_response(response: InferResponse, asked: Iterable[RequestedOutput] = ()) -> Any:
    """Return the answer as tritonclient reads it: numbers only in `raw_output_contents`.

    An output with a destination in `asked` is written there, and its entry is empty. Raises RequestError if an output
    does not fit.
    """
    destinations = {output.name: output.destination for output in asked if output.destination is not None}
    reply = message("inference.ModelInferResponse")(
        model_name=response.model, model_version=response.version, id=response.id
    )
    for name, tensor in response.outputs.items():
        described = reply.outputs.add(name=name, datatype=tensor.datatype.label, shape=tensor.array.shape)
        raw = encode_raw(tensor.datatype, tensor.array)
        if name in destinations:
            for key, value in destinations[name].put(raw).items():
                set_parameter(described.parameters[key], value)
            raw = b""
        reply.raw_output_contents.append(raw)
    for name, value in response.parameters.items():
        set_parameter(reply.parameters[name], value)
    return reply


def encode_stream_reply(reply: Any, *, final: bool) -> Any:
    """Return an answer on a stream. `final` marks it as the last of its request; each request has one answer here."""
    if final:
        reply.parameters["triton_final_response"].bool_param = True
    return message("inference.ModelStreamInferResponse")(infer_response=reply)


def encode_stream_error(error: RequestError, request: Any, *, final: bool) -> Any:
    """Return an error on a stream: in-band, with the request's id and model, so that the caller can assign it."""
    text = error_text(error.message) or error.fault.value  # an empty text would read as success
    answer = message("inference.ModelStreamInferResponse")(error_message=text)
    answer.infer_response.id = request.id
    answer.infer_response.model_name = request.model_name
    answer.infer_response.model_version = request.model_version
    if final:
        answer.infer_response.parameters["triton_final_response"].bool_param = True
    return answer


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
