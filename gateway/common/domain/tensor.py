"""Tensors in the terms of the Open Inference Protocol: datatypes, raw little-endian bytes, numpy arrays.

BF16 is float32 in memory (numpy has no bfloat16) and two bytes on the wire. BYTES are object arrays of
`bytes` in memory. On the wire, a four-byte little-endian length precedes each element.
"""

from __future__ import annotations

import enum
import math
import struct
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from gateway.common.domain.errors import Fault, RequestError

Array = npt.NDArray[Any]
Tensors = Mapping[str, Array]
"""Arrays by tensor name: the inputs or outputs of a session."""

Raw = bytes | memoryview
"""Bytes of a tensor as they are sent."""

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Generator of work in steps of at most about 1 ms each; its return value is the result."""

LENGTH_PREFIX_BYTES = 4
ALIGNED_BYTES = 64
"""Alignment of large tensors: a cache line, as wide as the widest vector instructions read."""
STEP_ELEMENTS = 512
"""BYTES elements of one step: about 0.15 ms."""
STEP_BYTES = 262_144
"""Bytes that one step converts: about 0.6 ms of BF16."""
STEP_LENGTHS = 16_384
"""BYTES elements whose lengths one step adds up: about 0.7 ms."""
ELEMENT_BYTES = 56
"""Memory of a BYTES element next to its content: a pointer, the header of `bytes`, and rounding."""
RANK_LIMIT = 32
"""Most dimensions of a tensor: the limit of numpy 1.x."""
ELEMENTS_LIMIT = 2**48
"""Most elements of a tensor, with zeros counted as ones: numpy builds not even empty arrays of larger shapes."""


class Datatype(enum.Enum):
    """OIP datatype: numpy dtype in memory and bytes per element on the wire (0: variable)."""

    def __init__(self, label: str, dtype: str, wire_bytes: int) -> None:
        self.label = label
        self.dtype = np.dtype(dtype)
        self.wire_bytes = wire_bytes

    __hash__ = object.__hash__  # members are compared by identity; the name's hash costs 0.14 µs, once per request

    BOOL = ("BOOL", "?", 1)
    UINT8 = ("UINT8", "u1", 1)
    UINT16 = ("UINT16", "<u2", 2)
    UINT32 = ("UINT32", "<u4", 4)
    UINT64 = ("UINT64", "<u8", 8)
    INT8 = ("INT8", "i1", 1)
    INT16 = ("INT16", "<i2", 2)
    INT32 = ("INT32", "<i4", 4)
    INT64 = ("INT64", "<i8", 8)
    FP16 = ("FP16", "<f2", 2)
    FP32 = ("FP32", "<f4", 4)
    FP64 = ("FP64", "<f8", 8)
    BF16 = ("BF16", "=f4", 2)
    BYTES = ("BYTES", "O", 0)


CONVERTED = frozenset({Datatype.BYTES, Datatype.BF16, Datatype.BOOL})
"""Datatypes whose bytes on the wire differ from those in memory, or must be checked first."""
DATATYPES: Mapping[str, Datatype] = {datatype.label: datatype for datatype in Datatype}
"""Datatype by its OIP name."""

_LENGTH = struct.Struct("<I")
_BY_DTYPE: Mapping[np.dtype[Any], Datatype] = {d.dtype: d for d in reversed(Datatype) if d is not Datatype.BF16}


@dataclass(slots=True)
class Tensor:
    """One named tensor's content. `array` may be a read-only view of the request's own bytes."""

    datatype: Datatype
    array: Array


def datatype_named(label: str, tensor: str) -> Datatype:
    """Return the datatype called `label`. Raises RequestError INVALID that names the tensor."""
    try:
        return DATATYPES[label]
    except KeyError:
        known = ", ".join(DATATYPES)
        raise RequestError(
            Fault.INVALID,
            f"tensor '{tensor}' has unknown datatype '{label:.32}'; known datatypes are {known}",
        ) from None


def datatype_of(dtype: np.dtype[Any]) -> Datatype:
    """Return the OIP datatype of a numpy dtype (float32 → FP32, strings, objects → BYTES). Raises KeyError if none."""
    return Datatype.BYTES if dtype.kind in "OSU" else _BY_DTYPE[dtype.newbyteorder("<")]


def element_count(shape: Sequence[int], tensor: str) -> int:
    """Return the product of `shape`. Raises RequestError INVALID for a negative dimension or too many of them."""
    if len(shape) > RANK_LIMIT:
        raise RequestError(
            Fault.INVALID, f"tensor '{tensor}' has {len(shape)} dimensions; at most {RANK_LIMIT} are served"
        )
    if any(dimension < 0 for dimension in shape):
        raise RequestError(Fault.INVALID, f"tensor '{tensor}' has a negative dimension in shape {list(shape)}")
    if math.prod(dimension or 1 for dimension in shape) > ELEMENTS_LIMIT:
        raise RequestError(Fault.INVALID, f"tensor '{tensor}' has an impossibly large shape {list(shape)}")
    return math.prod(shape)


def aligned_memory(size: int) -> memoryview:
    """Return memory of `size` bytes at a multiple of ALIGNED_BYTES. It is not zeroed: that would cost a pass."""
    memory = np.empty(size + ALIGNED_BYTES, np.uint8)
    start = -memory.ctypes.data % ALIGNED_BYTES
    return memory.data[start : start + size]


def decode_raw(datatype: Datatype, shape: Sequence[int], raw: bytes | memoryview, tensor: str) -> Array:
    """Return an array of `shape` over the little-endian bytes `raw`: no copy except for BF16, BOOL and BYTES.

    Raises RequestError INVALID if the byte count does not fit datatype and shape.
    """
    count = element_count(shape, tensor)
    if datatype is Datatype.BYTES:
        return decode_bytes(raw, count, tensor).reshape(shape)
    if len(raw) != count * datatype.wire_bytes:
        raise RequestError(
            Fault.INVALID,
            f"tensor '{tensor}' has {len(raw)} bytes, but {datatype.label} of shape {list(shape)} "
            f"takes {count * datatype.wire_bytes}",
        )
    if datatype is Datatype.BF16:
        return bfloat16_to_float32(np.frombuffer(raw, "<u2")).reshape(shape)
    if datatype is Datatype.BOOL:  # a byte that is neither 0 nor 1 is not allowed inside a numpy bool
        return np.not_equal(np.frombuffer(raw, np.uint8), 0).reshape(shape)
    return np.frombuffer(raw, datatype.dtype).reshape(shape)


def encode_raw(datatype: Datatype, array: Array) -> bytes:
    """Return the tensor's bytes on the wire: little-endian, C order."""
    if datatype is Datatype.BYTES:
        return encode_bytes(array)
    if datatype is Datatype.BF16:
        return float32_to_bfloat16(array).tobytes()
    return np.ascontiguousarray(array, datatype.dtype).tobytes()


