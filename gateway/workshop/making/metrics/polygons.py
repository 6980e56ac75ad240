"""Overlap of convex polygons such as oriented boxes: exact intersection over union.

Formula: the border of the intersection of two convex polygons consists of the parts of each one's edges that are inside
of the other one. Each edge is clipped by the other's half planes (Cyrus and Beck 1978); the area is ½ Σ x₁y₂ − x₂y₁
over the parts (the shoelace formula). DOTA's evaluation (arXiv:1711.10398) uses the same overlap.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gateway.common.domain.tensor import Array
from gateway.workshop.making.metrics.boxes import ratio

MARGIN = 1e-9
"""Distance, relative to the size of a pair, within which an edge counts as on a border: on one side only."""


@dataclass(frozen=True, slots=True)
class Polygons:
    """Convex polygons FP64 [n, k, 2] with their corners in the order of the border."""

    corners: Array

    def overlaps(self, mine: Array, others: Polygons, theirs: Array, crowd: Array) -> Array:
        """Return the IoU of each pair."""
        first, second = _clockwise(self.corners[mine]), _clockwise(others.corners[theirs])
        centre = first.mean(axis=1, keepdims=True)  # products of small numbers are exact enough
        first, second = first - centre, second - centre
        common = _inside(first, second, MARGIN) + _inside(second, first, -MARGIN)
        return ratio(np.maximum(common, 0.0), _areas(first), _areas(second), crowd)


def _clockwise(corners: Array) -> Array:
    """Return the polygons with a positive area."""
    return np.where((_areas(corners) < 0)[:, np.newaxis, np.newaxis], corners[:, ::-1], corners)


def _areas(corners: Array) -> Array:
    return np.asarray(_cross(corners, np.roll(corners, -1, axis=1)).sum(axis=1) / 2)


def _cross(first: Array, second: Array) -> Array:
    return np.asarray(first[..., 0] * second[..., 1] - first[..., 1] * second[..., 0])


def _inside(polygons: Array, others: Array, margin: float) -> Array:
    """Return the shares [p] in the area of the intersection of those parts of edges that are inside of `others`."""
    starts, along = polygons[:, :, np.newaxis], np.roll(polygons, -1, axis=1)[:, :, np.newaxis] - polygons[:, :, None]
    corners, sides = others[:, np.newaxis], (np.roll(others, -1, axis=1) - others)[:, np.newaxis]
    scale = np.abs(others).max(axis=(1, 2), initial=0.0)[:, np.newaxis, np.newaxis] * np.linalg.norm(sides, axis=-1)
    slope, is_along = _cross(sides, along), (sides * along).sum(axis=-1) > 0
    # The height of the start above each half plane, times the side. Borders that run in opposite directions only touch.
    height = _cross(sides, starts - corners) + np.where(is_along, margin, -MARGIN) * scale
    is_level = np.abs(slope) <= MARGIN * np.linalg.norm(sides, axis=-1) * np.linalg.norm(along, axis=-1)
    crossing = np.divide(-height, slope, out=np.zeros(slope.shape), where=~is_level)
    first = np.where(~is_level & (slope > 0), crossing, 0.0).max(axis=2).clip(0.0, 1.0)
    last = np.where(~is_level & (slope < 0), crossing, 1.0).min(axis=2).clip(0.0, 1.0)
    is_out = (is_level & (height < 0) & (np.linalg.norm(sides, axis=-1) > 0)).any(axis=2) | (last <= first)
    edge = along[:, :, 0]
    begin, end = polygons + first[..., np.newaxis] * edge, polygons + last[..., np.newaxis] * edge
    return np.asarray(np.where(is_out, 0.0, _cross(begin, end) / 2).sum(axis=1))
