"""Templates of ModelInferResponses: all but the bytes of their outputs and their id. Made from the protobuf message."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from gateway.domain.infer import InferResponse
from gateway.domain.tensor import CONVERTED, Array
from gateway.frontends.grpc_v2.http2.sender import Piece
from gateway.frontends.grpc_v2.protocol import message
from gateway.frontends.grpc_v2.wire import field_head

Encoded = tuple[list[Piece], int]
"""Length-prefixed message in pieces, of which the first begins with the whole prefix, and its size in bytes."""
PREFIX = struct.Struct(">BI")
"""Flag and length of a message (gRPC's "Length-Prefixed-Message")."""
IN_PLACE_BYTES = 16 * 1024
"""Size from which outputs are sent in place; smaller ones are copied into one piece with the bytes around them."""
ID_FIELD, RAW_FIELD = 3, 6
"""Numbers of `id` and `raw_output_contents` in ModelInferResponse."""


@dataclass(slots=True)
class Template:
    """Bytes before the id, and before each output's content.

    `anonymous`: all bytes before the first content if there is no id, prefix included. `size`: the message's size
    without id. `plain`: outputs are sent as they are in memory.
    """

    head: bytes
    before: tuple[bytes, ...]
    size: int
    anonymous: bytes
    plain: bool

    def fill(self, response: InferResponse) -> Encoded:
        """Return the message of a response that fits."""
        ident, size = response.id, self.size
        if ident:
            coded = ident.encode()
            field = field_head(ID_FIELD, len(coded)) + coded
            size += len(field)
            pieces: list[Piece] = [PREFIX.pack(0, size), self.head, field, self.before[0]]
        else:
            pieces = [self.anonymous]
        behind = self.before[1:]
        for tensor in response.outputs.values():
            pieces.append(_content(tensor.array))
            if behind:
                pieces.append(behind[0])
                behind = behind[1:]
        return pieces, size + PREFIX.size


def shape_of(response: InferResponse) -> tuple[object, ...]:
    """Return the properties that responses of one template share."""
    outputs = response.outputs
    if len(outputs) == 1:
        ((name, tensor),) = outputs.items()
        array = tensor.array
        return response.model, response.version, name, tensor.datatype.label, array.shape, array.dtype
    key: list[object] = [response.model, response.version]
    for name, tensor in outputs.items():
        key += (name, tensor.datatype.label, tensor.array.shape, tensor.array.dtype)
    return tuple(key)


def template_of(response: InferResponse) -> Template:
    """Return the template of a response and all of its shape."""
    outputs = response.outputs.values()
    plain = all(each.datatype not in CONVERTED and each.array.dtype == each.datatype.dtype for each in outputs)
    head = message("inference.ModelInferResponse")(model_name=response.model, model_version=response.version)
    described = message("inference.ModelInferResponse")()
    for name, tensor in response.outputs.items():
        described.outputs.add(name=name, datatype=tensor.datatype.label, shape=tensor.array.shape)
    before = [field_head(RAW_FIELD, each.array.nbytes) for each in outputs]
    before = [described.SerializeToString() + before[0], *before[1:]] if before else [b""]
    start = head.SerializeToString()
    size = len(start) + sum(len(each) for each in before) + sum(each.array.nbytes for each in outputs)
    return Template(start, tuple(before), size, PREFIX.pack(0, size) + start + before[0], plain)


def prefixed(*content: Piece) -> Encoded:
    """Return the message that consists of these pieces."""
    size = sum(map(len, content))
    return [PREFIX.pack(0, size), *content], PREFIX.size + size


def _content(array: Array) -> Piece:
    if array.nbytes < IN_PLACE_BYTES or not array.flags.c_contiguous:
        return array.tobytes()
    return array.data.cast("B")
