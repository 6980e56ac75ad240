"""Encoded images and recordings: the engine decodes them as the manifest declares."""

from __future__ import annotations

import numpy as np

from gateway.domain.manifest import TensorSpec
from gateway.domain.tensor import Datatype, Tensor
from gateway.frontends.mqtt.inbound.payloads.errors import invalid

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
