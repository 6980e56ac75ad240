"""Graph of an ONNX file: operators with their attributes, and the small constants that sizes come from.

Weights are not read. Fields are those of onnx.proto of the ONNX project, IR version 13.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import BinaryIO, TypeAlias

import numpy as np

from gateway.common.domain.onnx_fields import BYTES, FIXED32, FIXED64, VARINT, OnnxFieldReader, damaged, tags
from gateway.common.domain.onnx_file import NESTING_LIMIT
from gateway.serving.domain.rows.graph import Attribute, Constant, Graph, ModelGraph, Node, Reference

INTEGERS_LIMIT = 256
"""Most integers of a constant that is read."""
FLOATS_LIMIT = 16
"""Most floats of a constant that is read: scales of a resize."""
LIST_LIMIT = 4096
"""Most numbers of an attribute that are read."""
FIELDS_LIMIT = 1_000_000
"""Most fields of one message that are kept: lists that are not packed have one for each number."""
NODES_LIMIT = 200_000
"""Most operators of one file."""
LEARNING = "ai.onnx.ml"
"""Domain whose attributes are not read: those of trees hold millions of numbers, and no rule needs one of them."""

_FIELDS = frozenset(
    tag for number in range(1, 64) for wire in (VARINT, FIXED64, BYTES, FIXED32) for tag in tags(wire, number)
)
_Place: TypeAlias = tuple[int, int]
"""Offset and length in bytes."""
_INTEGERS: Mapping[int, str] = {2: "u1", 3: "i1", 4: "<u2", 5: "<i2", 6: "<i4", 7: "<i8", 9: "u1", 12: "<u4", 13: "<u8"}
_FLOATS: Mapping[int, str] = {1: "<f4", 10: "<f2", 11: "<f8"}
"""Types of elements (TensorProto.DataType) that are read, as they are in `raw_data`."""
_BFLOAT16 = 16
_FLOAT, _TEXT, _TENSOR, _GRAPH, _FLOAT_LIST, _INTEGER_LIST = 1, 3, 4, 5, 6, 7
"""AttributeProto.AttributeType."""


def read_onnx_graph(stream: BinaryIO) -> ModelGraph:
    """Read the graph of an ONNX model from a seekable stream.

    Raises ValueError with the offset in bytes if it is damaged or exceeds the limits of this module. Raises OSError.
    """
    return _GraphReader(OnnxFieldReader(stream)).model()


@dataclass(slots=True)
class _Message:
    """Fields of a message by their number: varints, places of strings and messages, and fixed values."""

    numbers: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    places: dict[int, list[_Place]] = field(default_factory=lambda: defaultdict(list))
    at: int = 0

    def place(self, number: int) -> _Place:
        """Return the place of a field that occurs once, an empty one if it is absent."""
        return self.places[number][-1] if self.places[number] else (self.at, 0)

    def number(self, number: int) -> int:
        """Return a varint that occurs once, 0 if it is absent."""
        return _signed(self.numbers[number][-1]) if self.numbers[number] else 0


class _GraphReader:
    """Reader of messages: each method reads one kind of message at its place."""

    def __init__(self, reader: OnnxFieldReader) -> None:
        self._reader = reader
        self._nodes = 0

    def model(self) -> ModelGraph:
        """Read the whole file."""
        message = self._message((0, self._reader.size))
        opsets = dict(map(self._opset, message.places[8]))
        functions = [self._function(place) for place in message.places[25]]
        fitting = {kind: graph for kind, graph, own in functions if own.get("", opsets.get("")) == opsets.get("")}
        return ModelGraph(self._graph(message.place(7), 1), opsets, fitting)

    def _message(self, place: _Place) -> _Message:
        start, length = place
        message = _Message(at=start)
        for count, (tag, at, number) in enumerate(self._reader.fields(_FIELDS, start, start + length)):
            if count >= FIELDS_LIMIT:
                raise damaged(start, f"a message has more than {FIELDS_LIMIT} fields")
            wire = tag & 7
            if wire == VARINT:
                message.numbers[tag >> 3].append(number)
            else:
                message.places[tag >> 3].append((at, number if wire == BYTES else 8 if wire == FIXED64 else 4))
        return message

    def _text(self, message: _Message, number: int) -> str:
        return self._reader.text(message.place(number))

    def _opset(self, place: _Place) -> tuple[str, int]:
        message = self._message(place)
        domain = self._text(message, 1)
        return "" if domain == "ai.onnx" else domain, message.number(2)

    def _graph(self, place: _Place, depth: int) -> Graph:
        if depth > NESTING_LIMIT:
            raise damaged(place[0], f"more than {NESTING_LIMIT} graphs lie inside each other")
        message = self._message(place)
        constants = dict(map(self._tensor, message.places[5]))
        for sparse in map(self._message, message.places[15]):
            name, _ = self._tensor(sparse.place(1))  # the shape is that of the dense form
            constants[name] = Constant(tuple(self._integers(sparse, 3)))
        return Graph(
            dict(map(self._input, message.places[11])),
            tuple(self._text(self._message(each), 1) for each in message.places[12]),
            constants,
            tuple(self._node(each, depth) for each in message.places[1]),
        )

    def _function(self, place: _Place) -> tuple[str, Graph, Mapping[str, int]]:
        message = self._message(place)
        inputs, outputs = (tuple(map(self._reader.text, message.places[number])) for number in (4, 5))
        nodes = tuple(self._node(each, 1) for each in message.places[7])
        graph = Graph(dict.fromkeys(inputs), outputs, {}, nodes)
        return self._kind(message, 10, 1, 13), graph, dict(map(self._opset, message.places[9]))

    def _kind(self, message: _Message, domain: int, name: int, overload: int) -> str:
        found, kind, over = (self._text(message, number) for number in (domain, name, overload))
        return (kind if found in {"", "ai.onnx"} else f"{found}::{kind}") + (f":{over}" if over else "")

    def _node(self, place: _Place, depth: int) -> Node:
        self._nodes += 1
        if self._nodes > NODES_LIMIT:
            raise damaged(place[0], f"the file has more than {NODES_LIMIT} operators")
        message = self._message(place)
        is_learning = self._text(message, 7) == LEARNING
        attributes = {} if is_learning else dict(self._attribute(each, depth) for each in message.places[5])
        inputs, outputs = (tuple(map(self._reader.text, message.places[number])) for number in (1, 2))
        return Node(self._kind(message, 7, 4, 8), self._text(message, 3), inputs, outputs, attributes)

    def _attribute(self, place: _Place, depth: int) -> tuple[str, Attribute]:
        message = self._message(place)
        return self._text(message, 1), self._contents(message, depth)

    def _contents(self, message: _Message, depth: int) -> Attribute:
        """Return the contents of an attribute; early files do not state their type."""
        if message.places[21]:
            return Reference(self._text(message, 21))
        kind = message.number(20)
        if message.places[5] or kind == _TENSOR:
            return self._tensor(message.place(5))[1]
        if message.places[6] or kind == _GRAPH:
            return self._graph(message.place(6), depth + 1)
        count = len(message.places[9] or message.numbers[8] or message.places[7])
        if message.places[22] or message.places[9] or count > LIST_LIMIT:  # only the shape, of a sparse one when dense
            sparse = self._integers(self._message(message.place(22)), 3)
            return Constant(tuple(sparse) if message.places[22] else (count,))
        if message.places[8] or message.numbers[8] or kind == _INTEGER_LIST:
            return tuple(self._integers(message, 8))
        if message.places[7] or kind == _FLOAT_LIST:
            return tuple(self._floats(message, 7, "<f4"))
        if message.places[2] or kind == _FLOAT:
            return (*self._floats(message, 2, "<f4"), 0.0)[0]
        return self._text(message, 4) if message.places[4] or kind == _TEXT else message.number(3)

    def _input(self, place: _Place) -> tuple[str, tuple[int | None, ...] | None]:
        message = self._message(place)
        tensor = self._message(self._message(message.place(2)).place(1))
        shape = self._message(tensor.place(2)).places[1] if tensor.places[2] else None
        return self._text(message, 1), None if shape is None else tuple(map(self._dimension, shape))

    def _dimension(self, place: _Place) -> int | None:
        message = self._message(place)
        return message.number(1) if message.numbers[1] and message.number(1) >= 0 else None

    def _tensor(self, place: _Place) -> tuple[str, Constant]:
        message = self._message(place)
        shape, kind = tuple(self._integers(message, 1)), message.number(2)
        floats = kind in _FLOATS or kind == _BFLOAT16
        limit = INTEGERS_LIMIT if kind in _INTEGERS else FLOATS_LIMIT if kind in _FLOATS else -1
        numbers: Sequence[float] | None = None
        if prod(shape) <= limit and not message.places[13]:
            numbers = self._elements(message, kind)
            if len(numbers) != prod(shape):
                raise damaged(place[0], f"a tensor of {prod(shape)} elements has {len(numbers)}")
        return self._text(message, 8), Constant(shape, None if numbers is None else tuple(numbers), floats=floats)

    def _elements(self, message: _Message, kind: int) -> Sequence[float]:
        dtype = np.dtype(_INTEGERS.get(kind) or _FLOATS[kind])
        if message.places[9]:
            at, length = message.place(9)
            return list(np.frombuffer(self._reader.raw(at, length - length % dtype.itemsize), dtype).tolist())
        if kind == 10:  # each integer has the 16 bits of a float
            return list(np.asarray(self._integers(message, 5), "<u2").view("<f2").tolist())
        if kind in _FLOATS:
            return self._floats(message, 4 if kind == 1 else 10, dtype)
        return self._integers(message, {7: 7, 12: 11, 13: 11}.get(kind, 5))

    def _integers(self, message: _Message, number: int) -> list[int]:
        """Return a repeated integer, packed or not."""
        found = [_signed(each) for each in message.numbers[number][:LIST_LIMIT]]
        for at, length in message.places[number]:
            if length > 10 * LIST_LIMIT:
                raise damaged(at, f"a list has more than {LIST_LIMIT} numbers")
            found += map(_signed, self._reader.packed(at, length))
        return found

    def _floats(self, message: _Message, number: int, dtype: object) -> list[float]:
        found: list[float] = []
        for at, length in message.places[number][:LIST_LIMIT]:
            if length > 8 * LIST_LIMIT:
                raise damaged(at, f"a list has more than {LIST_LIMIT} numbers")
            found += np.frombuffer(self._reader.raw(at, length), np.dtype(dtype)).tolist()  # type: ignore[call-overload]
        return found


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number
