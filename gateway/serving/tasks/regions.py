"""Regions of a map of flags: their runs, and the smallest rectangle around each. Pure functions."""

from __future__ import annotations

import numpy as np

from gateway.common.domain.tensor import Array


def find_regions(flags: Array) -> tuple[Array, Array, Array, Array]:
    """Return the runs of true pixels of a map [h, w]: row, first and last column, and the number of its region.

    Pixels of one region touch each other, also at corners.
    """
    width = flags.shape[1] + 2  # a gap at both sides, so that runs of different rows do not touch in the flat map
    steps = np.diff(np.pad(flags, ((0, 0), (1, 1))).astype(np.int8).ravel(), prepend=np.int8(0))
    firsts, ends = np.flatnonzero(steps == 1), np.flatnonzero(steps == -1)
    lasts = ends - 1
    # Runs of the next row that touch run i are those from `begins[i]` to before `stops[i]`.
    begins = np.searchsorted(lasts, firsts + width - 1)
    stops = np.searchsorted(firsts, lasts + width + 1, side="right")
    counts = np.maximum(stops - begins, 0)
    above = np.repeat(np.arange(len(firsts)), counts)
    below = np.arange(len(above)) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(begins, counts)
    return firsts // width, firsts % width - 1, lasts % width - 1, _joined(len(firsts), above, below)


def _joined(count: int, some: Array, others: Array) -> Array:
    """Return the least number of all that are joined with each of `count` by pairs of `some` and `others`."""
    roots = np.arange(count)
    while len(some):
        low = np.minimum(roots[some], roots[others])
        np.minimum.at(roots, roots[some], low)
        np.minimum.at(roots, roots[others], low)
        while (roots != (higher := roots[roots])).any():
            roots = higher
        open_pairs = roots[some] != roots[others]
        some, others = some[open_pairs], others[open_pairs]
    return roots


def smallest_rectangle(points: Array) -> Array:
    """Return centre x, y, width, height and angle of the smallest rectangle around points [n, 2], sorted by y, then x.

    One side of it lies on a side of their convex hull. The angle from the x axis to the width is −π/4 to π/4.
    """
    hull = np.array(_half_hull(points.tolist())[:-1] + _half_hull(points[::-1].tolist())[:-1] or points[:1], float)
    sides = np.roll(hull, -1, axis=0) - hull
    angles = np.unique((np.arctan2(sides[:, 1], sides[:, 0]) + np.pi / 4) % (np.pi / 2) - np.pi / 4)
    axes = np.stack((np.cos(angles), np.sin(angles)), axis=1)
    along, across = hull @ axes.T, hull @ (axes[:, ::-1] * (-1, 1)).T
    widths, heights = np.ptp(along, axis=0), np.ptp(across, axis=0)
    best = int((widths * heights).argmin())
    middle = (along[:, best].min() + along[:, best].max()) / 2, (across[:, best].min() + across[:, best].max()) / 2
    (cosine, sine), (x, y) = axes[best], middle
    return np.array((x * cosine - y * sine, x * sine + y * cosine, widths[best], heights[best], angles[best]))


def _half_hull(points: list[list[float]]) -> list[list[float]]:
    """Return the part of the convex hull on one side (Andrew's monotone chain)."""
    hull = list[list[float]]()
    for point in points:
        while len(hull) > 1 and _turn(hull[-2], hull[-1], point) <= 0:
            hull.pop()
        hull.append(point)
    return hull


def _turn(first: list[float], second: list[float], third: list[float]) -> float:
    """Return a positive number if the way over three points turns to one side, a negative one for the other side."""
    return (second[0] - first[0]) * (third[1] - first[1]) - (second[1] - first[1]) * (third[0] - first[0])
