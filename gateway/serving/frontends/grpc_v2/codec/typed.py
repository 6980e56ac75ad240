"""InferTensorContents of large requests: packed numbers and BYTES read in steps, without protobuf's parser.

Each client writes numbers packed (proto3's default). Protobuf reads other encodings, as long as they are small
(`outline.KEPT_BYTES`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.tensor import STEP_ELEMENTS, Array, Datatype, Steps, datatype_named, element_count
from gateway.serving.domain.sizes import VARINT_BYTES
from gateway.serving.frontends.grpc_v2.codec.protobuf import LENGTH_DELIMITED, read_varint

FIELDS: Mapping[Datatype, str] = {
    Datatype.BOOL: "bool_contents",
    Datatype.INT8: "int_contents",
    Datatype.INT16: "int_contents",
    Datatype.INT32: "int_contents",
    Datatype.INT64: "int64_contents",
    Datatype.UINT8: "uint_contents",
    Datatype.UINT16: "uint_contents",
    Datatype.UINT32: "uint_contents",
    Datatype.UINT64: "uint64_contents",
    Datatype.FP32: "fp32_contents",
    Datatype.FP64: "fp64_contents",
    Datatype.BYTES: "bytes_contents",
}
"""Field of InferTensorContents by datatype (OIP, "Inference Tensor Data"); FP16 and BF16 have none."""
NUMBERS = (
    *("", "bool_contents", "int_contents", "int64_contents", "uint_contents", "uint64_contents"),
    *("fp32_contents", "fp64_contents", "bytes_contents"),
)
"""Names of its fields by their numbers."""
_AS_TRAVELS = {
    "bool_contents": "?", "int_contents": "<i4", "int64_contents": "<i8", "uint_contents": "<u4",
    "uint64_contents": "<u8",
}  # fmt: skip
PIECES_LIMIT = 64
"""Most pieces of one packed field; protobuf writes one."""
STEP_BYTES = 32_768
"""Bytes of varints that one step reads: about 0.5 ms."""


def typed_datatype(label: str, name: str) -> tuple[Datatype, str]:
    """Return the datatype named `label` and its field. Raises RequestError INVALID."""
    datatype = datatype_named(label, name)
    field = FIELDS.get(datatype)
    if field is None:
        raise _invalid(f"input '{name:.200}' is {datatype.label}, which only raw_input_contents can carry")
    return datatype, field


def typed_steps(label: str, shape: Sequence[int], contents: memoryview, name: str) -> Steps[Array]:
    """Return the array in a serialized InferTensorContents. Raises RequestError INVALID if the shape differs."""
    datatype, field = typed_datatype(label, name)
    count = element_count(shape, name)
    if datatype is Datatype.BYTES:
        return (yield from _texts(contents, count, shape, name)).reshape(shape)
    pieces: list[memoryview] = []
    place = found = 0
    while place < len(contents):
        number, kind, start, place = _field(contents, place, name)
        if len(pieces) == PIECES_LIMIT:
            raise _unusual(name)
        _check_field(number, kind, datatype, name)
        pieces.append(contents[start:place])
    for piece in pieces:
        found += yield from _count(piece, datatype)
    if found != count:
        raise _invalid(f"input '{name:.200}' has {found} elements in {field}, but shape {list(shape)} takes {count}")
    array, filled = np.empty(count, datatype.dtype), 0
    for piece in pieces:
        filled += yield from _fill(array[filled:], piece, datatype, field, name)
    return array.reshape(shape)


def _check_field(number: int, kind: int, datatype: Datatype, name: str) -> None:
    field = FIELDS[datatype]
    if 0 < number < len(NUMBERS) and NUMBERS[number] != field:
        raise _invalid(f"input '{name:.200}' is {datatype.label} and belongs in {field}, not in {NUMBERS[number]}")
    if number != NUMBERS.index(field) or kind != LENGTH_DELIMITED:
        raise _unusual(name)


def _field(contents: memoryview, place: int, name: str) -> tuple[int, int, int, int]:
    """Return number and wire type of the field at `place`, and start and end of length-delimited content."""
    try:
        tag, start = read_varint(contents, place)
        if tag & 7 != LENGTH_DELIMITED:
            return tag >> 3, tag & 7, start, start
        length, start = read_varint(contents, start)
    except (IndexError, ValueError):
        raise _broken(name) from None
    if start + length > len(contents):
        raise _broken(name)
    return tag >> 3, LENGTH_DELIMITED, start, start + length


def _count(piece: memoryview, datatype: Datatype) -> Steps[int]:
    """Count the numbers in a piece: a varint ends with the byte whose highest bit is 0."""
    if datatype.dtype.kind == "f":
        return len(piece) // datatype.wire_bytes
    found, step = 0, 16 * STEP_BYTES
    for begin in range(0, len(piece), step):
        if begin:
            yield
        found += int(np.count_nonzero(np.frombuffer(piece[begin : begin + step], np.uint8) < 0x80))
    return found


def _fill(array: Array, piece: memoryview, datatype: Datatype, field: str, name: str) -> Steps[int]:
    """Read the numbers of a piece into the beginning of `array`; return their number."""
    if datatype.dtype.kind == "f":
        if len(piece) % datatype.wire_bytes:
            raise _broken(name)
        filled = len(piece) // datatype.wire_bytes
        array[:filled] = np.frombuffer(piece, datatype.dtype)
        return filled
    filled = place = 0
    content = np.frombuffer(piece, np.uint8)
    while place < len(content):
        yield
        values, place = _varints(content, place, name)
        array[filled : filled + len(values)] = _converted(values, datatype, field, name)
        filled += len(values)
    return filled


def _varints(content: npt.NDArray[np.uint8], place: int, name: str) -> tuple[npt.NDArray[np.uint64], int]:
    """Return the varints that end within STEP_BYTES from `place` on, and the position of the next."""
    window = content[place : place + STEP_BYTES]
    ends = np.flatnonzero(window < 0x80)
    if not len(ends):
        raise _broken(name)
    window = window[: ends[-1] + 1]
    if len(ends) == len(window):  # a byte each
        return window.astype(np.uint64), place + len(window)
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends - starts + 1
    if lengths.max() > VARINT_BYTES:
        raise _broken(name)
    values = np.zeros(len(ends), np.uint64)
    for index in range(int(lengths.max())):
        longer = lengths > index
        bits = (window[starts[longer] + index] & 0x7F).astype(np.uint64)
        values[longer] |= bits << np.uint64(7 * index)  # bits beyond 64 are lost, as in protobuf
    return values, place + len(window)


def _converted(values: npt.NDArray[np.uint64], datatype: Datatype, field: str, name: str) -> Array:
    """Return `values` as the numbers of `field` (truncated to their width, as protobuf does) in `datatype`."""
    if datatype is Datatype.BOOL:
        return np.not_equal(values, 0)
    numbers: Array = values.astype(_AS_TRAVELS[field])
    if numbers.dtype.itemsize > datatype.dtype.itemsize:
        bounds = np.iinfo(datatype.dtype)
        wrong = (numbers < bounds.min) | (numbers > bounds.max)
        if wrong.any():
            raise _invalid(
                f"input '{name:.200}' has a value that {datatype.label} cannot hold: {int(numbers[wrong][0])}"
            )
    return numbers


def _texts(contents: memoryview, count: int, shape: Sequence[int], name: str) -> Steps[Array]:
    """Return BYTES elements: each is a field of its own, of two bytes at least."""
    if 2 * count > len(contents):
        raise _invalid(
            f"input '{name:.200}' has {len(contents)} bytes in bytes_contents, which hold fewer elements than the "
            f"{count} that shape {list(shape)} takes"
        )
    elements, place = np.empty(count, object), 0
    for begin in range(0, count, STEP_ELEMENTS):
        if begin:
            yield
        part: list[bytes] = []
        for _ in range(min(STEP_ELEMENTS, count - begin)):
            if place == len(contents):
                raise _wrong_count(name, begin + len(part), shape, count)
            number, kind, start, place = _field(contents, place, name)
            _check_field(number, kind, Datatype.BYTES, name)
            part.append(bytes(contents[start:place]))
        elements[begin : begin + len(part)] = part
    if place != len(contents):
        raise _wrong_count(name, f"more than {count}", shape, count)
    return elements


def _wrong_count(name: str, found: int | str, shape: Sequence[int], count: int) -> RequestError:
    return _invalid(
        f"input '{name:.200}' has {found} elements in bytes_contents, but shape {list(shape)} takes {count}"
    )


def _unusual(name: str) -> RequestError:
    return _invalid(f"input '{name:.200}' has large contents that are not packed as usual; send raw_input_contents")


def _broken(name: str) -> RequestError:
    return _invalid(f"input '{name:.200}' has contents that are no InferTensorContents message")


def _invalid(message: str) -> RequestError:
    return RequestError(Fault.INVALID, message)
