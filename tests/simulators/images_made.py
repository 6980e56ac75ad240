"""Encoded images for tests, and a model that accepts them."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from gateway.domain.infer import InferRequest
from gateway.domain.manifest import ModelManifest, Preprocess, TensorSpec
from gateway.domain.tensor import Array, Datatype, Tensor
from tests.simulators.engine_rig import manifest

GRAY_2X2 = TensorSpec(
    "x", Datatype.FP32, (-1, 1, 2, 2), preprocess=Preprocess(("png", "jpeg"), color="gray", resize=(2, 2))
)


def encoded(pixels: Array, form: str = "png", **options: object) -> bytes:
    """Encode `pixels` [height, width] or [height, width, 3], uint8 or uint16. Return the file's content."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, form, **options)
    return file.getvalue()


def elements(*contents: bytes) -> Array:
    """Return the array [n] of a BYTES tensor."""
    array = np.empty(len(contents), object)
    array[:] = contents
    return array


def image_manifest(variants: tuple[str, ...] = ("a",)) -> ModelManifest:
    """Return a model that copies gray images of 2 by 2 pixels."""
    return manifest(variants=variants, inputs=(GRAY_2X2,), outputs=(TensorSpec("y", Datatype.FP32, (-1, 1, 2, 2)),))


def image_request(count: int, side_px: int = 64, **changes: object) -> InferRequest:
    """Return a request with `count` gray images."""
    content = encoded(np.full((side_px, side_px), 7, np.uint8))
    return InferRequest("m", {"x": Tensor(Datatype.BYTES, elements(*[content] * count))}, **changes)  # type: ignore[arg-type]
