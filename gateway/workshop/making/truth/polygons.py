"""Masks of annotations: polygons and compressed run lengths of COCO to plain run lengths. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gateway.common.domain.tensor import Array
from gateway.serving.tasks.run_lengths import encode_region

CODE_BITS, CODE_ZERO = 5, 48
"""COCO's text of run lengths: 5 bits in each character, counted from "0"."""


def fill_polygons(polygons: Sequence[Array], size: tuple[int, int]) -> Array:
    """Return the counts of a mask of `size` (height, width): pixels whose centre is inside of one of the polygons.

    Polygons are [k, 2] of x, y in pixels. COCO's own code rounds the border differently, by up to half a pixel.
    """
    height, width = size
    region = np.zeros((height, width), bool)
    for polygon in polygons:
        region |= _filled(polygon, height, width)
    return encode_region(region, 0, 0, size)


def _filled(polygon: Array, height: int, width: int) -> Array:
    """Return the pixels inside of a polygon by the even-odd rule: a row changes where an edge crosses its centre."""
    starts, ends = polygon, np.roll(polygon, -1, axis=0)
    centres = np.arange(height)[:, np.newaxis] + 0.5
    is_crossed = (starts[:, 1] <= centres) != (ends[:, 1] <= centres)
    row, edge = np.nonzero(is_crossed)
    (x, y), (end_x, end_y) = starts[edge].T, ends[edge].T
    places = x + (row + 0.5 - y) * (end_x - x) / (end_y - y)
    changes = np.zeros((height, width + 1), np.int64)
    np.add.at(changes, (row, np.clip(np.ceil(places - 0.5), 0, width).astype(int)), 1)
    return np.asarray(np.cumsum(changes[:, :width], axis=1) % 2 == 1)


def read_counts(counts: str | Sequence[int], size: tuple[int, int]) -> Array:
    """Return counts from a list, or from COCO's text. Raises ValueError if they do not fill the mask."""
    found = np.array(_decoded(counts) if isinstance(counts, str) else list(counts), np.int64)
    if found.ndim != 1 or (found < 0).any() or found.sum() != size[0] * size[1]:
        raise ValueError(f"the run lengths do not fill a mask of {size[0]} x {size[1]} pixels")
    return found


def _decoded(text: str) -> list[int]:
    """Return the numbers of a text (COCO's maskApi.c, `rleFrString`): differences to the number two before."""
    numbers, value, shift = list[int](), 0, 0
    for character in text.encode():
        code = character - CODE_ZERO
        if not 0 <= code < 64 or shift > 60:
            raise ValueError("the run lengths are no text of COCO's")
        value |= (code & 31) << shift
        shift += CODE_BITS
        if not code & 32:
            value -= (1 << shift) if code & 16 else 0
            numbers.append(value + (numbers[-2] if len(numbers) > 2 else 0))
            value, shift = 0, 0
    return numbers
