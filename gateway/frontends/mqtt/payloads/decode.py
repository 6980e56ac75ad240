"""Payloads to samples and tensors, by content type. Pure functions.

The content is never guessed, and JSON must hold numbers only.

Limits against hostile payloads: msgspec and cbor2 bound their nesting, and never allocate by a length that the payload
only claims. The type of each returned value is checked, which refuses CBOR tags (dates, big decimals, regular
expressions).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from typing import Any, Final

import msgspec
import numpy as np

from gateway.domain.errors import Fault, RequestError
from gateway.domain.manifest import ROWS, TensorSpec
from gateway.domain.tensor import DATATYPES, RANK_LIMIT, Array, Datatype, Tensor, decode_raw
from gateway.frontends.mqtt.windows.samples import Rows

CBOR_DEPTH = 16
TYPES_REMEMBERED, TYPE_REMEMBERED_CHARS = 256, 256
FLOAT32_MAX: Final = float(np.finfo(np.float32).max)
DOCUMENTS = frozenset({"application/json", "application/cbor", "application/x-msgpack", "application/msgpack"})
IMAGES = frozenset({"image/jpeg", "image/png"})
RAW = "application/octet-stream"
SHARED_VALUE_TAGS = (28, 29)
"""CBOR tags of shared references: they form cycles, and trees that are exponentially larger than the payload."""
_NUMPY_NAMES = {
    str(kind.dtype.newbyteorder("=")): kind for kind in Datatype if kind.wire_bytes and kind is not Datatype.BF16
}


@dataclass(frozen=True, slots=True)
class ContentType:
    """Media type in lower case, and its parameters."""

    media: str
    parameters: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Layout:
    """Layout of raw bytes: little-endian elements of `datatype` in `shape`. An empty `shape` is the model's."""

    datatype: Datatype
    shape: tuple[int, ...] = ()


def read_content_type(text: str) -> ContentType:
    """Split `media/type; name=value`. Results for short texts are cached."""
    return _remembered_type(text) if len(text) <= TYPE_REMEMBERED_CHARS else _split_type(text)


def _split_type(text: str) -> ContentType:
    media, *rest = text.split(";")
    pairs = (part.partition("=") for part in rest)
    return ContentType(media.strip().lower(), {name.strip().lower(): value.strip(' "') for name, _, value in pairs})


_remembered_type = lru_cache(maxsize=TYPES_REMEMBERED)(_split_type)


def read_layout(content: ContentType, dtype: str, shape: tuple[int, ...], spec: TensorSpec) -> Layout:
    """Return datatype and shape of raw bytes.

    The parameters of the content type have precedence over the route's, and those over the input's datatype. Raises
    RequestError INVALID.
    """
    named = content.parameters.get("dtype") or dtype
    datatype = (DATATYPES.get(named.upper()) or _NUMPY_NAMES.get(named.lower())) if named else spec.datatype
    if datatype is None or datatype is Datatype.BYTES:
        raise _invalid(f"{RAW} needs the dtype of a number (FP32, INT16, …), not {named or 'BYTES':.32}")
    said = content.parameters.get("shape")
    try:
        sides = tuple(int(side) for side in said.split(",")) if said else shape
    except ValueError:
        sides = (-1,)
    if any(side < 1 for side in sides):
        raise _invalid(f"shape={said:.64} of the content type must be positive sizes with commas between, as 1,28,28")
    return Layout(datatype, sides)


def read_document(media: str, payload: bytes) -> Any:
    """Parse a JSON, CBOR or MessagePack payload. Raises RequestError INVALID if it does not parse."""
    try:
        if media == "application/json":
            return msgspec.json.decode(payload)
        if media == "application/cbor":
            return _read_cbor(payload)
        return msgspec.msgpack.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _invalid(f"the payload is not {media}: {error}") from None


