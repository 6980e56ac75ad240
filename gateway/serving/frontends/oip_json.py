"""Requests of the Open Inference Protocol as JSON, with Triton's binary tensor extension, for REST, MQTT and the CLI.

A request is one JSON object, followed (REST only) by the binary tensors whose `binary_data_size` it announces. Raw
tensors stay views of the request's bytes. JSON numbers are counted before they are parsed, so that a body cannot grow
into more objects than its shapes declare. Unknown keys are ignored, unknown parameters counted.

NaN and infinity are read (`oip_json_literals`); BF16 is refused, as Triton does. Answers: `oip_json_answers`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.tensor import (
    CONVERTED,
    Steps,
    Tensor,
    datatype_named,
    decoded_bytes,
    element_count,
    finish,
    raw_steps,
)
from gateway.serving.domain.infer import InferRequest, Parameter, RequestedOutput
from gateway.serving.domain.parameters import deadline_ns, read_parameters
from gateway.serving.frontends.oip_json_arrays import array_steps
from gateway.serving.frontends.oip_json_literals import literals_to_objects, malformed
from gateway.serving.frontends.placement import PARAMETERS
from gateway.serving.frontends.regions import Regions, placed_input, requested_output

BINARY_SIZE = "binary_data_size"


class _JsonInput(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int]
    parameters: dict[str, Parameter] | None = None
    data: msgspec.Raw = msgspec.Raw()


class _JsonOutput(msgspec.Struct):
    name: str
    parameters: dict[str, Parameter] | None = None


class JsonBody(msgspec.Struct):
    """JSON object of a request; its tensors' data is not parsed yet."""

    inputs: list[_JsonInput]
    id: str | None = None
    outputs: list[_JsonOutput] | None = None
    parameters: dict[str, Parameter] | None = None


TENSORS_LIMIT = 1024
"""Most inputs of one request, as in gRPC."""
_Outputs = tuple[tuple[RequestedOutput, ...], Mapping[str, bool] | None, int]
_Content = tuple[_JsonInput, memoryview | bytes | None, int]
"""Input, its bytes (None: they are JSON), and the number of its ignored parameters."""

JSON_BODY = msgspec.json.Decoder(JsonBody)


@dataclass(frozen=True, slots=True)
class JsonRequest:
    """Decoded request with the format of its answer: `binary` by output name, `binary_default` for the rest."""

    request: InferRequest
    binary_default: bool = False
    binary: Mapping[str, bool] | None = None

    def wants_binary(self, output: str) -> bool:
        """Return True if `output` must be appended as raw bytes rather than written as JSON."""
        return (self.binary or {}).get(output, self.binary_default)


def decode_request(
    body: bytes | memoryview,
    model: str,
    version: str = "",
    *,
    binary: memoryview | None = None,
    now_ns: int,
    caller: str = "",
    regions: Regions | None = None,
) -> JsonRequest:
    """Return the request in the JSON `body`; `binary` holds the raw tensors that followed it, None if none can.

    `now_ns` is the time on the monotonic clock from which the `timeout` parameter (µs) counts. Arrays of raw tensors
    are read-only views of `binary`, or of memory that `caller` registered in `regions`. Raises RequestError INVALID
    with tensor and position, NOT_FOUND for an unknown region, UNSUPPORTED for shared memory without `regions`.
    """
    parsed = parse_body(body)
    return finish(request_steps(parsed, model, version, binary=binary, now_ns=now_ns, caller=caller, regions=regions))


def request_steps(
    parsed: JsonBody,
    model: str,
    version: str,
    *,
    binary: memoryview | None,
    now_ns: int,
    caller: str,
    regions: Regions | None,
) -> Steps[JsonRequest]:
    """Do the work of `decode_request` on a parsed body in steps; `regions` are looked up now.

    Raises as it does, already in this call.
    """
    outputs = _read_outputs(parsed.outputs or (), caller, regions)
    contents = _contents(parsed.inputs, binary, caller, regions)
    return _decoded(parsed, outputs, contents, InferRequest(model, {}, version, caller=caller), now_ns)


def declared(parsed: JsonBody, model: str, version: str) -> tuple[InferRequest, int]:
    """Return the request without contents, and the bytes that decoding allocates.

    Each tensor has the memory of one element. Raises RequestError INVALID for an impossible datatype or shape.
    """
    inputs: dict[str, Tensor] = {}
    size = 0
    for item in parsed.inputs[:TENSORS_LIMIT]:
        datatype = datatype_named(item.datatype, item.name)
        count = element_count(item.shape, item.name)
        inputs[item.name] = Tensor(datatype, np.broadcast_to(np.zeros((), datatype.dtype), tuple(item.shape)))
        if memoryview(item.data).nbytes or datatype in CONVERTED:
            size += decoded_bytes(datatype, count)
    return InferRequest(model, inputs, version), size


