"""Operators and external files that an ONNX file names, read without loading its tensors.

The format is Protocol Buffers (onnx.proto of the ONNX project, IR version 13); only the fields listed below are read,
everything else is skipped by its length.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from io import SEEK_END
from typing import BinaryIO

from gateway.domain.model_files import COPY_AGAIN

ENTRIES_LIMIT = 20_000_000
"""Most fields that are read of one file. A random forest of 1,000 trees has about 10 million."""
NESTING_LIMIT = 100
"""Most messages inside each other: the limit of Google's own parsers."""
STRING_LIMIT_BYTES = 4096
"""Longest name of an operator, a domain or a file (PATH_MAX on Linux)."""
NAMES_LIMIT = 100_000
"""Most distinct operators, and most distinct external files, of one file."""

_WINDOW_BYTES = 16_384
_HEAD_BYTES = 20
"""Bytes of two varints of ten bytes: a field's tag and its length."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_EXTERNAL = 1
"""TensorProto.DataLocation.EXTERNAL."""
_SHORT = b"|".join(b"\\x%02x[\\s\\S]{%d}" % (length, length) for length in range(32))
_LISTED = re.compile(rb"(?:\x3d[\s\S]{4}|\x40[\x80-\xff]{0,9}[\x00-\x7f]|\x4a(?:" + _SHORT + rb"))++")
"""Runs of AttributeProto's `floats` (7), `ints` (8) and short `strings` (9), which are not packed.

A tree ensemble has millions of them.
"""


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
    scanner = _Scanner(stream)
    scanner.scan("model", 0, scanner.size, 1)
    if not scanner.has_graph:
        raise ValueError(f"holds no graph, so that it is no whole ONNX model; {COPY_AGAIN}")
    return OnnxFacts(frozenset(scanner.operators), tuple(scanner.external))


def _tags(wire: int, *numbers: int) -> tuple[int, ...]:
    return tuple(number << 3 | wire for number in numbers)


def _messages(kind: str, *numbers: int) -> dict[int, str]:
    return dict.fromkeys(_tags(_BYTES, *numbers), kind)


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
    "model": _tags(_BYTES, 7),
    "training": _tags(_BYTES, 1, 2),
    "attribute": _tags(_BYTES, 5, 6, 22),
    "sparse tensor": _tags(_BYTES, 1, 2),
}
"""Singular fields among them, which parsers merge if they occur twice.