def encode_steps(datatype: Datatype, array: Array) -> Steps[list[bytes]]:
    """Encode as `encode_raw` does, in steps, to pieces of about STEP_BYTES."""
    pieces, parts, size, flat = list[bytes](), list[bytes](), 0, array.ravel()
    count = STEP_ELEMENTS if datatype is Datatype.BYTES else STEP_BYTES // datatype.wire_bytes
    for begin in range(0, len(flat), count):
        if begin:
            yield
        parts.append(encode_raw(datatype, flat[begin : begin + count]))
        size += len(parts[-1])
        if size >= STEP_BYTES:
            pieces.append(b"".join(parts))
            parts, size = [], 0
    return [*pieces, b"".join(parts)]


def size_steps(datatype: Datatype, array: Array) -> Steps[int]:
    """Return the size of the output of `encode_raw`, in steps. Each character of a str element counts as one byte."""
    if datatype is not Datatype.BYTES:
        return array.size * datatype.wire_bytes
    size, flat = array.size * LENGTH_PREFIX_BYTES, array.ravel()
    for begin in range(0, len(flat), STEP_LENGTHS):
        if begin:
            yield
        size += sum(map(len, flat[begin : begin + STEP_LENGTHS]))
    return size


def decode_bytes(raw: bytes | memoryview, count: int, tensor: str) -> Array:
    """Return an object array [count] of `bytes` from length-prefixed elements; the count must match (OIP, BYTES)."""
    return finish(bytes_steps(raw, count, tensor))