def samples(document: Any, channels: Sequence[str], count: int) -> Rows:
    """Return rows [n, count] of a document.

    The document is an array in channel order, an array of such arrays, or an object by channel name. `channels` may be
    empty if the model names none. Raises RequestError INVALID for anything else, and for NaN, infinities and values
    that float32 cannot hold.
    """
    if isinstance(document, Mapping):
        return _finite_rows([_by_name(document, channels)])
    if not isinstance(document, list) or not document:
        raise _invalid("a sample is an array in channel order, an array of such arrays, or an object by channel name")
    rows = document if isinstance(document[0], list) else [document]
    for row in rows:
        if not isinstance(row, list) or len(row) != count:
            found = len(row) if isinstance(row, list) else f"a {type(row).__name__}"
            raise _invalid(f"a sample has {count} channels{_listed(channels)}, but one of the payload's has {found}")
    return _finite_rows(rows)


def raw_samples(payload: bytes, layout: Layout, count: int) -> Rows:
    """Return rows [n, count] of little-endian numbers.

    Raises RequestError INVALID if the size does not match or a number is not finite.
    """
    row_bytes = layout.datatype.wire_bytes * count
    if not payload or len(payload) % row_bytes:
        raise _invalid(
            f"{len(payload)} bytes are no whole samples of {count} {layout.datatype.label} ({row_bytes} bytes)"
        )
    array = decode_raw(layout.datatype, (len(payload) // row_bytes, count), payload, "sample")
    return _to_float32(array.astype(np.float64))


def document_tensor(document: Any, spec: TensorSpec) -> Tensor:
    """Return a tensor for `spec` from nested arrays of numbers.

    Raises RequestError INVALID for other contents, ragged arrays, and numbers that are not finite or outside the
    datatype.
    """
    if spec.datatype is Datatype.BYTES:
        raise _invalid(f"input '{spec.name}' takes BYTES; send an inference request on the infer topic")
    flat, shape = _flatten(document)
    return Tensor(spec.datatype, _reshape(_cast(flat, spec), shape, spec))


def raw_tensor(payload: bytes, layout: Layout, spec: TensorSpec) -> Tensor:
    """Return a tensor for `spec` that is a view of the payload.

    Raises RequestError INVALID if the size does not match.
    """
    array = decode_raw(layout.datatype, layout.shape or _whole_shape(spec), payload, spec.name)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise _invalid(f"input '{spec.name}' holds NaN or infinity")
    return Tensor(layout.datatype, _reshape(array, array.shape, spec))


def image_tensor(payload: bytes, media: str, spec: TensorSpec) -> Tensor:
    """Return a BYTES tensor [1] with one encoded image, which the engine decodes as the manifest declares.

    Raises RequestError INVALID.
    """
    if spec.preprocess is None:
        raise _invalid(f"input '{spec.name}' takes numbers, not {media}; its manifest declares no preprocess")
    if media.removeprefix("image/") not in spec.preprocess.decode:
        known = ", ".join(f"image/{name}" for name in spec.preprocess.decode)
        raise _invalid(f"input '{spec.name}' takes {known}, not {media}")
    array = np.empty(1, object)
    array[0] = payload
    return Tensor(Datatype.BYTES, array)


def window_tensor(rows: Rows, spec: TensorSpec) -> Tensor:
    """Return a window [size_rows, channels] in the form of `spec`.

    A batch dimension is added if `spec` has one; channels come first if its layout is NCL.
    """
    array: Array = rows.T if spec.layout == "NCL" else rows
    if len(spec.shape) > array.ndim:
        array = array.reshape((1,) * (len(spec.shape) - array.ndim) + array.shape)
    return Tensor(spec.datatype, np.ascontiguousarray(array, spec.datatype.dtype))


def _read_cbor(payload: bytes) -> Any:
    import cbor2

    stream = BytesIO(payload)
    try:
        refused = dict.fromkeys(SHARED_VALUE_TAGS, _refuse_tag)
        tree = cbor2.CBORDecoder(stream, max_depth=CBOR_DEPTH, semantic_decoders=refused).decode()
    except (cbor2.CBORError, OverflowError, MemoryError) as error:
        raise _invalid(f"the payload is not application/cbor: {error}") from None
    if stream.tell() != len(payload):
        raise _invalid(f"the payload has {len(payload) - stream.tell()} bytes after its CBOR item")
    return tree


def _refuse_tag(*_: Any) -> Any:
    raise ValueError("shared references are not taken")


def _by_name(document: Mapping[Any, Any], channels: Sequence[str]) -> list[Any]:
    if not channels:
        raise _invalid("the model names no channels; send an array in channel order")
    missing = [channel for channel in channels if channel not in document]
    if missing:
        raise _invalid(f"the sample lacks {', '.join(missing):.150}; it must name every channel{_listed(channels)}")
    return [document[channel] for channel in channels]


def _finite_rows(rows: Sequence[Sequence[Any]]) -> Rows:
    for row in rows:
        if not set(map(type, row)) <= {int, float}:
            raise _invalid("a sample holds something that is no number")
    try:
        return _to_float32(np.array(rows, np.float64))
    except OverflowError:
        raise _invalid("a sample holds a number outside the range of FP32") from None


def _to_float32(values: Array) -> Rows:
    # A comparison with NaN is false, so this refuses NaN, infinities and values that float32 cannot hold.
    if not (np.abs(values) <= FLOAT32_MAX).all():
        raise _invalid("a sample holds NaN, infinity or a number outside the range of FP32")
    return values.astype(np.float32)


def _flatten(document: Any) -> tuple[list[Any], tuple[int, ...]]:
    """Return the numbers of nested arrays in C order, and their shape."""
    shape: list[int] = []
    level: list[Any] = [document]
    while level and isinstance(level[0], list) and len(shape) < RANK_LIMIT:
        width = len(level[0])
        if not all(isinstance(item, list) and len(item) == width for item in level):
            raise _invalid("the payload's arrays are ragged; rows must have equal lengths")
        shape.append(width)
        level = [element for item in level for element in item]
    if not level or not set(map(type, level)) <= {int, float, bool}:
        raise _invalid("the payload must be nested arrays of numbers")
    return level, tuple(shape)


def _cast(flat: list[Any], spec: TensorSpec) -> Array:
    """Return `flat` in the datatype of `spec`. Raises RequestError INVALID for values that would change."""
    kind = spec.datatype.dtype.kind
    wanted: set[type] = {int, float} if kind == "f" else {bool} if kind == "b" else {int}
    if not set(map(type, flat)) <= wanted:
        raise _invalid(f"input '{spec.name}' takes {spec.datatype.label}; the payload holds something else")
    try:
        with np.errstate(over="ignore"):
            array = np.array(flat, spec.datatype.dtype)
    except OverflowError:
        raise _invalid(f"the payload holds a number outside the range of {spec.datatype.label}") from None
    if kind == "f" and not np.isfinite(array).all():
        raise _invalid(f"the payload holds NaN, infinity or a number outside the range of {spec.datatype.label}")
    return array


def _whole_shape(spec: TensorSpec) -> tuple[int, ...]:
    """Return the input's shape with one row. Other open dimensions are 1, too."""
    return tuple(1 if side == ROWS else side for side in spec.shape)


def _reshape(array: Array, shape: tuple[int, ...], spec: TensorSpec) -> Array:
    """Return `array` in the rank of `spec`: its shape has that rank, lacks the row dimension, or is one flat row."""
    if len(shape) == len(spec.shape):
        return array.reshape(shape)
    whole = _whole_shape(spec)
    if len(shape) == len(spec.shape) - 1 and spec.shape[0] == ROWS:
        return array.reshape((1, *shape))
    if array.size == math.prod(whole):
        return array.reshape(whole)
    raise _invalid(
        f"input '{spec.name}' takes shape {list(spec.shape)}, which {list(shape)} of the payload does not fit"
    )


def _listed(channels: Sequence[str]) -> str:
    return f" ({', '.join(channels)})"[:150] if channels else ""


def _invalid(message: str) -> RequestError:
    return RequestError(Fault.INVALID, message)
