"""Encoded images: the engine decodes them as the manifest declares."""

from __future__ import annotations

import numpy as np

from gateway.domain.manifest import TensorSpec
from gateway.domain.tensor import Datatype, Tensor
from gateway.frontends.mqtt.payloads.errors import invalid

IMAGES = frozenset({"image/jpeg", "image/png"})


def image_tensor(payload: bytes, media: str, spec: TensorSpec) -> Tensor:
    """Return a BYTES tensor [1] with one encoded image.

    Raises RequestError INVALID if the input takes no such image.
    """
    if spec.preprocess is None:
        raise invalid(f"input '{spec.name}' takes numbers, not {media}; its manifest declares no preprocess")
    if media.removeprefix("image/") not in spec.preprocess.decode:
        known = ", ".join(f"image/{name}" for name in spec.preprocess.decode)
        raise invalid(f"input '{spec.name}' takes {known}, not {media}")
    array = np.empty(1, object)
    array[0] = payload
    return Tensor(Datatype.BYTES, array)
