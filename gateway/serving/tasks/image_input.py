"""Size of the image that a model takes, and the frame of results whose sender gave none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest import ROWS, ModelManifest, TensorSpec
from gateway.common.domain.tensor import Array, Tensors
from gateway.serving.tasks.frame import Frame

UNKNOWN_SIDE_PX = 16_384
"""Side of the frame of an input whose size nothing tells: the largest image that a manifest may declare."""
CHANNELS = (1, 3, 4)


@dataclass(frozen=True, slots=True)
class ImageInput:
    """Image input of a model. `size` is (width, height) in pixels, None if requests choose it.

    `is_open`: it is that of decoded images, and tensors may have another one.
    """

    size: tuple[int, int] | None
    is_open: bool = False

    def size_in(self, frame: Frame | None) -> tuple[float, float] | None:
        """Return the width and height of the input in pixels, None if neither manifest nor frame tells."""
        if self.size is not None or frame is None:
            return self.size
        return frame.width * frame.scale_x + 2 * frame.left, frame.height * frame.scale_y + 2 * frame.top

    def pixels(self, points: Array, frame: Frame | None) -> Array:
        """Return points [..., 2] in 0..1 of the input as pixels. Raises RequestError UNSUPPORTED without a size."""
        size = self.size_in(frame)
        if size is None:
            raise RequestError(
                Fault.UNSUPPORTED,
                "the model's coordinates are normalised, and the size of its input is open: send an encoded image, or "
                "declare the size in the manifest",
            )
        return np.asarray(points * np.asarray(size, np.float64))

    def frame(self, frame: Frame | None) -> Frame:
        """Return `frame`. Without one, return the frame in which the input itself is the original."""
        width, height = (not self.is_open and self.size) or (UNKNOWN_SIDE_PX, UNKNOWN_SIDE_PX)
        return frame or Frame(width, height)


def image_input(manifest: ModelManifest) -> ImageInput:
    """Return the image input: the first input that decodes images, else the first with the shape of an image."""
    spec = _image(manifest)
    return ImageInput(_size(spec), ROWS in spec.shape[-3:]) if spec else ImageInput(None)


def own_frame(manifest: ModelManifest, inputs: Tensors) -> Frame | None:
    """Return the frame in which the image of `inputs` is the original; None if the model takes no images."""
    spec = _image(manifest)
    if spec is None or inputs[spec.name].ndim < 3:
        return None
    height, width = _sides(inputs[spec.name].shape[-3:], spec.layout)
    return Frame(width, height)


def _image(manifest: ModelManifest) -> TensorSpec | None:
    decoded = (spec for spec in manifest.inputs if spec.preprocess)
    return next(decoded, next((spec for spec in manifest.inputs if len(spec.shape) in {3, 4}), None))


def _size(spec: TensorSpec) -> tuple[int, int] | None:
    if spec.preprocess and spec.preprocess.resize:
        height, width = spec.preprocess.resize
        return width, height
    height, width = _sides(spec.shape[-3:], spec.layout)
    return None if ROWS in {height, width} else (width, height)


def _sides(shape: Sequence[int], layout: str) -> tuple[int, int]:
    """Return height and width of a shape of three dimensions; without a layout, channels are where 1, 3 or 4 is."""
    channels_last = layout == "NHWC" or (not layout and shape[0] not in CHANNELS and shape[2] in CHANNELS)
    return (shape[0], shape[1]) if channels_last else (shape[1], shape[2])
