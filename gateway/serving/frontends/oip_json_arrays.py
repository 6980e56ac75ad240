"""JSON arrays to tensors. Elements are counted first: no text grows into more objects than its shape declares."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any

import msgspec
import numpy as np

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.tensor import RANK_LIMIT, Array, Datatype, Steps, element_count
from gateway.serving.frontends.oip_json_literals import PREFIX, NonFinite

STEP_BYTES = 16_384
"""Bytes of text in one step: 0.4 ms for numbers of two bytes."""
_NO_BRACKETS = bytes(each for each in range(256) if each not in b"[],")
_TO_SPACES = bytes(0x20 if each in b"[]" else each for each in range(256))
_OPENING = re.compile(rb"[\s\[]*")
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


def array_steps(datatype: Datatype, shape: Sequence[int], raw: bytes, name: str) -> Steps[Array]:
    """Return the JSON array `raw`, flat or nested like `shape`, as an array of that shape.

    `name` is the input's, for messages; `raw` is empty if the request has no data. NaN and infinity in it are the
    objects that `literals_to_objects` makes. Raises RequestError INVALID.
    """
    if not raw:
        raise _invalid(f"input '{name}' has neither 'data' nor 'binary_data_size'")
    if datatype is Datatype.BF16:
        raise _invalid(f"input '{name}' is BF16, which JSON does not carry; send it as binary data")
    literals = raw.count(PREFIX)
    if literals and datatype.dtype.kind != "f":
        raise _invalid(f"input '{name}' holds NaN or infinity in data, which {datatype.label} cannot hold")
    count = element_count(shape, name)
    if not count:
        return _empty(datatype, raw, shape, name)
    if datatype is not Datatype.BYTES and len(raw) > STEP_BYTES:
        return (yield from _in_parts(datatype, raw, shape, literals, name)).reshape(shape)
    depth = _check_outline(raw, shape, count, text=datatype is Datatype.BYTES, name=name)
    array = _numbers(datatype, raw, depth, literals, name)
    if array.size != count:
        raise _invalid(f"input '{name}' has {array.size} elements in data, but shape {list(shape)} takes {count}")
    if depth > 1 and array.shape != tuple(shape):
        raise _invalid(f"input '{name}': data is nested as {list(array.shape)}, but shape says {list(shape)}")
    return array.reshape(shape)


def _in_parts(datatype: Datatype, raw: bytes, shape: Sequence[int], literals: int, name: str) -> Steps[Array]:
    """Read the numbers of a large array STEP_BYTES at a time.

    A flat array has no second bracket: its elements are counted while they are read. Nested arrays must have the
    brackets and commas of `shape`; without the brackets the text is a list that may be split at any comma.
    """
    count, flat, begin, end = math.prod(shape), raw, raw.find(b"[") + 1, raw.rfind(b"]")
    opening = _OPENING.match(raw)
    depth = opening.group().count(b"[") if opening else 0
    arrays = 1 if depth == 1 else _arrays(shape)
    if len(raw) < 2 * (count + arrays) - 1:  # nothing is allocated for numbers that are not there
        _check_outline(raw, shape, count, text=False, name=name)
    if depth != 1 or raw.count(b"[") > 1:
        yield
        if not depth or depth != len(shape) or raw.translate(None, _NO_BRACKETS) != _brackets(shape):
            _check_outline(raw, shape, count, text=False, name=name)
            raise _invalid(f"input '{name}': data is ragged, or nested otherwise than shape {list(shape)}")
        yield
        flat, begin, end = raw.translate(_TO_SPACES), 0, len(raw)
    array: Array = np.empty(count, datatype.dtype)
    filled = 0
    try:
        while begin <= end and filled <= count:
            yield
            comma = flat.find(b",", begin + STEP_BYTES, end)
            part = flat[begin : comma if comma >= 0 else end]
            values = _numbers(datatype, b"[" + part + b"]", 1, part.count(PREFIX) if literals else 0, name)
            if filled + len(values) <= count:
                array[filled : filled + len(values)] = values
            filled, begin = filled + len(values), begin + len(part) + 1
    except RequestError:
        _check_outline(
            raw, shape, count, text=False, name=name
        )  # the number of elements is checked before their values
        raise
    if filled != count:
        _check_outline(raw, shape, count, text=False, name=name)
        raise _invalid(f"input '{name}' has {filled} elements in data, but shape {list(shape)} takes {count}")
    return array


def _brackets(shape: Sequence[int]) -> bytes:
    """Return the brackets and commas of an array of `shape`."""
    brackets = b"[" + b"," * (shape[-1] - 1) + b"]"
    for size in reversed(shape[:-1]):
        brackets = b"[" + (brackets + b",") * (size - 1) + brackets + b"]"
    return brackets


def _empty(datatype: Datatype, raw: bytes, shape: Sequence[int], name: str) -> Array:
    """Return an array without elements for any nesting of empty arrays.

    The nesting is not built: a shape may declare millions of empty rows.
    """
    if raw.translate(None, b"[], \t\r\n"):
        raise _invalid(f"input '{name}' has elements in data, but shape {list(shape)} takes 0")
    return np.empty(shape, datatype.dtype)


def _check_outline(raw: bytes, shape: Sequence[int], count: int, *, text: bool, name: str) -> int:
    """Return the depth of the nested arrays in `raw`; count its elements and arrays before any is built."""
    opening = _OPENING.match(raw)
    depth = opening.group().count(b"[") if opening else 0
    if depth not in {1, max(1, len(shape))}:
        raise _invalid(
            f"input '{name}': data is nested {depth} deep; write one flat array, or nest it as shape {list(shape)}"
        )
    if text and depth == 1:
        quotes = raw.replace(rb"\\", b"__").replace(rb"\"", b"__").count(b'"')
        if quotes > 2 * count:
            raise _invalid(f"input '{name}' has {quotes // 2} elements in data, but shape {list(shape)} takes {count}")
        return depth
    outline = _STRING.sub(b"", raw) if text else raw
    found = outline.count(b",") + 1
    if found != count:
        raise _invalid(f"input '{name}' has {found} elements in data, but shape {list(shape)} takes {count}")
    if outline.count(b"[") > _arrays(shape):
        raise _invalid(f"input '{name}': data holds more arrays than shape {list(shape)} has")
    return depth


def packed(datatype: Datatype, shape: tuple[int, ...], raw: bytes) -> bytes:
    """Return the little-endian bytes of a small nested array. Raises RequestError or ValueError if it does not fit."""
    array = _numbers(datatype, raw, len(shape), 0, "")
    if array.shape != shape:
        raise ValueError
    return array.tobytes()


def _arrays(shape: Sequence[int]) -> int:
    """Return the number of JSON arrays that a nested array of `shape` consists of."""
    return 1 + sum(math.prod(shape[:axis]) for axis in range(1, len(shape)))


def _numbers(datatype: Datatype, raw: bytes, depth: int, literals: int, name: str) -> Array:
    try:
        nested = number_decoder(datatype, min(depth, RANK_LIMIT), literals=literals > 0).decode(raw)
    except msgspec.ValidationError as error:
        raise _invalid(f"input '{name}': data of {datatype.label}: {str(error).replace('`$', '`data')}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _invalid(f"input '{name}': data: {error}") from None
    try:
        return _array(datatype, nested, depth, literals)
    except OverflowError:
        raise _invalid(f"input '{name}': data holds a number outside the range of {datatype.label}") from None
    except ValueError:
        raise _invalid(f"input '{name}': data is ragged; rows must have equal lengths") from None


def _array(datatype: Datatype, nested: list[Any], depth: int, literals: int) -> Array:
    """Build the array. Raises OverflowError for values that the datatype cannot hold, ValueError for ragged rows."""
    if datatype is Datatype.BYTES:
        texts = np.array(nested, object)
        flat = np.empty(texts.size, object)
        flat[:] = [_utf8(element) for element in texts.ravel()]
        return flat.reshape(texts.shape)
    with np.errstate(over="ignore"):
        array = np.fromiter(nested, datatype.dtype, len(nested)) if depth == 1 else np.array(nested, datatype.dtype)
    if array.dtype.kind == "f" and array.size - np.count_nonzero(np.isfinite(array)) != literals:
        raise OverflowError
    return array


def _utf8(element: object) -> bytes:
    if not isinstance(element, str):
        raise ValueError  # noqa: TRY004  a list for which numpy found rows of unequal length
    return element.encode()


@lru_cache(maxsize=2 * len(Datatype) * (RANK_LIMIT + 1))
def number_decoder(datatype: Datatype, depth: int, *, literals: bool = False) -> msgspec.json.Decoder[list[Any]]:
    """Return a decoder that checks type and range of each element while it parses."""
    kind: Any = float | NonFinite if literals else _element(datatype)
    for _ in range(max(1, depth)):
        kind = list[kind]
    return msgspec.json.Decoder(kind)


def _element(datatype: Datatype) -> Any:
    if datatype is Datatype.BYTES:
        return str
    if datatype is Datatype.BOOL:
        return bool
    if datatype.dtype.kind == "f":
        return float
    bounds = np.iinfo(datatype.dtype)
    # msgspec's bounds are int64; above them numpy raises OverflowError.
    if datatype is Datatype.UINT64:
        return Annotated[int, msgspec.Meta(ge=0)]
    return Annotated[int, msgspec.Meta(ge=int(bounds.min), le=int(bounds.max))]


def _invalid(message: str) -> RequestError:
    return RequestError(Fault.INVALID, message)
