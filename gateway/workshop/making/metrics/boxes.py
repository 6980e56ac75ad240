"""Overlap of upright boxes: intersection over union (IoU), the index of Jaccard; COCO's `maskApi.c`, `bbIou`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gateway.common.domain.tensor import Array


@dataclass(frozen=True, slots=True)
class Boxes:
    """Boxes FP64 [n, 4]: x1, y1, x2, y2."""

    corners: Array

    def overlaps(self, mine: Array, others: Boxes, theirs: Array, crowd: Array) -> Array:
        """Return the IoU of each pair."""
        first, second = self.corners[mine], others.corners[theirs]
        low, high = np.maximum(first[:, :2], second[:, :2]), np.minimum(first[:, 2:], second[:, 2:])
        common = np.maximum(high - low, 0.0).prod(axis=1)
        return ratio(common, areas(first), areas(second), crowd)


def areas(boxes: Array) -> Array:
    """Return the areas [n] of boxes [n, 4]."""
    return np.asarray((boxes[:, 2:] - boxes[:, :2]).prod(axis=1))


def ratio(common: Array, mine: Array, theirs: Array, crowd: Array) -> Array:
    """Return intersection over union from the areas [p]; where `crowd`, over the area of `mine`. Nothing has 0."""
    whole = np.where(crowd, mine, mine + theirs - common)
    return np.divide(common, whole, out=np.zeros(len(common)), where=whole > 0)
