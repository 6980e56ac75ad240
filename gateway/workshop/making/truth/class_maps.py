"""Annotations of semantic segmentation: a PNG file for each image whose pixels are numbers of classes."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.tensor import Array
from gateway.serving.engine.orientation import orientation_of, upright
from gateway.serving.engine.settings import EngineSettings
from gateway.workshop.making.bounded_files import read_bounded
from gateway.workshop.making.metrics.class_iou import NO_CLASS, NOT_JUDGED, ClassRuns

VOID = 255
"""Number of pixels that are not judged, as in PASCAL VOC and Cityscapes."""
_MODES = frozenset({"1", "L", "P", "I", "I;16"})


def read_class_map(file: Path, classes: int, size: tuple[int, int], orientation: str) -> ClassRuns:
    """Return the classes of an image of `size` (height, width) that is read in an `orientation`, as the mask is.

    `classes` is the model's number of them (0: not known). For one class, 0 is none, and every other number is it.
    Raises ConfigurationError.
    """
    try:
        numbers = _numbers(read_bounded(file, EngineSettings().image_bytes), size, orientation)
    except (OSError, ValueError, SyntaxError) as error:
        raise ConfigurationError(f"is no mask of classes: {error}", file=str(file)) from error
    return ClassRuns.of(_judged(numbers, classes, file))


def _numbers(content: bytes, size: tuple[int, int], orientation: str) -> Array:
    """Return the numbers of the pixels. Raises ValueError, OSError, SyntaxError."""
    from PIL import Image

    image: Image.Image = Image.open(io.BytesIO(content), formats=("PNG",))
    image.load()  # EXIF data may follow the pixels
    if orientation == "upright":
        image = upright(image, orientation_of(image))
    if image.size != size[::-1]:
        raise ValueError(f"it has {image.size[0]} x {image.size[1]} pixels, its image {size[1]} x {size[0]}")
    if image.mode not in _MODES:
        problem = f"its pixels are colours ({image.mode}), not numbers of classes"
        raise ValueError(f"{problem}; write a PNG of one channel, or with a palette")
    return np.asarray(image).astype(np.int64)


def _judged(numbers: Array, classes: int, file: Path) -> Array:
    if classes == 1:
        return np.where(numbers > 0, 0, NO_CLASS)
    largest = int(numbers[numbers != VOID].max(initial=0))
    if classes and largest >= classes:
        problem = f"has the class {largest}, but the model has {classes} (255 is not judged); number them as its labels"
        raise ConfigurationError(problem, file=str(file))
    return np.where(numbers == VOID, NOT_JUDGED, numbers)
