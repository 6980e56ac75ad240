"""Templates of ModelInferResponses: all but the bytes of their outputs and their id. Made from the protobuf message."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from gateway.common.domain.tensor import CONVERTED, Array
from gateway.serving.domain.infer import InferResponse, ResponseForm
from gateway.serving.domain.sizes import check_answer
from gateway.serving.frontends.grpc_v2.codec.protobuf import field_header
from gateway.serving.frontends.grpc_v2.codec.protocol import message
from gateway.serving.frontends.grpc_v2.framing import PREFIX, Encoded, prefixed
from gateway.serving.frontends.grpc_v2.http2.sender import Piece

IN_PLACE_BYTES = 16 * 1024
"""Size from which outputs are sent in place; smaller ones are copied into one piece with the bytes around them."""
ID_FIELD, RAW_FIELD = 3, 6
"""Numbers of `id` and `raw_output_contents` in ModelInferResponse."""
ID_HEADERS = tuple(field_header(ID_FIELD, length) for length in range(128))
"""Tag and length of an id, by its length: ids differ with each request."""


@dataclass(slots=True)
class Template:
    """Bytes before the id, and before each output's content.

    `anonymous`: all bytes before the first content if there is no id, prefix included. `size`: the message's size
    without id. `plain`: outputs are sent as they are in memory. `described`: bytes that describe the outputs.
    """

    start: bytes
    before: tuple[bytes, ...]
    size: int
    anonymous: bytes
    plain: bool
    described: bytes
    between: tuple[bytes, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Note what follows each content."""
        self.between = (*self.before[1:], b"")

    def fill(self, ident: str, contents: Iterable[Piece]) -> Encoded:
        """Return the message of a response that fits, with these contents of its outputs."""
        size = self.size
        if ident:
            field = _id_field(ident)
            size += len(field)
            pieces: list[Piece] = [PREFIX.pack(0, size), self.start, field, self.before[0]]
        else:
            pieces = [self.anonymous]
        for content, behind in zip(contents, self.between):  # noqa: B905  each has one
            pieces += (content, behind)
        return pieces, size + PREFIX.size

    def fill_sized(self, ident: str, contents: Iterable[bytes]) -> Encoded:
        """Return the message of a response whose contents have other sizes. Raises RequestError TOO_LARGE."""
        pieces: list[Piece] = [self.start, _id_field(ident) if ident else b"", self.described]
        for content in contents:
            pieces += (field_header(RAW_FIELD, len(content)), content)
        return prefixed(b"".join(pieces))


def _id_field(ident: str) -> bytes:
    coded = ident.encode()
    length = len(coded)
    return (ID_HEADERS[length] if length < len(ID_HEADERS) else field_header(ID_FIELD, length)) + coded


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


def form_of(response: InferResponse) -> ResponseForm:
    """Return the form of a response."""
    outputs = tuple((name, each.datatype, each.array.shape) for name, each in response.outputs.items())
    return ResponseForm(response.model, response.version, outputs)


def sent_as_in_memory(response: InferResponse) -> bool:
    """Return True if the contents of all outputs are sent as they are in memory."""
    outputs = response.outputs.values()
    return all(each.datatype not in CONVERTED and each.array.dtype == each.datatype.dtype for each in outputs)


def template_of(form: ResponseForm, *, plain: bool = True) -> Template:
    """Return the template of all responses of a form. `plain`: their outputs are sent as they are in memory.

    Raises RequestError TOO_LARGE.
    """
    named = message("inference.ModelInferResponse")(model_name=form.model, model_version=form.version)
    described = message("inference.ModelInferResponse")()
    for name, datatype, shape in form.outputs:
        described.outputs.add(name=name, datatype=datatype.label, shape=shape)
    sizes = [math.prod(shape) * datatype.dtype.itemsize for _, datatype, shape in form.outputs]
    before = [field_header(RAW_FIELD, size) for size in sizes]
    outputs = described.SerializeToString()
    before = [outputs + before[0], *before[1:]] if before else [outputs]
    start = named.SerializeToString()
    size = len(start) + sum(len(each) for each in before) + sum(sizes)
    check_answer(size)
    return Template(start, tuple(before), size, PREFIX.pack(0, size) + start + before[0], plain, outputs)


def content_of(array: Array) -> Piece:
    """Return the bytes of an array: a copy of few, a view of many."""
    if array.nbytes < IN_PLACE_BYTES or not array.flags.c_contiguous:
        return array.tobytes()
    return array.data.cast("B")