Writers never repeat them; such a file is refused.
"""
(_OP_TYPE, _DOMAIN) = _tags(_BYTES, 4, 7)
(_EXTERNAL_DATA,) = _tags(_BYTES, 13)
(_DATA_LOCATION,) = _tags(_VARINT, 14)
(_KEY, _VALUE) = _tags(_BYTES, 1, 2)
_VALUES: dict[str, frozenset[int]] = {
    "node": frozenset({_OP_TYPE, _DOMAIN}),
    "tensor": frozenset({_EXTERNAL_DATA, _DATA_LOCATION}),
    "entry": frozenset({_KEY, _VALUE}),
}
_WANTED = {kind: _VALUES.get(kind, frozenset()).union(parts) for kind, parts in _PARTS.items()}


class _Scanner:
    """Reader of Protocol Buffers messages in a seekable stream; collects the names in them."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._window, self._base, self._entries = b"", 0, 0
        self.size = stream.seek(0, SEEK_END)
        self.has_graph = False
        self.operators: set[str] = set()
        self.external: dict[str, None] = {}

    def scan(self, kind: str, start: int, end: int, depth: int) -> None:
        """Read the message of `kind` in the bytes from `start` to `end`, and the messages inside it."""
        if depth > NESTING_LIMIT:
            raise _damage(start, f"more than {NESTING_LIMIT} messages lie inside each other")
        self.has_graph = self.has_graph or kind == "graph"
        parts = _PARTS[kind]
        values: dict[int, tuple[int, int]] = {}
        locations: list[str] = []
        is_external = False
        for tag, at, value in self._fields(kind, start, end):
            if tag in parts:
                if values.get(tag) and tag in _SINGULAR[kind]:
                    raise _damage(at, f"a {kind} has two values that exclude each other")
                self.scan(parts[tag], at, at + value, depth + 1)
            elif tag == _EXTERNAL_DATA:
                locations.extend(self._location(at, at + value))
            is_external = is_external or (tag == _DATA_LOCATION and value & 0xFFFF_FFFF == _EXTERNAL)
            values[tag] = at, value
        if kind == "node":
            self._note_operator(start, *(self._text(values.get(tag)) for tag in (_DOMAIN, _OP_TYPE)))
        if is_external:
            self._note_external(start, locations)

    def _location(self, start: int, end: int) -> Iterator[str]:
        values = {tag: (at, length) for tag, at, length in self._fields("entry", start, end)}
        if self._text(values.get(_KEY)) == "location":
            yield self._text(values.get(_VALUE))

    def _note_operator(self, at: int, domain: str, op_type: str) -> None:
        self.operators.add(op_type if domain in {"", "ai.onnx"} else f"{domain}::{op_type}")
        if len(self.operators) > NAMES_LIMIT:
            raise _damage(at, f"more than {NAMES_LIMIT} different operators are named")

    def _note_external(self, at: int, locations: list[str]) -> None:
        if not locations:
            raise _damage(at, "a tensor's data is external, but its file is not named")
        self.external.update(dict.fromkeys(locations))
        if len(self.external) > NAMES_LIMIT:
            raise _damage(at, f"more than {NAMES_LIMIT} different external files are named")

    def _text(self, place: tuple[int, int] | None) -> str:
        at, length = place or (0, 0)
        if length > STRING_LIMIT_BYTES:
            raise _damage(at, f"a name has {length} bytes, at most {STRING_LIMIT_BYTES} are read")
        window, index = self._at(at, length)
        try:
            return window[index : index + length].decode()
        except UnicodeDecodeError:
            raise _damage(at, "a name is not UTF-8") from None

    def _fields(self, kind: str, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield tag, offset and number of each wanted field: a varint's value, or the length in bytes of a string."""
        wanted, at = _WANTED[kind], start
        while at < end:
            if kind == "attribute":
                at = self._behind_lists(at, end)
                if at == end:
                    return
            tag, begin = self._varint(at, end)
            tag, wire, number = self._known_tag(at, tag), tag & 7, 0
            if wire in (_VARINT, _BYTES):
                number, begin = self._varint(begin, end)
            stop = begin + (number if wire == _BYTES else {_FIXED64: 8, _FIXED32: 4}.get(wire, 0))
            if stop > end:
                raise _damage(at, f"a field of {stop - begin} bytes is longer than the message around it")
            if tag in wanted:
                yield tag, begin, number
            at = stop

    def _known_tag(self, at: int, tag: int) -> int:
        self._entries += 1
        if self._entries > ENTRIES_LIMIT:
            raise _damage(at, f"the file has more than {ENTRIES_LIMIT} fields")
        if tag & 7 not in {_VARINT, _FIXED64, _BYTES, _FIXED32} or not 8 <= tag <= 0xFFFF_FFFF:
            raise _damage(at, "there is no Protocol Buffers field")
        return tag

    def _behind_lists(self, at: int, end: int) -> int:
        window, index = self._at(at, _HEAD_BYTES)
        found = _LISTED.match(window, index, index + end - at)
        return at + found.end() - index if found else at

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        window, index = self._at(at, _HEAD_BYTES)
        value = 0
        for place, byte in enumerate(window[index : min(index + 10, index + end - at)]):
            value |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                return value & 0xFFFF_FFFF_FFFF_FFFF, at + place + 1
        raise _damage(at, "a number does not end")

    def _at(self, at: int, length: int) -> tuple[bytes, int]:
        """Return a window with `length` bytes from `at`, unless the stream ends, and the index of `at` in it."""
        index = at - self._base
        if not 0 <= index <= len(self._window) - length:
            self._stream.seek(at)
            self._window, self._base, index = self._stream.read(_WINDOW_BYTES), at, 0
        return self._window, index


def _damage(at: int, problem: str) -> ValueError:
    return ValueError(f"not an ONNX file, or a damaged one: at byte {at}, {problem}; {COPY_AGAIN}")
