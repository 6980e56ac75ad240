"""ModelInferRequest → InferRequest. Raw tensors become views of the message's own bytes; each is touched once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gateway.domain.errors import Fault, RequestError
from gateway.domain.infer import InferRequest, Parameter, RequestedOutput
from gateway.domain.parameters import RequestParameters, deadline_ns, read_parameters
from gateway.domain.tensor import Array, Datatype, Tensor, datatype_named, decode_raw, element_count
from gateway.frontends.grpc_v2.calls import CallInfo
from gateway.frontends.placement import PARAMETERS, Place
from gateway.frontends.regions import Regions, placed_input, requested_output

PARAMETERS_LIMIT = 256
"""Parameters of one request, input or output. Triton knows a dozen; each costs the loop about a microsecond."""
TENSORS_LIMIT = 1024
"""Inputs, and requested outputs, of one request: a 64 MiB message could name millions."""
NO_PARAMETERS = RequestParameters()
FINAL_RESPONSE = "triton_enable_empty_final_response"

_TYPED: Mapping[Datatype, str] = {
    Datatype.BOOL: "bool_contents",
    Datatype.INT8: "int_contents",
    Datatype.INT16: "int_contents",
    Datatype.INT32: "int_contents",
    Datatype.INT64: "int64_contents",
    Datatype.UINT8: "uint_contents",
    Datatype.UINT16: "uint_contents",
    Datatype.UINT32: "uint_contents",
    Datatype.UINT64: "uint64_contents",
    Datatype.FP32: "fp32_contents",
    Datatype.FP64: "fp64_contents",
    Datatype.BYTES: "bytes_contents",
}
"""The field of InferTensorContents that carries a datatype (OIP, "Inference Tensor Data"); FP16 and BF16 have none."""


def decode_request(message: Any, call: CallInfo, now_ns: int, regions: Regions | None = None) -> InferRequest:
    """The request in the domain's terms; tensors in shared memory are those of the caller's `regions`.

    Raises RequestError INVALID, NOT_FOUND for an unknown region, UNSUPPORTED for shared memory without `regions`.
    """
    sent = message.parameters
    parameters = read_parameters(read_values(sent, "request")) if sent else NO_PARAMETERS
    inputs, ignored_inputs = _inputs(message, call.caller, regions)
    outputs, ignored_outputs = _outputs(message.outputs, call.caller, regions)
    return InferRequest(
        model=message.model_name,
        inputs=inputs,
        version=message.model_version,
        id=message.id,
        outputs=outputs,
        deadline_ns=sooner(call.deadline_ns, deadline_ns(now_ns, timeout_us=parameters.timeout_us)),
        priority=parameters.priority,
        caller=call.caller,
        stream=parameters.stream,
        ignored_parameters=parameters.ignored + ignored_inputs + ignored_outputs,
    )


def wants_final_response(message: Any) -> bool:
    """Whether each answer on the stream is to say that it is the last of its request."""
    return FINAL_RESPONSE in message.parameters and bool(message.parameters[FINAL_RESPONSE].bool_param)


def read_values(parameters: Any, where: str) -> dict[str, Parameter]:
    """Python values of a map of InferParameter. Raises RequestError INVALID where one has no value."""
    if not parameters:
        return {}
    if len(parameters) > PARAMETERS_LIMIT:
        raise _invalid(f"the {where} has {len(parameters)} parameters; at most {PARAMETERS_LIMIT} are read")
    values: dict[str, Parameter] = {}
    for name, parameter in parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        if choice is None:
            raise _invalid(f"parameter '{name:.200}' of the {where} has no value")
        values[name] = getattr(parameter, choice)
    return values


def _inputs(message: Any, caller: str, regions: Regions | None) -> tuple[dict[str, Tensor], int]:
    inputs, raw, model = message.inputs, message.raw_input_contents, message.model_name
    _check_number(inputs, "inputs")
    tensors: dict[str, Tensor] = {}
    ignored = shared = 0
    for sent in inputs:
        name = sent.name
        if name in tensors:
            raise _invalid(f"input '{name:.200}' already exists in request")
        if sent.parameters:
            place, unknown = _place(sent, regions)
            ignored += unknown
            if place is not None and regions is not None:
                tensors[name] = _shared(sent, place, model, caller, regions)
                shared += 1
                continue
        tensors[name] = _raw(sent, raw, len(tensors) - shared, model) if raw else _typed(sent)
    if len(raw) > len(tensors) - shared:
        raise _invalid(
            f"raw_input_contents has {len(raw)} entries for {len(tensors) - shared} inputs of model '{model:.200}'"
        )
    return tensors, ignored


def _place(sent: Any, regions: Regions | None) -> tuple[Place | None, int]:
    """Where in shared memory an input is, and how many of its parameters nobody here knows."""
    values = read_values(sent.parameters, f"input '{sent.name:.200}'")
    return placed_input(regions, values, sent.name), sum(key not in PARAMETERS for key in values)


def _shared(sent: Any, place: Place, model: str, caller: str, regions: Regions) -> Tensor:
    name = sent.name
    if sent.HasField("contents"):
        raise _invalid(
            f"unexpected 'content' provided when using shared memory for input tensor '{name:.200}' for model "
            f"'{model:.200}'"
        )
    datatype = datatype_named(sent.datatype, name)
    return Tensor(datatype, decode_raw(datatype, sent.shape, regions.raw(caller, place, datatype), name))


def _raw(sent: Any, raw: Any, index: int, model: str) -> Tensor:
    name = sent.name
    if sent.HasField("contents"):
        raise _invalid(
            "contents field must not be specified when using raw_input_contents for "
            f"'{name:.200}' for model '{model:.200}'"
        )
    if index >= len(raw):
        raise _invalid(f"raw_input_contents has no entry for input '{name:.200}' of model '{model:.200}'")
    datatype = datatype_named(sent.datatype, name)
    return Tensor(datatype, decode_raw(datatype, sent.shape, raw[index], name))


def _typed(sent: Any) -> Tensor:
    name = sent.name
    datatype = datatype_named(sent.datatype, name)
    count = element_count(sent.shape, name)
    field = _TYPED.get(datatype)
    if field is None:
        raise _invalid(f"input '{name:.200}' is {datatype.label}, which only raw_input_contents can carry")
    for given, _ in sent.contents.ListFields():
        if given.name != field:
            raise _invalid(f"input '{name:.200}' is {datatype.label} and belongs in {field}, not in {given.name}")
    values = getattr(sent.contents, field)
    if len(values) != count:
        raise _invalid(
            f"input '{name:.200}' has {len(values)} elements in {field}, but shape {list(sent.shape)} takes {count}"
        )
    return Tensor(datatype, _array(datatype, values, name).reshape(sent.shape))


def _array(datatype: Datatype, values: Sequence[Any], name: str) -> Array:
    if datatype is Datatype.BYTES:
        elements = np.empty(len(values), object)
        elements[:] = values
        return elements
    try:
        return np.fromiter(values, datatype.dtype, len(values))
    except OverflowError as error:
        raise _invalid(f"input '{name:.200}' has a value that {datatype.label} cannot hold: {error}") from None


def _outputs(sent: Any, caller: str, regions: Regions | None) -> tuple[tuple[RequestedOutput, ...], int]:
    if not sent:
        return (), 0
    _check_number(sent, "outputs")
    requested: dict[str, RequestedOutput] = {}
    ignored = 0
    for output in sent:
        name, values = output.name, read_values(output.parameters, f"output '{output.name:.200}'")
        if name in requested:
            raise _invalid(f"output '{name:.200}' already exists in request")
        requested[name], parameters = requested_output(regions, caller, values, name)
        ignored += parameters.ignored
    return tuple(requested.values()), ignored


def _check_number(sent: Any, what: str) -> None:
    if len(sent) > TENSORS_LIMIT:
        raise _invalid(f"the request names {len(sent)} {what}; at most {TENSORS_LIMIT} are read")


def sooner(one: int | None, other: int | None) -> int | None:
    """The earlier of two ends; None means that there is none."""
    return min((end for end in (one, other) if end is not None), default=None)


def _invalid(message: str) -> RequestError:
    return RequestError(Fault.INVALID, message)
