"""Values of a coarse map, such as logits or prototypes, at the pixels of a mask of the original image.

The centre of pixel p of n is at (p + 1/2) / n of the side, as in OpenCV and in PyTorch with `align_corners=False`.
Values beyond the outermost centres are those at the border.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gateway.common.domain.document import Table
from gateway.common.domain.tensor import Array
from gateway.serving.tasks.frame import Frame

MASK_PIXELS_MINIMUM = 1024
MASK_PIXELS_LIMIT = 268_435_456
"""Bounds of `max_mask_pixels`; the greater one is the largest image that a manifest may declare."""
BLOCK_VALUES = 32_768
"""Values that are interpolated at once: 128 KiB."""

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


def exceeds(values: Array, rows: Array, columns: Array, least: float) -> Array:
    """Return True [a, b] where values [h, w], interpolated at the places `rows` [a] and `columns` [b], exceed `least`.

    Some columns at a time: 510 by 480 places took 0.3 ms in blocks and 1.2 ms at once, since malloc takes large arrays
    from the system each time. The result is in column-major order, as run lengths are.
    """
    low, high, weight = neighbours(rows, values.shape[0])
    part = values.T[:, low] * (1 - weight) + values.T[:, high] * weight
    steps = np.diff(part, axis=0, append=part[-1:])
    low, _, weight = neighbours(columns, values.shape[1])
    found = np.empty((len(columns), len(rows)), bool)
    columns_at_once = max(1, BLOCK_VALUES // len(rows))
    for first in range(0, len(columns), columns_at_once):
        block = slice(first, first + columns_at_once)
        interpolated = steps.take(low[block], axis=0)
        interpolated *= weight[block, np.newaxis]
        interpolated += part.take(low[block], axis=0)
        np.greater(interpolated, least, out=found[block])
    return found.T


def neighbours(places: Array, count: int) -> Neighbours:
    """Return the neighbours of each place among `count` pixels."""
    inside = np.clip(places, 0, count - 1)
    low = np.floor(inside).astype(np.intp)
    return low, np.minimum(low + 1, count - 1), (inside - low).astype(np.float32)
