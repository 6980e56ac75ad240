"""Operators and external files that an ONNX file names, read without loading its tensors.

Only the fields listed below are read, everything else is skipped by its length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from gateway.common.domain.model_files import COPY_AGAIN
from gateway.common.domain.onnx_fields import BYTES, VARINT, OnnxFieldReader, damaged, tags

NESTING_LIMIT = 100
"""Most messages inside each other: the limit of Google's own parsers."""
NAMES_LIMIT = 100_000
"""Most distinct operators, and most distinct external files, of one file."""
COMPILED = "com.microsoft::EPContext"
"""Operator of ONNX Runtime with a compiled model in an attribute, or in a file that the attribute names."""

_EXTERNAL = 1
"""TensorProto.DataLocation.EXTERNAL."""


@dataclass(frozen=True, slots=True)
class OnnxFacts:
    """Names found in an ONNX file.

    `operators`: types of all nodes, also those of subgraphs and of model-local functions; `domain::type` unless the
    domain is ONNX's own. `external`: distinct locations of tensors whose data is in other files, in order of
    appearance, as written in the file (not checked).
    """

    operators: frozenset[str]
    external: tuple[str, ...]


def read_onnx(stream: BinaryIO) -> OnnxFacts:
    """Read the operators and external files of an ONNX model from a seekable stream.

    Raises ValueError with the offset in bytes if it is no ONNX file or exceeds the limits of this module. Raises
    OSError.
    """
    reader = OnnxFieldReader(stream)
    scanner = _Scanner(reader)
    scanner.scan("model", 0, reader.size, 1)
    if not scanner.has_graph:
        raise ValueError(f"holds no graph, so that it is no whole ONNX model; {COPY_AGAIN}")
    return OnnxFacts(frozenset(scanner.operators), tuple(scanner.external))


def may_refer(stream: BinaryIO) -> bool:
    """Return whether `read_onnx` may find a reference to another file, or COMPILED, in a seekable stream.

    Strings of a message are in its file as they are: a search for the words that each reference needs takes the place
    of reading all fields. A file without one graph is left to `read_onnx`, which says what is wrong. Raises ValueError
    as `read_onnx` does if the file is cut off, OSError.
    """
    reader = OnnxFieldReader(stream)
    if [tag for tag, _, _ in reader.fields(_WANTED["model"], 0, reader.size)].count(_GRAPH) != 1:
        return True
    stream.seek(0)
    before = b""
    while block := stream.read(_BLOCK_BYTES):
        if any(word in before + block for word in _NAMING):
            return True
        before = block[-_LONGEST_WORD:]
    return False


def _messages(kind: str, *numbers: int) -> dict[int, str]:
    return dict.fromkeys(tags(BYTES, *numbers), kind)


_PARTS: dict[str, dict[int, str]] = {
    "model": _messages("graph", 7) | _messages("training", 20) | _messages("function", 25),
    "training": _messages("graph", 1, 2),
    "function": _messages("node", 7) | _messages("attribute", 11),
    "graph": _messages("node", 1) | _messages("tensor", 5) | _messages("sparse tensor", 15),
    "node": _messages("attribute", 5),
    "attribute": _messages("tensor", 5, 10) | _messages("graph", 6, 11) | _messages("sparse tensor", 22, 23),
    "sparse tensor": _messages("tensor", 1, 2),
    "tensor": {},
    "entry": {},
}
"""Fields of each message that contain further messages: their tag, and the kind of that message."""
_SINGULAR: dict[str, tuple[int, ...]] = dict.fromkeys(_PARTS, ()) | {
    "model": tags(BYTES, 7),
    "training": tags(BYTES, 1, 2),
    "attribute": tags(BYTES, 5, 6, 22),
    "sparse tensor": tags(BYTES, 1, 2),
}
"""Singular fields among them, which parsers merge if they occur twice.

Writers never repeat them; such a file is refused.
"""
(_GRAPH,) = tags(BYTES, 7)
_NAMING, _LONGEST_WORD, _BLOCK_BYTES = (b"location", b"EPContext"), 9, 1 << 18
"""Key of TensorProto.external_data without which a tensor has no other file, and the operator of COMPILED."""
(_OP_TYPE, _DOMAIN) = tags(BYTES, 4, 7)
(_EXTERNAL_DATA,) = tags(BYTES, 13)
(_DATA_LOCATION,) = tags(VARINT, 14)
(_KEY, _VALUE) = tags(BYTES, 1, 2)
_VALUES: dict[str, frozenset[int]] = {
    "node": frozenset({_OP_TYPE, _DOMAIN}),
    "tensor": frozenset({_EXTERNAL_DATA, _DATA_LOCATION}),
    "entry": frozenset({_KEY, _VALUE}),
}
_WANTED = {kind: _VALUES.get(kind, frozenset()).union(parts) for kind, parts in _PARTS.items()}


class _Scanner:
    """Collector of the names in a model's messages."""

    def __init__(self, reader: OnnxFieldReader) -> None:
        self._reader = reader
        self.has_graph = False
        self.operators: set[str] = set()
        self.external: dict[str, None] = {}

    def scan(self, kind: str, start: int, end: int, depth: int) -> None:
        """Read the message of `kind` in the bytes from `start` to `end`, and the messages inside it."""
        if depth > NESTING_LIMIT:
            raise damaged(start, f"more than {NESTING_LIMIT} messages lie inside each other")
        self.has_graph = self.has_graph or kind == "graph"
        parts = _PARTS[kind]
        values: dict[int, tuple[int, int]] = {}
        locations: list[str] = []
        is_external = False
        for tag, at, value in self._fields(kind, start, end):
            if tag in parts:
                if values.get(tag) and tag in _SINGULAR[kind]:
                    raise damaged(at, f"a {kind} has two values that exclude each other")
                self.scan(parts[tag], at, at + value, depth + 1)
            elif tag == _EXTERNAL_DATA:
                locations.extend(self._location(at, at + value))
            is_external = is_external or (tag == _DATA_LOCATION and value & 0xFFFF_FFFF == _EXTERNAL)
            values[tag] = at, value
        if kind == "node":
            self._note_operator(start, *(self._reader.text(values.get(tag)) for tag in (_DOMAIN, _OP_TYPE)))
        if is_external:
            if not locations:
                raise damaged(start, "a tensor's data is external, but its file is not named")
            self.external.update(dict.fromkeys(locations))
            if len(self.external) > NAMES_LIMIT:
                raise damaged(start, f"more than {NAMES_LIMIT} different external files are named")

    def _location(self, start: int, end: int) -> Iterator[str]:
        values = {tag: (at, length) for tag, at, length in self._fields("entry", start, end)}
        if self._reader.text(values.get(_KEY)) == "location":
            yield self._reader.text(values.get(_VALUE))

    def _note_operator(self, at: int, domain: str, op_type: str) -> None:
        self.operators.add(op_type if domain in {"", "ai.onnx"} else f"{domain}::{op_type}")
        if len(self.operators) > NAMES_LIMIT:
            raise damaged(at, f"more than {NAMES_LIMIT} different operators are named")

    def _fields(self, kind: str, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        return self._reader.fields(_WANTED[kind], start, end, lists=kind == "attribute")
