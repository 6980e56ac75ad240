"""Rectangles at any angle: corners, and overlaps as of normal distributions (ProbIoU)."""

from __future__ import annotations

import numpy as np

from gateway.common.domain.tensor import Array
from gateway.serving.tasks.boxes import Overlaps
from gateway.serving.tasks.candidates import BoxCandidates


def corners_of(boxes: Array, angles: Array) -> Array:
    """Return the corners [n, 4, 2] of boxes [n, 4] (x1, y1, x2, y2), rotated about their centres by `angles` [n].

    They begin with the corner that is (x1, y1) at angle 0, and go to (x2, y1) next. Angles are in radians.
    """
    centres, sides = (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]
    cosines, sines = np.cos(angles), np.sin(angles)
    along = np.stack((cosines, sines), axis=1) * (sides[:, :1] / 2)
    across = np.stack((-sines, cosines), axis=1) * (sides[:, 1:] / 2)
    offsets = np.stack((-along - across, along - across, along + across, across - along), axis=1)
    return np.asarray(centres[:, np.newaxis] + offsets)


def rectangle_overlaps(candidates: BoxCandidates, threshold: float) -> Overlaps:
    """Return the function that compares candidates by ProbIoU. The last of their extras is the angle in radians.

    For rectangles with means m and covariances S1, S2, and S = S1 + S2, the Bhattacharyya coefficient is
    c = exp(−dᵀ S⁻¹ d / 4) · sqrt(4 · sqrt(|S1| |S2|) / |S|), d the difference of the means, and ProbIoU is
    1 − sqrt(1 − c) (Llerena et al., arXiv:2106.06072, equations 5 to 9). It exceeds t where c > 1 − (1 − t)².
    """
    # The covariances [n, 4] of rectangles are xx, yy, xy, and the root of the determinant.
    boxes, angles = candidates.boxes, candidates.extras[:, -1]
    sides = (boxes[:, 2:] - boxes[:, :2]) ** 2 / 12
    cosines, sines = np.cos(angles), np.sin(angles)
    along, across = sides[:, 0], sides[:, 1]
    terms = (
        along * cosines**2 + across * sines**2,
        along * sines**2 + across * cosines**2,
        (along - across) * cosines * sines,
        np.sqrt(along * across),
    )
    means, covariances = (boxes[:, :2] + boxes[:, 2:]) / 2, np.stack(terms, axis=1)
    least = 1.0 - (1.0 - threshold) ** 2

    def overlaps(some: Array, others: Array) -> Array:
        """Return True where the coefficient exceeds the least one. Without area there is no overlap."""
        across_x, across_y = (means[some, axis] - means[others, axis] for axis in range(2))
        xx, yy, xy = (covariances[some, term] + covariances[others, term] for term in range(3))
        areas = covariances[some, 3] * covariances[others, 3]
        determinants = xx * yy - xy * xy
        distances = yy * across_x**2 + xx * across_y**2 - 2 * xy * across_x * across_y
        with np.errstate(divide="ignore", invalid="ignore"):
            coefficients = np.exp(-distances / (4 * determinants)) * np.sqrt(4 * areas / determinants)
        return np.asarray(coefficients > least)

    return overlaps
