"""Place of an original image in the input of a model, and the way back from input pixels. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gateway.common.domain.tensor import Array


@dataclass(frozen=True, slots=True)
class Frame:
    """Original image of `width` by `height` pixels in the input: input = original · scale + offset, by axis.

    With `fit = "letterbox"` the offsets are the padding, with `crop` they are negative. `turned`: the original is the
    stored image turned upright by its EXIF orientation.
    """

    width: int
    height: int
    scale_x: float = 1.0
    scale_y: float = 1.0
    left: float = 0.0
    top: float = 0.0
    turned: bool = False

    def points(self, points: Array) -> Array:
        """Return points [..., 2] (x, y) of the input as points of the original, inside of it."""
        moved = (points - (self.left, self.top)) / (self.scale_x, self.scale_y)
        return np.clip(moved, 0.0, (self.width, self.height))

    def boxes(self, boxes: Array) -> Array:
        """Return boxes [n, 4] (x1, y1, x2, y2) of the input as boxes of the original."""
        return self.points(boxes.reshape(-1, 2, 2)).reshape(-1, 4)


def place(
    fit: str, original: tuple[int, int], size: tuple[int, int], crop_share: float = 1.0, align: str = "center"
) -> Frame:
    """Return the frame of an image `original` (width, height) in an input of `size` (width, height).

    As in the manifest: `fit` is `stretch`, `letterbox` (the whole image, centred or, by `align`, at the top left) or
    `crop` (the centre of the image, which has `crop_share` of its shorter side).
    """
    (width, height), (input_width, input_height) = original, size
    scale_x, scale_y = input_width / width, input_height / height
    if fit == "letterbox":
        scale_x = scale_y = min(scale_x, scale_y)
    elif fit == "crop":
        scale_x = scale_y = max(scale_x, scale_y) / crop_share
    left, top = (input_width - width * scale_x) / 2, (input_height - height * scale_y) / 2
    if align == "top-left":
        left = top = 0.0
    return Frame(width, height, scale_x, scale_y, left, top)
