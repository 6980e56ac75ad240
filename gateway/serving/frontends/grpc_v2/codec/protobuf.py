"""Protobuf's wire format (its "Encoding" page), as far as the hot path reads it: positions of a request's tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct

LENGTH_DELIMITED = 2
ID_FIELD, INPUT_FIELD, RAW_FIELD = 3, 5, 7
"""Numbers of `id`, `inputs` and `raw_input_contents` in ModelInferRequest."""
CONTENTS_FIELD = 5
"""Number of `contents` in InferInputTensor."""
FLOAT_FIELDS = frozenset({6, 7})
"""Numbers of `fp32_contents` and `fp64_contents` in InferTensorContents: packed numbers as they are in memory."""
TYPED_BYTES = 16 * 1024
"""Largest message whose floats in InferTensorContents are remembered like raw contents."""
FIELDS_LIMIT = 1024
"""Most top-level fields that are read; a request with more is not remembered."""
FIXED_LIMIT_BYTES = 4096
"""Bytes other than id and tensors that are remembered of one request."""
VARINT_LIMIT_BITS = 35
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class RequestLayout:
    """Positions in a ModelInferRequest of `total` bytes: the id (an empty span: none), and each raw tensor.

    `typed`: packed floats by the index of their input. `fixed` are the slices of all other bytes, including tags and
    lengths of id and tensors. Two messages of one length with equal `fixed` bytes differ only in the contents of the id
    and the tensors.
    """

    total: int
    id: Span
    raws: tuple[Span, ...]
    fixed: tuple[slice, ...]
    typed: Mapping[int, Span]

    def ident(self, message: bytes | memoryview) -> str:
        """Return the id of a message that has one. Raises UnicodeDecodeError if it is no text."""
        start, end = self.id
        return str(message[start:end], "utf-8")


def layout_of(message: bytes | memoryview) -> RequestLayout | None:
    """Return the layout of a message; None if it is not worth remembering or has unexpected fields."""
    place, count = 0, 0
    ident: Span = (0, 0)
    raws: list[Span] = []
    typed: dict[int, Span] = {}
    inputs = 0
    try:
        while place < len(message) and count < FIELDS_LIMIT:
            tag, place = read_varint(message, place)
            if tag & 7 != LENGTH_DELIMITED:
                return None
            length, start = read_varint(message, place)
            number, end = tag >> 3, start + length
            if number == ID_FIELD:
                if ident != (0, 0):
                    return None
                ident = (start, end)
            elif number == RAW_FIELD:
                raws.append((start, end))
            elif number == INPUT_FIELD:
                if len(message) <= TYPED_BYTES and (span := _floats(message, start, end)):
                    typed[inputs] = span
                inputs += 1
            place, count = end, count + 1
    except (IndexError, ValueError):
        return None
    spans = sorted([*raws, *typed.values(), *([ident] if ident[1] else [])])
    ends, starts = [0, *(end for _, end in spans)], [*(start for start, _ in spans), len(message)]
    fixed = tuple(slice(end, start) for end, start in zip(ends, starts, strict=True) if end < start)
    if place != len(message) or sum(part.stop - part.start for part in fixed) > FIXED_LIMIT_BYTES:
        return None
    return RequestLayout(len(message), ident, tuple(raws), fixed, typed)


def _floats(message: bytes | memoryview, place: int, limit: int) -> Span | None:
    """Return the packed floats of an input that are all of its contents; None if there are none, or others."""
    found = None
    while place < limit:
        tag, start = read_varint(message, place)
        if tag & 7 != LENGTH_DELIMITED:
            return None
        length, start = read_varint(message, start)
        place = start + length
        if tag >> 3 == CONTENTS_FIELD:
            if found is not None or not length:
                return None
            tag, inner = read_varint(message, start)
            size, inner = read_varint(message, inner)
            if tag & 7 != LENGTH_DELIMITED or tag >> 3 not in FLOAT_FIELDS or inner + size != place or not size:
                return None
            found = inner, place
    return found if place == limit else None


def cutter(total: int, spans: list[Span]) -> Struct:
    """Return what cuts these spans, in ascending order, out of a message of `total` bytes."""
    words, place = ["="], 0
    for start, end in spans:
        words.append(f"{start - place}x{end - start}s")
        place = end
    return Struct("".join([*words, f"{total - place}x"]))


def read_varint(message: bytes | memoryview, place: int) -> tuple[int, int]:
    """Return the number at `place`, of at most VARINT_LIMIT_BITS, and its end. Raises IndexError, ValueError."""
    value = shift = 0
    while True:
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
        if shift > VARINT_LIMIT_BITS:
            raise ValueError("too long")


def varint(value: int) -> bytes:
    """Return a non-negative integer as it is sent."""
    coded = bytearray()
    while value >= 0x80:
        coded.append(value & 0x7F | 0x80)
        value >>= 7
    coded.append(value)
    return bytes(coded)


def field_header(number: int, length: int) -> bytes:
    """Return tag and length of a length-delimited field; its content follows."""
    return varint(number << 3 | LENGTH_DELIMITED) + varint(length)
