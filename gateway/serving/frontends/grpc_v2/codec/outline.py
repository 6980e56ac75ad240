"""Outline of a large ModelInferRequest: its fields without the contents of its tensors.

Protobuf's parser converts two bytes to an object of a hundred, and holds the GIL until it has converted all. Therefore
the lengths of a large message's fields are read first (protobuf's "Encoding" page). Contents are left in place, and the
parser gets the rest, which is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.tensor import Steps
from gateway.serving.domain.sizes import VARINT_BYTES
from gateway.serving.frontends.grpc_v2.codec.protobuf import LENGTH_DELIMITED, Span, field_header, read_varint

INPUT_FIELD, RAW_FIELD = 5, 7
"""Numbers of `inputs` and `raw_input_contents` in ModelInferRequest."""
CONTENTS_FIELD = 5
"""Number of `contents` in InferInputTensor."""
NAME_FIELD = 1
HEADER_BYTES = 64 * 1024
"""Most bytes of names, parameters and small contents of one request: protobuf takes at most 1.6 ms for them."""
TENSORS_LIMIT = 1024
"""Most inputs, and most requested outputs, of one request: a 64 MiB message could name millions."""
FIELDS_LIMIT = 16_384
"""Most fields of one request, those of its inputs included."""
KEPT_BYTES = 4096
"""Largest contents that stay in the header: protobuf reads them in any encoding."""
STEP_FIELDS = 256
"""Fields read in one step: about 0.3 ms."""
_FIXED = {1: 8, 5: 4}
"""Sizes by wire type: I64 and I32."""


@dataclass(frozen=True, slots=True)
class Outline:
    """Parts of a message. `header`: the message without the contents of the spans.

    The spans are raw contents in their order, and `contents` by the index of their input, which is empty in the header.
    """

    header: bytes
    raws: tuple[Span, ...]
    contents: Mapping[int, Span]


def outline_steps(message: bytes | memoryview, header_bytes: int) -> Steps[Outline]:
    """Read the fields of `message`; its header may have `header_bytes`. Raises RequestError INVALID, TOO_LARGE."""
    try:
        return (yield from _Walk(memoryview(message), header_bytes).run())
    except (IndexError, ValueError):
        raise _invalid(f"the {len(message)} bytes sent are no inference.ModelInferRequest message") from None


def model_named(beginning: bytes | memoryview) -> str | None:
    """Return the model that a message names in its first field; None if that is elsewhere, or cut off."""
    try:
        tag, place = read_varint(beginning, 0)
        length, start = read_varint(beginning, place)
        if tag != (NAME_FIELD << 3 | LENGTH_DELIMITED) or start + length > len(beginning):
            return None
        return str(beginning[start : start + length], "utf-8")
    except (IndexError, ValueError):
        return None


class _Walk:
    def __init__(self, message: memoryview, header_bytes: int) -> None:
        self._message, self._left_bytes, self._limit_bytes = message, header_bytes, header_bytes
        self._parts: list[bytes | memoryview] = []
        self._raws: list[Span] = []
        self._contents: dict[int, Span] = {}
        self._inputs = self._fields = 0
        self._pause = STEP_FIELDS

    def run(self) -> Steps[Outline]:
        place, total = 0, len(self._message)
        while place < total:
            number, start, end = self._field(place, total)
            if self._fields >= self._pause:
                yield from self._rest()
            if number == RAW_FIELD:
                self._raws.append((start, end))
                _check_number(len(self._raws), "raw_input_contents")
            elif number == INPUT_FIELD:
                self._inputs += 1
                _check_number(self._inputs, "inputs")
                yield from self._input(place, start, end)
            else:
                self._keep(self._message[place:end])
            place = end
        return Outline(b"".join(self._parts), tuple(self._raws), self._contents)

    def _rest(self) -> Steps[None]:
        self._pause = self._fields + STEP_FIELDS
        yield

    def _input(self, begin: int, start: int, end: int) -> Steps[None]:
        """Keep an input, with its large contents separate."""
        place, spans = start, []
        while place < end:
            number, inner, stop = self._field(place, end)
            if self._fields >= self._pause:
                yield from self._rest()
            if number == CONTENTS_FIELD and stop - inner > KEPT_BYTES:
                spans.append((place, inner, stop))
            place = stop
        if not spans:
            self._keep(self._message[begin:end])
            return
        if len(spans) > 1:
            raise _invalid("an input has contents more than once")
        ((place, inner, stop),) = spans
        empty = field_header(CONTENTS_FIELD, 0)
        rest = (self._message[start:place], empty, self._message[stop:end])
        self._contents[self._inputs - 1] = inner, stop
        self._keep(field_header(INPUT_FIELD, sum(map(len, rest))))
        for part in rest:
            self._keep(part)

    def _keep(self, part: bytes | memoryview) -> None:
        self._left_bytes -= len(part)
        if self._left_bytes < 0:
            raise RequestError(
                Fault.TOO_LARGE,
                f"the request's names, parameters and small contents take more than {self._limit_bytes} bytes; "
                "send tensors as raw_input_contents",
            )
        self._parts.append(part)

    def _field(self, place: int, limit: int) -> tuple[int, int, int]:
        """Return the number of the field at `place` (0 unless length-delimited), start and end of its content."""
        self._fields += 1
        if self._fields > FIELDS_LIMIT:
            raise _invalid(f"the request has more than {FIELDS_LIMIT} fields next to its tensors' contents")
        tag, place = read_varint(self._message, place)
        kind = tag & 7
        if kind == LENGTH_DELIMITED:
            length, place = read_varint(self._message, place)
            number, end = tag >> 3, place + length
        else:
            number, end = 0, _skipped(self._message, place, kind)
        if end > limit:
            raise ValueError("a field continues after the end")
        return number, place, end


def _skipped(message: memoryview, place: int, kind: int) -> int:
    """Return the end of a field that is not length-delimited. Raises ValueError for groups."""
    if kind == 0:
        for end in range(place, place + VARINT_BYTES):
            if message[end] < 0x80:
                return end + 1
    if kind not in _FIXED:
        raise ValueError("unknown wire type")
    return place + _FIXED[kind]


def _check_number(number: int, what: str) -> None:
    if number > TENSORS_LIMIT:
        raise _invalid(f"the request names more than {TENSORS_LIMIT} {what}; at most {TENSORS_LIMIT} are read")


def _invalid(message: str) -> RequestError:
    return RequestError(Fault.INVALID, message)
