"""Cells of the feature maps of a detector, to which its boxes are relative. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gateway.common.domain.tensor import Array

YOLOX_MAPS = ((8, 1), (16, 1), (32, 1))
"""Strides in pixels of YOLOX's feature maps, with the boxes of each cell."""
ANCHOR_MAPS = (((8, 2), (16, 6)), ((16, 2), (32, 6)), ((8, 2), (16, 2), (32, 6)), ((4, 1),))
"""The same of MediaPipe's detectors: BlazeFace and palms, BlazeFace of back cameras, poses, BlazeFace of full range."""


def cell_grid(size: tuple[int, int], maps: Sequence[tuple[int, int]]) -> Array:
    """Return the corner x, y and the side [n, 3] in pixels of the cell of each box, for an input (width, height)."""
    parts = list[Array]()
    for stride, boxes in maps:
        rows, columns = np.indices((size[1] // stride, size[0] // stride)).reshape(2, -1) * stride
        cells = np.stack((columns, rows, np.full(rows.shape, stride)), axis=1)
        parts.append(np.repeat(cells, boxes, axis=0))
    return np.concatenate(parts).astype(np.float64)


def anchors(size: tuple[int, int], count: int) -> Array | None:
    """Return the centres [count, 2] in pixels of MediaPipe's anchors; None if no known detector has as many."""
    for maps in ANCHOR_MAPS if min(size) > 0 else ():
        if sum((size[0] // stride) * (size[1] // stride) * boxes for stride, boxes in maps) == count:
            cells = cell_grid(size, maps)
            return np.asarray(cells[:, :2] + cells[:, 2:] / 2)
    return None
