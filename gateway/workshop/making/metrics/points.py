"""Similarity of key points: object keypoint similarity (OKS) of COCO.

Formula: the mean over the visible points of exp(−d² / (2 · area · (2σ)²)), where d is the distance of a point from the
expected one, `area` that of the object, and σ the spread with which people mark this point. For an object without
visible points d is the distance from its box, enlarged by its size on all sides. Source: `COCOeval.computeOks`. For
points other than COCO's 17, σ is 1 / k, as in Ultralytics 8.3 (`utils/metrics.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gateway.common.domain.tensor import Array

COCO_SIGMAS = (
    np.array(
        [26, 25, 25, 35, 35, 79, 79, 72, 72, 62, 62, 107, 107, 87, 87, 89, 89],
    )
    / 1000
)
"""Spread of COCO's points of a person: of the nose, then of both eyes, ears, shoulders, elbows, wrists, hips, …"""
AREA_OF_BOX = 0.53
"""Share of a box that its object covers where nothing tells it, as in Ultralytics 8.3 (`PoseValidator`)."""


@dataclass(frozen=True, slots=True)
class PointShapes:
    """Key points FP64 [n, k, 2] of n objects.

    `visible` [n, k] says which ones are; `areas` [n] and `boxes` [n, 4] are those of the objects.
    """

    places: Array
    visible: Array
    areas: Array
    boxes: Array

    def overlaps(self, mine: Array, others: PointShapes, theirs: Array, crowd: Array) -> Array:
        """Return the similarity of each pair; a crowd has none of its own."""
        visible, boxes = others.visible[theirs], others.boxes[theirs][:, np.newaxis]
        is_known = np.asarray(visible.any(axis=1))
        found = self.places[mine]
        sides = boxes[..., 2:] - boxes[..., :2]
        beyond = np.maximum(boxes[..., :2] - sides - found, 0.0) + np.maximum(found - boxes[..., 2:] - sides, 0.0)
        away = np.where(is_known[:, np.newaxis, np.newaxis], found - others.places[theirs], beyond)
        spread = (2 * sigmas(found.shape[1])) ** 2 * (others.areas[theirs][:, np.newaxis] + np.spacing(1.0)) * 2
        terms = np.exp(-(away**2).sum(axis=2) / spread)
        weights = np.where(is_known[:, np.newaxis], visible, True)
        return np.asarray((terms * weights).sum(axis=1) / weights.sum(axis=1))


def sigmas(count: int) -> Array:
    """Return the spread of each of `count` points."""
    return COCO_SIGMAS if count == len(COCO_SIGMAS) else np.full(count, 1 / count)
