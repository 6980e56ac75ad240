"""Content that is no document: raw numbers (application/octet-stream), and encoded images and recordings.

The engine decodes images and recordings as the manifest declares.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gateway.common.domain.manifest import TensorSpec
from gateway.common.domain.tensor import DATATYPES, Datatype, Tensor, decode_raw
from gateway.serving.frontends.mqtt.inbound.payloads.content import ContentType, invalid
from gateway.serving.frontends.mqtt.inbound.payloads.tensors import reshape, to_float32, whole_shape
from gateway.serving.frontends.mqtt.settings.route import BYTE_ORDERS, MqttRoute
from gateway.serving.frontends.mqtt.windows.samples import Rows

RAW = "application/octet-stream"
_NUMPY_NAMES = {
    str(kind.dtype.newbyteorder("=")): kind for kind in Datatype if kind.wire_bytes and kind is not Datatype.BF16
}


@dataclass(frozen=True, slots=True)
class Layout:
    """Layout of raw bytes: elements of `datatype` in `shape`. An empty `shape` is the model's."""

    datatype: Datatype
    shape: tuple[int, ...] = ()
    big_endian: bool = False


def read_layout(content: ContentType, route: MqttRoute, spec: TensorSpec) -> Layout:
    """Return datatype, shape and byte order of raw bytes.

    The parameters of the content type have precedence over the route's, and those over the input's datatype. Raises
    RequestError INVALID.
    """
    named = content.parameters.get("dtype") or route.dtype
    datatype = (DATATYPES.get(named.upper()) or _NUMPY_NAMES.get(named.lower())) if named else spec.datatype
    if datatype is None or datatype is Datatype.BYTES:
        raise invalid(f"{RAW} needs the dtype of a number (FP32, INT16, …), not {named or 'BYTES':.32}")
    order = content.parameters.get("byteorder", route.byte_order)
    if order not in BYTE_ORDERS:
        raise invalid(f"byteorder={order:.32} of the content type must be little or big")
    given = content.parameters.get("shape")
    try:
        sides = tuple(int(side) for side in given.split(",")) if given else route.shape
    except ValueError:
        sides = (-1,)
    if any(side < 1 for side in sides):
        raise invalid(f"shape={given:.64} of the content type must be positive sizes with commas between, as 1,28,28")
    return Layout(datatype, sides, order == "big")


def raw_samples(payload: bytes, layout: Layout, count: int) -> Rows:
    """Return rows [n, count] of raw numbers.

    Raises RequestError INVALID if the size does not match or a number is not finite.
    """
    row_bytes = layout.datatype.wire_bytes * count
    if not payload or len(payload) % row_bytes:
        raise invalid(
            f"{len(payload)} bytes are no whole samples of {count} {layout.datatype.label} ({row_bytes} bytes)"
        )
    raw = _little_endian(payload, layout)
    array = decode_raw(layout.datatype, (len(payload) // row_bytes, count), raw, "sample")
    with np.errstate(invalid="ignore"):  # signalling NaN
        return to_float32(array.astype(np.float64))


def raw_tensor(payload: bytes, layout: Layout, spec: TensorSpec) -> Tensor:
    """Return a tensor for `spec` that is a view of the payload, if the payload is little-endian.

    Raises RequestError INVALID if the size does not match.
    """
    raw = _little_endian(payload, layout)
    array = decode_raw(layout.datatype, layout.shape or whole_shape(spec), raw, spec.name)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise invalid(f"input '{spec.name}' holds NaN or infinity")
    return Tensor(layout.datatype, reshape(array, array.shape, spec))


def _little_endian(payload: bytes, layout: Layout) -> bytes:
    """Return the payload with little-endian elements; a size that does not match is refused later."""
    size = layout.datatype.wire_bytes
    if not layout.big_endian or size == 1 or len(payload) % size:
        return payload
    return np.frombuffer(payload, f">u{size}").astype(f"<u{size}").tobytes()


ENCODED = {"image/jpeg": "jpeg", "image/png": "png", "audio/wav": "wav"}
"""Media types, with the names that manifests give to these formats."""


def encoded_tensor(payload: bytes, media: str, spec: TensorSpec) -> Tensor:
    """Return a BYTES tensor [1] with one encoded image or recording.

    Raises RequestError INVALID if the input takes no such content.
    """
    declared = spec.preprocess or spec.audio
    if declared is None:
        raise invalid(f"input '{spec.name}' takes numbers, not {media}; its manifest declares no preprocess or audio")
    if ENCODED[media] not in declared.decode:
        known = ", ".join(name for name, form in ENCODED.items() if form in declared.decode)
        raise invalid(f"input '{spec.name}' takes {known or ', '.join(declared.decode)}, not {media}")
    array = np.empty(1, object)
    array[0] = payload
    return Tensor(Datatype.BYTES, array)
