"""Description that an ONNX file carries besides its tensors: opsets, metadata, names of classes, types of weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO

from gateway.common.domain.onnx_fields import BYTES, VARINT, OnnxFieldReader, damaged, tags

METADATA_LIMIT = 1_000
"""Most entries of the metadata that are read."""
METADATA_LIMIT_BYTES = 262_144
"""Longest value of the metadata that is read; a longer one is left out."""
CLASSES_LIMIT = 100_000
"""Most classes of a classifier's attribute."""
CLASSES = frozenset({"classlabels_ints", "classlabels_int64s", "classlabels_strings"})
"""Attributes of the operators of ai.onnx.ml that name classes."""

_PRODUCER, _GRAPH, _OPSET, _METADATA = tags(BYTES, 2, 7, 8, 14)
_KEY, _VALUE = tags(BYTES, 1, 2)
_NODE, _INITIALIZER = tags(BYTES, 1, 5)
_ATTRIBUTE = tags(BYTES, 5)[0]
_NAME, _STRINGS = tags(BYTES, 1, 9)
_INTS, _PACKED_INTS = *tags(VARINT, 8), *tags(BYTES, 8)
_DIMENSION, _DATA_TYPE = tags(VARINT, 1, 2)
_VERSION = tags(VARINT, 2)[0]


@dataclass(frozen=True, slots=True)
class OnnxHeader:
    """Description in an ONNX file.

    `opsets`: version by domain ("": ONNX's own). `classes`: names in the order of a classifier's scores. `weights`:
    elements of the initializers by TensorProto.DataType, without those of subgraphs.
    """

    producer: str = ""
    opsets: Mapping[str, int] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    weights: Mapping[int, int] = field(default_factory=dict)


def read_onnx_header(stream: BinaryIO) -> OnnxHeader:
    """Read the description of an ONNX model from a seekable stream.

    Raises ValueError with the offset in bytes if it is damaged or exceeds the limits of this module. Raises OSError.
    """
    header = _HeaderReader(OnnxFieldReader(stream))
    header.read_model()
    return OnnxHeader(header.producer, header.opsets, header.metadata, tuple(header.classes), header.weights)


class _HeaderReader:
    """Collector of the description."""

    def __init__(self, reader: OnnxFieldReader) -> None:
        self._reader = reader
        self.producer = ""
        self.opsets: dict[str, int] = {}
        self.metadata: dict[str, str] = {}
        self.classes: list[str] = []
        self.weights: dict[int, int] = {}

    def read_model(self) -> None:
        """Read the messages of the model. The graph's own parts are read, not those of subgraphs."""
        wanted = frozenset({_PRODUCER, _GRAPH, _OPSET, _METADATA})
        for tag, at, length in self._reader.fields(wanted, 0, self._reader.size):
            if tag == _GRAPH:
                self._read_graph(at, at + length)
            elif tag == _OPSET:
                self._read_opset(at, at + length)
            elif tag == _METADATA:
                self._read_entry(at, at + length)
            else:
                self.producer = self._reader.text((at, length))

    def _read_opset(self, start: int, end: int) -> None:
        values = {tag: (at, number) for tag, at, number in self._reader.fields({_KEY, _VERSION}, start, end)}
        domain = self._reader.text(values.get(_KEY))
        self.opsets["" if domain == "ai.onnx" else domain] = values.get(_VERSION, (0, 0))[1]

    def _read_entry(self, start: int, end: int) -> None:
        values = {tag: (at, length) for tag, at, length in self._reader.fields({_KEY, _VALUE}, start, end)}
        fits = values.get(_VALUE, (0, 0))[1] <= METADATA_LIMIT_BYTES
        if fits and len(self.metadata) < METADATA_LIMIT:
            self.metadata[self._reader.text(values.get(_KEY))] = self._reader.text(
                values.get(_VALUE), METADATA_LIMIT_BYTES
            )

    def _read_graph(self, start: int, end: int) -> None:
        for tag, at, length in self._reader.fields({_NODE, _INITIALIZER}, start, end):
            if tag == _INITIALIZER:
                self._read_weights(at, at + length)
                continue
            for _, begin, size in list(self._reader.fields({_ATTRIBUTE}, at, at + length)):
                self._read_attribute(begin, begin + size)

    def _read_weights(self, start: int, end: int) -> None:
        found = list(self._reader.fields({_DIMENSION, _DATA_TYPE}, start, end))
        elements = math.prod(number for tag, _, number in found if tag == _DIMENSION)
        for tag, _, kind in found:
            if tag == _DATA_TYPE:
                self.weights[kind] = self.weights.get(kind, 0) + elements

    def _read_attribute(self, start: int, end: int) -> None:
        named = next(iter(self._reader.fields({_NAME}, start, end, lists=True)), None)
        if named and not self.classes and self._reader.text(named[1:]) in CLASSES:
            self.classes += self._class_names(start, end)

    def _class_names(self, start: int, end: int) -> Iterator[str]:
        for count, (tag, at, number) in enumerate(self._reader.fields({_INTS, _PACKED_INTS, _STRINGS}, start, end)):
            if count >= CLASSES_LIMIT or tag == _PACKED_INTS:
                raise damaged(at, f"the classes are packed, or more than {CLASSES_LIMIT}")
            yield self._reader.text((at, number)) if tag == _STRINGS else str(_signed(number))


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number
