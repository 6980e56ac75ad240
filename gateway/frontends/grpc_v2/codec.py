"""ModelInfer's messages on the hot path: what repeats is read and written once.

A camera's or a sensor's requests differ in their tensors' bytes and perhaps in their id; all other bytes are the same.
What those mean is remembered, and the next such request is not parsed: its tensors are arrays over its own bytes.
Replies of one model and shape differ likewise. The protobuf messages (`decode`, `encode`) remain the one truth: what
was not met before goes through them, and tests hold both ways to be equal.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gateway.domain.infer import InferRequest, InferResponse, RequestedOutput
from gateway.domain.parameters import read_parameters
from gateway.domain.tensor import Array, Datatype, Tensor, datatype_named, decode_raw
from gateway.frontends.grpc_v2.calls import CallInfo, parse_message
from gateway.frontends.grpc_v2.decode import decode_request, read_values
from gateway.frontends.grpc_v2.encode import encode_response
from gateway.frontends.grpc_v2.protocol import message
from gateway.frontends.grpc_v2.wire import Layout, field_head, layout_of
from gateway.frontends.placement import OutputPlace, Place, read_place
from gateway.frontends.regions import Regions

PATTERNS_LIMIT = 256
"""Requests that differ in more than tensors and id, remembered at a time; one more and all are forgotten."""
TEMPLATES_LIMIT = 256
"""Models and shapes whose replies are remembered, likewise."""
ALIGNED_BYTES = 64
"""Where large tensors begin: a cache line, as wide as the widest vector instructions read."""
IN_PLACE_BYTES = 16 * 1024
"""Outputs from this size on go out as they lie; smaller ones are copied together into one piece."""
PREFIX = struct.Struct(">BI")
"""A message's flag and length (gRPC's "Length-Prefixed-Message")."""

_CONVERTED = frozenset({Datatype.BYTES, Datatype.BF16, Datatype.BOOL})
"""Datatypes whose bytes are not what lies in memory."""
_ID_FIELD, _RAW_FIELD = 3, 6
"""`id` and `raw_output_contents` in ModelInferResponse."""

Raw = bytes | memoryview
Piece = bytes | memoryview


class InferCodec:
    """One per service; `regions` as the service's. Used on the loop only."""

    def __init__(self, regions: Regions | None) -> None:
        self._regions = regions
        self._patterns: dict[int, list[tuple[Layout, dict[bytes, _Pattern]]]] = {}
        self._known = 0
        self._templates: dict[tuple[object, ...], _Template] = {}

    def decode(self, raw: Raw, call: CallInfo, now_ns: int, *, lent: bool) -> InferRequest:
        """The request in `raw`. `lent`: its memory is the transport's again afterwards, so tensors are copied out
        of it; else they are arrays over it where they are aligned. Raises as `decode_request` does."""
        for layout, patterns in self._patterns.get(len(raw), ()):
            pattern = patterns.get(layout.key(raw))
            if pattern is not None:
                try:
                    ident = str(raw[layout.id[0] : layout.id[1]], "utf-8")
                except UnicodeDecodeError:
                    break  # the parser's words for it
                return pattern.request(raw, ident, call, now_ns, self._regions, lent=lent)
        return self._learn(raw, call, now_ns)

    def encode(self, response: InferResponse, asked: Sequence[RequestedOutput]) -> tuple[list[Piece], int]:
        """The reply as a length-prefixed message in pieces, and its size in bytes. Raises as `encode_response` does."""
        if response.parameters or any(output.destination is not None for output in asked):
            return prefixed(encode_response(response, asked).SerializeToString())
        key = _shape_of(response)
        template = self._templates.get(key)
        if template is None:
            if len(self._templates) >= TEMPLATES_LIMIT:
                self._templates.clear()
            template = self._templates[key] = _template(response)
        return template.fill(response) if template.plain else prefixed(encode_response(response).SerializeToString())

    def lead(self, total: int) -> int:
        """Where the first tensor of a request of `total` bytes began when one was last met; 0 where none was."""
        known = self._patterns.get(total)
        return known[0][0].raws[0][0] if known and known[0][0].raws else 0

    def _learn(self, raw: Raw, call: CallInfo, now_ns: int) -> InferRequest:
        content = bytes(raw)
        sent = parse_message(message("inference.ModelInferRequest"), content)
        request = decode_request(sent, call, now_ns, self._regions)
        layout = layout_of(content)
        if layout is not None and (pattern := _pattern(sent, request, layout)) is not None:
            self._remember(layout, layout.key(content), pattern)
        return request

    def _remember(self, layout: Layout, key: bytes, pattern: _Pattern) -> None:
        self._known += 1
        if self._known > PATTERNS_LIMIT:
            self._patterns.clear()
            self._known = 1
        layouts = self._patterns.setdefault(layout.total, [])
        patterns = next((patterns for known, patterns in layouts if known == layout), None)
        if patterns is None:
            patterns = {}
            layouts.append((layout, patterns))
        patterns[key] = pattern


@dataclass(slots=True)
class _Inline:
    """A tensor in the message: `count` elements from byte `start` to `end`."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    start: int
    end: int

    def array(self, raw: Raw, lent: bool) -> Array:
        if self.datatype in _CONVERTED:
            return decode_raw(self.datatype, self.shape, bytes(raw[self.start : self.end]), self.name)
        array: Array = np.ndarray(self.shape, self.dtype, raw, self.start)
        return array.copy() if lent or not array.flags.aligned else array


@dataclass(slots=True)
class _Placed:
    """A tensor in shared memory."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    place: Place

    def array(self, caller: str, regions: Regions) -> Array:
        return decode_raw(self.datatype, self.shape, regions.raw(caller, self.place, self.datatype), self.name)


