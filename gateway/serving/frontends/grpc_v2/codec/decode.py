"""Conversion of ModelInferRequest to InferRequest.

Raw tensors become views of the message's own bytes; each is read once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.tensor import (
    Array,
    Datatype,
    Steps,
    Tensor,
    datatype_named,
    element_count,
    finish,
    raw_steps,
)
from gateway.serving.domain.infer import InferRequest, Parameter, RequestedOutput
from gateway.serving.domain.parameters import RequestParameters, deadline_ns, read_parameters
from gateway.serving.frontends.grpc_v2.calls import CallInfo
from gateway.serving.frontends.grpc_v2.codec.outline import TENSORS_LIMIT
from gateway.serving.frontends.grpc_v2.codec.typed import typed_datatype, typed_steps
from gateway.serving.frontends.placement import PARAMETERS, RegionSpan
from gateway.serving.frontends.regions import Regions, placed_input, requested_output

PARAMETERS_LIMIT = 256
"""Most parameters of one request, input or output. Triton knows a dozen; each costs the event loop about 1 µs."""
NO_PARAMETERS = RequestParameters()
FINAL_RESPONSE = "triton_enable_empty_final_response"


@dataclass(frozen=True, slots=True)
class Parts:
    """Contents that were removed from a large message before it was parsed (`outline`): views of its bytes."""

    raws: Sequence[memoryview]
    contents: Mapping[int, memoryview]


def decode_request(message: Any, call: CallInfo, now_ns: int, regions: Regions | None = None) -> InferRequest:
    """Return the request in domain types; tensors in shared memory are those of the caller's `regions`.

    Raises RequestError INVALID, NOT_FOUND for an unknown region, UNSUPPORTED for shared memory without `regions`.
    """
    return finish(request_steps(message, Parts(message.raw_input_contents, {}), call, now_ns, regions))


def request_steps(
    message: Any, parts: Parts, call: CallInfo, now_ns: int, regions: Regions | None
) -> Steps[InferRequest]:
    """Do the work of `decode_request` in steps; contents that `message` lacks are in `parts`. Raises as it does."""
    sent = message.parameters
    parameters = read_parameters(read_values(sent, "request")) if sent else NO_PARAMETERS
    _check_number(message.inputs, "inputs")
    shared, ignored_inputs = _shared_inputs(message, call.caller, regions)
    outputs, ignored_outputs = _outputs(message.outputs, call.caller, regions)
    inputs = yield from _inputs(message, parts, shared)
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
        place=parameters.place,
    )


def wants_final_response(message: Any) -> bool:
    """Return True if each answer on the stream must state that it is the last of its request."""
    return FINAL_RESPONSE in message.parameters and bool(message.parameters[FINAL_RESPONSE].bool_param)


def read_values(parameters: Any, where: str) -> dict[str, Parameter]:
    """Return Python values of a map of InferParameter. Raises RequestError INVALID if one has no value."""
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


def _inputs(message: Any, parts: Parts, shared: Mapping[int, memoryview | bytes]) -> Steps[dict[str, Tensor]]:
    """Return tensors by name. `shared`: bytes of inputs in shared memory, by the index of their input."""
    inputs, raw, model = message.inputs, parts.raws, message.model_name
    tensors: dict[str, Tensor] = {}
    met = 0
    for index, sent in enumerate(inputs):
        name = sent.name
        if name in tensors:
            raise _invalid(f"input '{name:.200}' already exists in request")
        if index in shared:
            datatype = datatype_named(sent.datatype, name)
            tensors[name] = Tensor(datatype, (yield from raw_steps(datatype, sent.shape, shared[index], name)))
            met += 1
        elif raw:
            tensors[name] = yield from _raw(sent, raw, len(tensors) - met, model)
        else:
            tensors[name] = yield from _typed(sent, parts.contents.get(index))
    if len(raw) > len(tensors) - len(shared):
        raise _invalid(
            f"raw_input_contents has {len(raw)} entries for {len(tensors) - len(shared)} inputs of model '{model:.200}'"
        )
    return tensors


def _shared_inputs(message: Any, caller: str, regions: Regions | None) -> tuple[dict[int, memoryview | bytes], int]:
    """Return bytes of inputs in shared memory by index, and the number of ignored parameters of all inputs."""
    shared: dict[int, memoryview | bytes] = {}
    ignored = 0
    for index, sent in enumerate(message.inputs):
        if sent.parameters:
            values = read_values(sent.parameters, f"input '{sent.name:.200}'")
            ignored += sum(key not in PARAMETERS for key in values)
            if (place := placed_input(regions, values, sent.name)) is not None and regions is not None:
                shared[index] = _shared(sent, place, message.model_name, caller, regions)
    return shared, ignored


def _shared(sent: Any, place: RegionSpan, model: str, caller: str, regions: Regions) -> memoryview | bytes:
    name = sent.name
    if sent.HasField("contents"):
        raise _invalid(
            f"unexpected 'content' provided when using shared memory for input tensor '{name:.200}' for model "
            f"'{model:.200}'"
        )
    return regions.raw(caller, place, datatype_named(sent.datatype, name))


def _raw(sent: Any, raw: Any, index: int, model: str) -> Steps[Tensor]:
    name = sent.name
    if sent.HasField("contents"):
        raise _invalid(
            "contents field must not be specified when using raw_input_contents for "
            f"'{name:.200}' for model '{model:.200}'"
        )
    if index >= len(raw):
        raise _invalid(f"raw_input_contents has no entry for input '{name:.200}' of model '{model:.200}'")
    datatype = datatype_named(sent.datatype, name)
    array = yield from raw_steps(datatype, sent.shape, raw[index], name)
    return Tensor(datatype, array if array.flags.aligned else array.copy())


def _typed(sent: Any, contents: memoryview | None) -> Steps[Tensor]:
    name = sent.name
    datatype, field = typed_datatype(sent.datatype, name)
    if contents is not None:
        return Tensor(datatype, (yield from typed_steps(sent.datatype, sent.shape, contents, name)))
    count = element_count(sent.shape, name)
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
    """Return the earlier of two deadlines; None means that there is none."""
    return min((end for end in (one, other) if end is not None), default=None)


def _invalid(message: str) -> RequestError:
    return RequestError(Fault.INVALID, message)
