"""Encoded images for tests, and a model that accepts them."""

from __future__ import annotations

import io
import struct

import cv2
import numpy as np
from PIL import Image, ImageOps

from gateway.common.domain.manifest import ModelManifest, Preprocess, TensorSpec
from gateway.common.domain.tensor import Array, Datatype, Tensor
from gateway.serving.domain.infer import InferRequest
from tests.simulators.engine_rig import manifest

ORIENTATION = 0x0112
"""EXIF's tag of the orientation."""
GRAY_2X2 = TensorSpec(
    "x", Datatype.FP32, (-1, 1, 2, 2), preprocess=Preprocess(("png", "jpeg"), color="gray", resize=(2, 2))
)


def encoded(pixels: Array, form: str = "png", **options: object) -> bytes:
    """Encode `pixels` [height, width] or [height, width, 3], uint8 or uint16. Return the file's content."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, form, **options)
    return file.getvalue()


def exif(*tags: tuple[int, int], thumbnail: int = 0, order: str = "<") -> bytes:
    """Return EXIF data with `tags` of one short number, and the orientation of a thumbnail in a second directory."""

    def directory(tags: tuple[tuple[int, int], ...], following: int) -> bytes:
        entries = b"".join(struct.pack(f"{order}HHIHH", tag, 3, 1, value, 0) for tag, value in tags)
        return struct.pack(f"{order}H", len(tags)) + entries + struct.pack(f"{order}I", following)

    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}I", 8)
    first = directory(tags, 8 + 6 + 12 * len(tags) if thumbnail else 0)
    return b"Exif\0\0" + head + first + (directory(((ORIENTATION, thumbnail),), 0) if thumbnail else b"")


def stored_turned(pixels: Array, orientation: int, form: str = "png", **options: object) -> bytes:
    """Encode an image whose viewers show `pixels`: they are stored in another orientation, which its EXIF data tell."""
    turn = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}.get(orientation)  # Pillow's transpositions, inverted
    image = Image.fromarray(pixels) if turn is None else Image.fromarray(pixels).transpose(Image.Transpose(turn))
    file = io.BytesIO()
    image.save(file, form, exif=exif((ORIENTATION, orientation)), **options)
    assert np.asarray(ImageOps.exif_transpose(Image.open(file))).shape == pixels.shape
    return file.getvalue()


def drawn_jpeg(width: int, height: int) -> bytes:
    """Return a JPEG with noise on all scales and discs; it has 0.2 to 0.3 bytes per pixel, as photographs have."""
    generator = np.random.default_rng(0)
    pixels, side = np.full((height, width, 3), 115, np.float32), 4
    while side < width:
        noise = generator.normal(0, 40 * (4 / side) ** 0.5, (max(2, height * side // width), side, 3))
        noise = noise.mean(axis=2, keepdims=True) * 1.2 + noise * 0.3  # mostly grey, as photographs are
        pixels += cv2.resize(noise.astype(np.float32), (width, height), interpolation=cv2.INTER_CUBIC)
        side *= 2
    for _ in range(40):
        centre, radius = generator.integers(0, (width, height)).tolist(), int(generator.integers(8, width // 8))
        cv2.circle(pixels, centre, radius, generator.integers(0, 255, 3).tolist(), -1)
    pixels += generator.normal(0, 6, pixels.shape)
    return encoded(np.clip(pixels, 0, 255).astype(np.uint8), "jpeg", quality=90)


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