@dataclass(slots=True)
class _Pattern:
    """All that a request says beside id and tensors. `like` is one such request, without tensors, id and caller;
    `destinations` are where its outputs go, empty where all travel. Nothing here holds a caller's memory."""

    like: InferRequest
    inline: tuple[_Inline, ...]
    placed: tuple[_Placed, ...]
    destinations: tuple[Place | None, ...]
    timeout_us: int

    def request(
        self, raw: Raw, ident: str, call: CallInfo, now_ns: int, regions: Regions | None, *, lent: bool
    ) -> InferRequest:
        like = self.like
        inputs = {each.name: Tensor(each.datatype, each.array(raw, lent)) for each in self.inline}
        if regions is not None:
            for each in self.placed:
                inputs[each.name] = Tensor(each.datatype, each.array(call.caller, regions))
        ends_ns = call.deadline_ns
        if self.timeout_us:
            own_ns = now_ns + self.timeout_us * 1000
            ends_ns = own_ns if ends_ns is None else min(own_ns, ends_ns)
        outputs = like.outputs
        if self.destinations and regions is not None:
            outputs = tuple(
                output
                if place is None
                else replace(output, destination=regions.destination(call.caller, place, output.name))
                for output, place in zip(outputs, self.destinations, strict=True)
            )
        return InferRequest(
            like.model, inputs, like.version, ident, outputs, ends_ns, like.priority, call.caller, like.stream,
            like.ignored_parameters,
        )  # fmt: skip


def _pattern(sent: Any, request: InferRequest, layout: Layout) -> _Pattern | None:
    """What to remember of a request; None where its tensors are not raw, or empty."""
    inline: list[_Inline] = []
    placed: list[_Placed] = []
    spans = iter(layout.raws)
    for each in sent.inputs:
        datatype, shape = datatype_named(each.datatype, each.name), tuple(each.shape)
        place = read_place(read_values(each.parameters, each.name), each.name)
        if place is not None:
            placed.append(_Placed(each.name, datatype, shape, place))
            continue
        start, end = next(spans, (0, 0))
        if start == end:
            return None
        inline.append(_Inline(each.name, datatype, shape, datatype.dtype, start, end))
    said = read_parameters(read_values(sent.parameters, "request"))
    places = tuple(
        each.destination.place if isinstance(each.destination, OutputPlace) else None for each in request.outputs
    )
    destinations = places if any(places) else ()
    outputs = tuple(replace(each, destination=None) for each in request.outputs)
    like = replace(request, inputs={}, id="", caller="", deadline_ns=None, outputs=outputs)
    return _Pattern(like, tuple(inline), tuple(placed), destinations, said.timeout_us)


@dataclass(slots=True)
class _Template:
    """A reply of one model and shape: bytes before the id, and before each output's content. `plain`: every output
    travels as it lies in memory."""

    head: bytes
    before: tuple[bytes, ...]
    content_bytes: int
    plain: bool

    def fill(self, response: InferResponse) -> tuple[list[Piece], int]:
        ident = response.id
        if ident:
            coded = ident.encode()
            head = self.head + field_head(_ID_FIELD, len(coded)) + coded
        else:
            head = self.head
        size = len(head) + self.content_bytes
        pieces: list[Piece] = [PREFIX.pack(0, size), head]
        for before, tensor in zip(self.before, response.outputs.values(), strict=True):
            pieces.append(before)
            pieces.append(_content(tensor.array))
        return pieces, size + PREFIX.size


def _template(response: InferResponse) -> _Template:
    """Made from the protobuf message itself: whatever it says in whatever order, ours says the same."""
    outputs = response.outputs.values()
    plain = all(each.datatype not in _CONVERTED and each.array.dtype == each.datatype.dtype for each in outputs)
    head = message("inference.ModelInferResponse")(model_name=response.model, model_version=response.version)
    described = message("inference.ModelInferResponse")()
    for name, tensor in response.outputs.items():
        described.outputs.add(name=name, datatype=tensor.datatype.label, shape=tensor.array.shape)
    before = [field_head(_RAW_FIELD, each.array.nbytes) for each in outputs]
    if before:
        before[0] = described.SerializeToString() + before[0]
    size = sum(len(each) for each in before) + sum(each.array.nbytes for each in outputs)
    return _Template(head.SerializeToString(), tuple(before), size, plain)


def _shape_of(response: InferResponse) -> tuple[object, ...]:
    key: list[object] = [response.model, response.version]
    for name, tensor in response.outputs.items():
        key += (name, tensor.datatype.label, tensor.array.shape, tensor.array.dtype)
    return tuple(key)


def _content(array: Array) -> Piece:
    if array.nbytes < IN_PLACE_BYTES or not array.flags.c_contiguous:
        return array.tobytes()
    return array.data.cast("B")


def prefixed(content: bytes) -> tuple[list[Piece], int]:
    """A length-prefixed message in pieces, and its size in bytes."""
    return [PREFIX.pack(0, len(content)), content], PREFIX.size + len(content)