def bytes_steps(raw: bytes | memoryview, count: int, tensor: str) -> Steps[Array]:
    """Decode as `decode_bytes` does, in steps of STEP_ELEMENTS. Raises as it does."""
    view, offset = memoryview(raw), 0
    if count * LENGTH_PREFIX_BYTES > len(view):
        raise _truncated(tensor, len(view), count)
    elements = np.empty(count, object)
    for begin in range(0, count, STEP_ELEMENTS):
        if begin:
            yield
        part: list[bytes] = []
        for _ in range(min(STEP_ELEMENTS, count - begin)):
            start = offset + LENGTH_PREFIX_BYTES
            if start > len(view):
                raise _truncated(tensor, len(view), count)
            offset = start + _LENGTH.unpack_from(view, offset)[0]
            if offset > len(view):
                raise _truncated(tensor, len(view), count)
            part.append(bytes(view[start:offset]))
        elements[begin : begin + len(part)] = part
    if offset != len(view):
        raise RequestError(
            Fault.INVALID,
            f"tensor '{tensor}' has {len(view) - offset} bytes after its {count} BYTES elements; "
            "the element count must equal the shape's product",
        )
    return elements


def raw_steps(datatype: Datatype, shape: Sequence[int], raw: bytes | memoryview, tensor: str) -> Steps[Array]:
    """Decode as `decode_raw` does, in steps. Raises as it does."""
    count = element_count(shape, tensor)
    if datatype is Datatype.BYTES:
        return (yield from bytes_steps(raw, count, tensor)).reshape(shape)
    if datatype not in CONVERTED or len(raw) != count * datatype.wire_bytes or len(raw) <= STEP_BYTES:
        return decode_raw(datatype, shape, raw, tensor)
    array, step = np.empty(count, datatype.dtype), STEP_BYTES // datatype.wire_bytes
    for begin in range(0, count, step):
        yield
        end = min(begin + step, count)
        part = memoryview(raw)[begin * datatype.wire_bytes : end * datatype.wire_bytes]
        array[begin:end] = decode_raw(datatype, (end - begin,), part, tensor)
    return array.reshape(shape)


def finish(steps: Steps[T]) -> T:
    """Run `steps` to their end and return their value."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            value: T = done.value
            return value


def decoded_bytes(datatype: Datatype, count: int) -> int:
    """Return the memory of an array of `count` elements, without the content of BYTES."""
    return count * (ELEMENT_BYTES if datatype is Datatype.BYTES else datatype.dtype.itemsize)


def encode_bytes(array: Array) -> bytes:
    """Return length-prefixed elements in C order; str elements are encoded as UTF-8."""
    parts: list[bytes] = []
    length = struct.Struct("<I").pack
    for element in array.ravel().tolist():
        content = element.encode() if isinstance(element, str) else bytes(element)
        parts += (length(len(content)), content)
    return b"".join(parts)


def bfloat16_to_float32(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """Convert exactly: bfloat16 is the upper half of a float32."""
    return (bits.astype("<u4") << 16).view("<f4")


def float32_to_bfloat16(array: Array) -> npt.NDArray[np.uint16]:
    """Convert with rounding to nearest, ties to even; NaN stays NaN."""
    values = np.ascontiguousarray(array, "<f4")
    bits = values.view("<u4")
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    quiet = (bits >> 16) | 0x40
    return np.where(np.isnan(values), quiet, rounded).astype("<u2")


def _truncated(tensor: str, size: int, count: int) -> RequestError:
    return RequestError(
        Fault.INVALID, f"tensor '{tensor}' is truncated: {size} bytes do not hold its {count} BYTES elements"
    )
