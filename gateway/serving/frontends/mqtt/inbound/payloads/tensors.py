"""Documents, rows and windows as the tensors that a model takes. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from gateway.common.domain.manifest import ROWS, TensorSpec
from gateway.common.domain.tensor import RANK_LIMIT, Array, Datatype, Tensor
from gateway.serving.frontends.mqtt.inbound.payloads.content import invalid
from gateway.serving.frontends.mqtt.windows.samples import Rows

FLOAT32_MAX: Final = float(np.finfo(np.float32).max)


def samples(document: Any, channels: Sequence[str], count: int) -> Rows:
    """Return rows [n, count] of a document.

    The document is an array in channel order, an object by channel name, or an array of such rows. `channels` may be
    empty if the model names none. Raises RequestError INVALID for anything else, and for NaN, infinities and values
    that float32 cannot hold.
    """
    rows = document if isinstance(document, list) and document and isinstance(document[0], dict | list) else [document]
    if isinstance(rows[0], dict):
        rows = [_by_name(row, channels) for row in rows]
    elif not isinstance(document, list) or not document:
        raise invalid("a sample is an array in channel order, an object by channel name, or an array of such rows")
    for row in rows:
        if not isinstance(row, list) or len(row) != count:
            found = len(row) if isinstance(row, list) else f"a {type(row).__name__}"
            raise invalid(f"a sample has {count} channels{_listed(channels)}, but one of the payload's has {found}")
    for row in rows:
        if not set(map(type, row)) <= {int, float}:
            raise invalid(f"a sample holds something that is no number; {_REMEDY} to convert it")
    try:
        return to_float32(np.array(rows, np.float64))
    except OverflowError:
        raise invalid("a sample holds a number outside the range of FP32") from None


def document_tensor(document: Any, spec: TensorSpec) -> Tensor:
    """Return a tensor for `spec` from nested arrays of numbers.

    Raises RequestError INVALID for other contents, ragged arrays, and numbers that are not finite or outside the
    datatype.
    """
    if spec.datatype is Datatype.BYTES:
        raise invalid(f"input '{spec.name}' takes BYTES; send an inference request on the infer topic")
    flat, shape = _flatten(document)
    return Tensor(spec.datatype, reshape(_cast(flat, spec), shape, spec))


def row_tensor(rows: Array, spec: TensorSpec) -> Tensor:
    """Return a tensor for `spec` from rows [n, channels] of numbers in the range of FP32.

    Raises RequestError INVALID for values that the datatype would change, and for rows of another length.
    """
    kind = spec.datatype.dtype.kind
    if kind == "O":
        raise invalid(f"input '{spec.name}' takes BYTES; channels of a route are numbers")
    if kind == "f" and spec.datatype is not Datatype.FP16:
        return Tensor(spec.datatype, reshape(rows.astype(spec.datatype.dtype), rows.shape, spec))
    with np.errstate(over="ignore", invalid="ignore"):
        array = rows.astype(spec.datatype.dtype)
    if not (np.isfinite(array) if kind == "f" else array == rows).all():
        raise invalid(f"input '{spec.name}' takes {spec.datatype.label}, but a channel holds another number")
    return Tensor(spec.datatype, reshape(array, array.shape, spec))


def window_tensor(rows: Rows, spec: TensorSpec) -> Tensor:
    """Return a window [size_rows, channels] in the form of `spec`.

    A batch dimension is added if `spec` has one; channels come first if its layout is NCL.
    """
    array: Array = rows.T if spec.layout == "NCL" else rows
    if len(spec.shape) > array.ndim:
        array = array.reshape((1,) * (len(spec.shape) - array.ndim) + array.shape)
    return Tensor(spec.datatype, np.ascontiguousarray(array, spec.datatype.dtype))


def to_float32(values: Array) -> Rows:
    """Return `values` as float32. Raises RequestError INVALID for NaN, infinities and values out of its range."""
    # A comparison with NaN is false, so this refuses NaN, infinities and values that float32 cannot hold.
    if not (np.abs(values) <= FLOAT32_MAX).all():
        raise invalid("a sample holds NaN, infinity or a number outside the range of FP32")
    return values.astype(np.float32)


def whole_shape(spec: TensorSpec) -> tuple[int, ...]:
    """Return the input's shape with one row. Other open dimensions are 1, too."""
    return tuple(1 if side == ROWS else side for side in spec.shape)


def reshape(array: Array, shape: tuple[int, ...], spec: TensorSpec) -> Array:
    """Return `array` in the rank of `spec`: its shape has that rank, lacks the row dimension, or is one flat row."""
    if len(shape) == len(spec.shape):
        return array.reshape(shape)
    whole = whole_shape(spec)
    if len(shape) == len(spec.shape) - 1 and spec.shape[0] == ROWS:
        return array.reshape((1, *shape))
    if array.size == math.prod(whole):
        return array.reshape(whole)
    raise invalid(
        f"input '{spec.name}' takes shape {list(spec.shape)}, which {list(shape)} of the payload does not fit"
    )


def _by_name(row: Any, channels: Sequence[str]) -> list[Any]:
    if not channels:
        raise invalid(f"the model names no channels; {_REMEDY}, or send an array in channel order")
    if not isinstance(row, dict):
        raise invalid(f"the payload's array holds objects and a {type(row).__name__}; send rows of one form")
    missing = [channel for channel in channels if channel not in row]
    if missing:
        raise invalid(
            f"the sample lacks {', '.join(missing):.150}; it must name every channel{_listed(channels)}, or {_REMEDY}"
        )
    return [row[channel] for channel in channels]


def _flatten(document: Any) -> tuple[list[Any], tuple[int, ...]]:
    """Return the numbers of nested arrays in C order, and their shape."""
    shape: list[int] = []
    level: list[Any] = [document]
    while level and isinstance(level[0], list) and len(shape) < RANK_LIMIT:
        width = len(level[0])
        if not all(isinstance(item, list) and len(item) == width for item in level):
            raise invalid("the payload's arrays are ragged; rows must have equal lengths")
        shape.append(width)
        level = [element for item in level for element in item]
    if not level or not set(map(type, level)) <= {int, float, bool}:
        raise invalid(f"the payload must be nested arrays of numbers; for objects and texts {_REMEDY}")
    return level, tuple(shape)


def _cast(flat: list[Any], spec: TensorSpec) -> Array:
    """Return `flat` in the datatype of `spec`. Raises RequestError INVALID for values that would change."""
    kind = spec.datatype.dtype.kind
    wanted: set[type] = {int, float} if kind == "f" else {bool} if kind == "b" else {int}
    if not set(map(type, flat)) <= wanted:
        raise invalid(f"input '{spec.name}' takes {spec.datatype.label}; the payload holds something else")
    try:
        with np.errstate(over="ignore"):
            array = np.array(flat, spec.datatype.dtype)
    except OverflowError:
        raise invalid(f"the payload holds a number outside the range of {spec.datatype.label}") from None
    if kind == "f" and not np.isfinite(array).all():
        raise invalid(f"the payload holds NaN, infinity or a number outside the range of {spec.datatype.label}")
    return array


def _listed(channels: Sequence[str]) -> str:
    return f" ({', '.join(channels)})"[:150] if channels else ""


_REMEDY = "name the route's values with [[mqtt.route.channel]]"
