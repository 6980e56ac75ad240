"""Values of a coarse map, such as logits or prototypes, at the pixels of a mask of the original image.

The centre of pixel p of n is at (p + 1/2) / n of the side, as in OpenCV and in PyTorch with `align_corners=False`.
Values beyond the outermost centres are those at the border.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gateway.domain.document import Table
from gateway.domain.tensor import Array
from gateway.tasks.frame import Frame

MASK_PIXELS_MINIMUM = 1024
MASK_PIXELS_LIMIT = 268_435_456
"""Bounds of `max_mask_pixels`; the greater one is the largest image that a manifest may declare."""

Neighbours = tuple[Array, Array, Array]
"""Pixels before and after each place, and the weight FP32 (0..1) of the one after it."""


@dataclass(frozen=True, slots=True)
class MaskGrid:
    """Pixels of a mask: `width` by `height` of them cover the original image of `frame`.

    The model's input has the size `input_size` (width, height).
    """

    width: int
    height: int
    frame: Frame
    input_size: tuple[float, float]

    def column_places(self, first: int, last: int, columns: int) -> Array:
        """Return where the mask's columns first..last − 1 are in a map of `columns` columns, in its pixels."""
        original = (np.arange(first, last) + 0.5) * (self.frame.width / self.width)
        return (original * self.frame.scale_x + self.frame.left) * (columns / self.input_size[0]) - 0.5

    def row_places(self, first: int, last: int, rows: int) -> Array:
        """Return where the mask's rows first..last − 1 are in a map of `rows` rows, in its pixels."""
        original = (np.arange(first, last) + 0.5) * (self.frame.height / self.height)
        return (original * self.frame.scale_y + self.frame.top) * (rows / self.input_size[1]) - 0.5


def read_mask_pixels(options: Table, default: int) -> int:
    """Take `max_mask_pixels`. Raises ConfigurationError (table, key)."""
    return options.integer("max_mask_pixels", default, low=MASK_PIXELS_MINIMUM, high=MASK_PIXELS_LIMIT)


def mask_grid(frame: Frame, input_size: tuple[float, float], share: float) -> MaskGrid:
    """Return a grid with `share` (0..1) of the original's pixels, at least one row and one column."""
    side = math.sqrt(share)
    width, height = max(1, math.floor(frame.width * side)), max(1, math.floor(frame.height * side))
    return MaskGrid(width, height, frame, input_size)


def nearest(places: Array, count: int) -> Array:
    """Return the index of the nearest of `count` pixels for each place."""
    return np.clip(np.floor(places + 0.5), 0, count - 1).astype(np.intp)


def bilinear(values: Array, rows: Array, columns: Array) -> Array:
    """Return values [..., h, w] at the places `rows` [a] and `columns` [b], interpolated, as [..., a, b]."""
    low, high, weight = neighbours(rows, values.shape[-2])
    part = values[..., low, :] * (1 - weight)[:, np.newaxis] + values[..., high, :] * weight[:, np.newaxis]
    low, high, weight = neighbours(columns, values.shape[-1])
    return np.asarray(part[..., low] * (1 - weight) + part[..., high] * weight)


def neighbours(places: Array, count: int) -> Neighbours:
    """Return the neighbours of each place among `count` pixels."""
    inside = np.clip(places, 0, count - 1)
    low = np.floor(inside).astype(np.intp)
    return low, np.minimum(low + 1, count - 1), (inside - low).astype(np.float32)