def _decoded(
    parsed: JsonBody, outputs: _Outputs, contents: Sequence[_Content], like: InferRequest, now_ns: int
) -> Steps[JsonRequest]:
    inputs: dict[str, Tensor] = {}
    ignored = 0
    for item, raw, unknown in contents:
        datatype = datatype_named(item.datatype, item.name)
        if raw is None:
            array = yield from array_steps(datatype, item.shape, bytes(item.data), item.name)
        else:
            array = yield from raw_steps(datatype, item.shape, raw, item.name)
        inputs[item.name] = Tensor(datatype, array)
        ignored += unknown
    requested, binary_outputs, ignored_outputs = outputs
    parameters = read_parameters(parsed.parameters or {})
    request = InferRequest(
        like.model,
        inputs,
        version=like.version,
        id=parsed.id or "",
        outputs=requested,
        deadline_ns=deadline_ns(now_ns, timeout_us=parameters.timeout_us),
        priority=parameters.priority,
        caller=like.caller,
        stream=parameters.stream,
        ignored_parameters=parameters.ignored + ignored_outputs + ignored,
        place=parameters.place,
    )
    return JsonRequest(request, bool(parameters.binary_data_output), binary_outputs)


def parse_body(body: bytes | memoryview) -> JsonBody:
    """Parse strictly first; only a body that fails is searched for NaN and infinity."""
    try:
        try:
            return JSON_BODY.decode(body)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            return JSON_BODY.decode(literals_to_objects(bytes(body)))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _invalid(f"the request body is no inference request: {malformed(body, error)}") from None


def _read_outputs(asked: Sequence[_JsonOutput], caller: str, regions: Regions | None) -> _Outputs:
    """Return the requested outputs, those with an explicit binary format, and the ignored parameters."""
    outputs: dict[str, RequestedOutput] = {}
    binary: dict[str, bool] = {}
    ignored = 0
    for output in asked:
        name = output.name
        if name in outputs:
            raise _invalid(f"output '{name}' already exists in request")
        outputs[name], classes = requested_output(regions, caller, output.parameters or {}, name)
        ignored += classes.ignored
        if classes.binary_data is not None:
            binary[name] = classes.binary_data
    return tuple(outputs.values()), binary or None, ignored


def _contents(
    given: Sequence[_JsonInput], binary: memoryview | None, caller: str, regions: Regions | None
) -> list[_Content]:
    """Return each input's bytes; every byte of `binary` must belong to one of them."""
    if len(given) > TENSORS_LIMIT:
        raise _invalid(f"the request names {len(given)} inputs; at most {TENSORS_LIMIT} are read")
    contents: list[_Content] = []
    names: set[str] = set()
    offset = 0
    for item in given:
        if item.name in names:
            raise _invalid(f"input '{item.name}' already exists in request")
        names.add(item.name)
        parameters = item.parameters or {}
        place = placed_input(regions, parameters, item.name)
        datatype = datatype_named(item.datatype, item.name)
        size = _binary_size(parameters, item.name)
        raw: memoryview | bytes | None = None
        if place is not None and regions is not None:
            if memoryview(item.data).nbytes or BINARY_SIZE in parameters:
                problem = "is in shared memory and has data of its own as well; send one of them"
                raise _invalid(f"input '{item.name}' {problem}")
            raw = regions.raw(caller, place, datatype)
        elif size is not None:
            raw = _slice(binary, offset, size, item)
            offset += size
        ignored = sum(key != BINARY_SIZE and key not in PARAMETERS for key in parameters)
        contents.append((item, raw, ignored))
    if binary is not None and offset != len(binary):
        raise _invalid(f"{len(binary) - offset} bytes follow the inputs' binary data; check binary_data_size")
    return contents


def _binary_size(parameters: Mapping[str, Parameter], name: str) -> int | None:
    size = parameters.get(BINARY_SIZE)
    if size is None:
        return None
    if type(size) is not int or size < 0:
        raise _invalid(f"parameter 'binary_data_size' of input '{name}' must be a number of bytes, not {size!r:.40}")
    return size


def _slice(binary: memoryview | None, offset: int, size: int, item: _JsonInput) -> memoryview:
    if memoryview(item.data).nbytes:
        raise _invalid(f"input '{item.name}' has both 'data' and 'binary_data_size'; send one of them")
    if binary is None:
        raise _invalid(
            f"input '{item.name}' announces binary data, but the message carries none; over HTTP say with "
            "Inference-Header-Content-Length where it begins"
        )
    if size > len(binary) - offset:
        left = len(binary) - offset
        raise _invalid(f"input '{item.name}' announces {size} bytes of binary data, but {left} are left of the body")
    return binary[offset : offset + size]


def _invalid(message: str) -> RequestError:
    return RequestError(Fault.INVALID, message)
