"""Answers of the Open Inference Protocol as JSON, with Triton's binary tensor extension, for REST, MQTT and the CLI.

What JSON cannot carry is refused: BF16 (as Triton does) and BYTES that are not UTF-8. The error asks the caller to
request such an output with `binary_data`. NaN and infinity are written only for callers that are known to read them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.tensor import Array, Datatype, Steps, Tensor, encode_steps, finish, size_steps
from gateway.serving.domain.infer import InferResponse
from gateway.serving.frontends.oip_json import BINARY_SIZE, JsonRequest

STEP_ELEMENTS = 2048
"""Elements written in one step: 0.1 ms for FP32 (`python -m tests.performance.memory`)."""
NUMBER_CHARS = 25
"""Longest number with its comma: the least FP64, "-2.2250738585072014e-308,"."""
ESCAPED_CHARS = 6
"""Longest form of one byte of a text: "\\u0000"."""


@dataclass(frozen=True, slots=True)
class JsonAnswer:
    """The JSON object of an answer, in pieces, and those of the raw tensors that follow it, in order."""

    pieces: tuple[bytes, ...]
    tensors: tuple[bytes, ...] = ()

    @property
    def header(self) -> bytes:
        """Return the JSON object as one byte string."""
        return b"".join(self.pieces)

    def __len__(self) -> int:
        return sum(map(len, self.pieces)) + sum(map(len, self.tensors))

    def __bytes__(self) -> bytes:
        return b"".join((*self.pieces, *self.tensors))


def most_bytes_steps(response: InferResponse, asked: JsonRequest) -> Steps[int]:
    """Return a bound of the bytes that the outputs of an answer take; those with a destination take none."""
    placed, most = {output.name for output in asked.request.outputs if output.destination is not None}, 0
    for name, tensor in response.outputs.items():
        if name not in placed:
            most += yield from _most_bytes_steps(tensor, asked.wants_binary(name))
    return most


def encode_response(response: InferResponse, asked: JsonRequest | None = None, *, literals: bool = False) -> JsonAnswer:
    """Return the answer at once. Raises as `answer_steps` does."""
    return finish(answer_steps(response, asked, literals=literals))


def answer_steps(
    response: InferResponse, asked: JsonRequest | None = None, *, literals: bool = False
) -> Steps[JsonAnswer]:
    """Return the answer as JSON, followed by those outputs as raw bytes that `asked` wants binary.

    An output with a destination goes there; its line has neither data nor parameters, as in Triton: the C++ client
    refuses parameters without `binary_data_size`. `literals`: write NaN and infinity, which strict parsers refuse.

    Raises RequestError INVALID if an output cannot be written as JSON, or not to its destination.
    """
    wanted = () if asked is None else asked.request.outputs
    destinations = {output.name: output.destination for output in wanted if output.destination is not None}
    answer: dict[str, Any] = {"model_name": response.model, "model_version": response.version}
    if response.id:
        answer["id"] = response.id
    if response.parameters:
        answer["parameters"] = dict(response.parameters)
    pieces = [_opened(answer, b'"outputs":[')]
    tensors: list[bytes] = []
    for index, (name, tensor) in enumerate(response.outputs.items()):
        line: dict[str, Any] = {"name": name, "datatype": tensor.datatype.label, "shape": list(tensor.array.shape)}
        pieces += [b","] * (index > 0)
        if name in destinations:
            raw = yield from encode_steps(tensor.datatype, tensor.array)
            destinations[name].put(b"".join(raw))
            pieces.append(msgspec.json.encode(line))
        elif asked is not None and asked.wants_binary(name):
            raw = yield from encode_steps(tensor.datatype, tensor.array)
            tensors += raw
            pieces.append(msgspec.json.encode({**line, "parameters": {BINARY_SIZE: sum(map(len, raw))}}))
        else:
            pieces.append(_opened(line, b'"data":['))
            yield from _data_steps(tensor, name, pieces, literals=literals)
            pieces.append(b"]}")
    return JsonAnswer((*pieces, b"]}"), tuple(tensors))


def _opened(fields: dict[str, Any], more: bytes) -> bytes:
    """Return a JSON object of `fields` that continues with `more`."""
    return msgspec.json.encode(fields)[:-1] + b"," + more


def _most_bytes_steps(tensor: Tensor, binary: bool) -> Steps[int]:
    size = yield from size_steps(tensor.datatype, tensor.array)
    if binary:
        return size
    return size * ESCAPED_CHARS if tensor.datatype is Datatype.BYTES else tensor.array.size * NUMBER_CHARS


def _data_steps(tensor: Tensor, name: str, pieces: list[bytes], *, literals: bool) -> Steps[None]:
    """Append the tensor's elements in C order as members of a JSON array."""
    if tensor.datatype is Datatype.BF16:
        raise _invalid(f"output '{name}' is BF16, which JSON does not carry; ask for it with binary_data")
    flat = tensor.array.ravel()
    for begin in range(0, len(flat), STEP_ELEMENTS):
        if begin:
            yield
            pieces.append(b",")
        part = flat[begin : begin + STEP_ELEMENTS]
        texts = tensor.datatype is Datatype.BYTES
        text = (
            msgspec.json.encode([_text(element, name) for element in part]) if texts else _numbers(part, name, literals)
        )
        pieces.append(text[1:-1])


def _numbers(part: Array, name: str, literals: bool) -> bytes:
    if part.dtype.kind != "f" or np.isfinite(part).all():
        return msgspec.json.encode(part.tolist())
    if literals:
        return json.dumps(part.tolist(), separators=(",", ":")).encode()
    raise _invalid(f"output '{name}' holds NaN or infinity, which JSON cannot write; ask for it with binary_data")


def _text(element: bytes | str, name: str) -> str:
    if isinstance(element, str):
        return element
    try:
        return element.decode()
    except UnicodeDecodeError:
        raise _invalid(
            f"output '{name}' holds bytes that are no UTF-8, which JSON cannot write; ask for it with binary_data"
        ) from None


def _invalid(message: str) -> RequestError:
    return RequestError(Fault.INVALID, message)
