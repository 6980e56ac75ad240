"""Head of text detectors with differentiable binarization (DB): a map of probabilities to rectangles around lines.

Sources: Liao et al., arXiv:1911.08947; `DBPostProcess` of PaddleOCR and RapidOCR, which cut corners and the distance
by which sides move to whole pixels. They take holes in regions for regions, too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gateway.common.domain.document import Table
from gateway.common.domain.manifest import ModelManifest
from gateway.common.domain.tensor import Array, Tensors
from gateway.serving.tasks.boxes import from_centres
from gateway.serving.tasks.candidates import BoxCandidates
from gateway.serving.tasks.detection_limits import DetectionLimits
from gateway.serving.tasks.rectangles import corners_of
from gateway.serving.tasks.row_arrays import row_array


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


LEAST_SIDE_PX, LEAST_OPEN_SIDE_PX = 3, 5
"""Shortest sides of rectangles before and after they are enlarged, as in PaddleOCR."""
THRESHOLD, UNCLIP_RATIO, UNCLIP_LIMIT = 0.3, 1.6, 10.0


@dataclass(frozen=True, slots=True)
class TextBoxHead:
    """Head of a map [1, h, w] of the size of the input. `dilates`: regions grow by a pixel right and below."""

    output: str
    threshold: float
    unclip_ratio: float
    dilates: bool
    coordinates: str = "pixels"
    suppressed: bool = True

    def decode(self, outputs: Tensors, limits: DetectionLimits) -> BoxCandidates:
        """Return centres, sizes and angles of the rectangles. Raises RequestError UNSUPPORTED for another shape."""
        values = row_array(outputs, self.output, 2)
        flags = values > self.threshold
        if self.dilates:
            flags[:, 1:] |= flags[:, :-1].copy()
            flags[1:] |= flags[:-1].copy()
        rows, firsts, lasts, regions = find_regions(flags)
        areas = np.bincount(regions, lasts - firsts + 1)
        largest = np.argsort(-areas, kind="stable")[: limits.max_candidates]
        largest = largest[areas[largest] > LEAST_SIDE_PX]
        order = np.argsort(regions, kind="stable")
        begins, ends = (np.searchsorted(regions[order], largest, side) for side in ("left", "right"))
        points = np.stack((firsts, rows, lasts, rows), axis=1)[order]
        around = [smallest_rectangle(points[slice(*span)].reshape(-1, 2)) for span in zip(begins, ends, strict=True)]
        found = np.array(around, float).reshape(-1, 5)
        found = found[found[:, 2:4].min(axis=1, initial=np.inf) >= LEAST_SIDE_PX]
        scores = np.array([_mean_inside(values, each) for each in found], np.float32)
        sides = found[:, 2:4]
        sides += (sides.prod(axis=1) * self.unclip_ratio / np.maximum(sides.sum(axis=1), 1))[:, np.newaxis]
        chosen = limits.choose(np.where(sides.min(axis=1, initial=np.inf) >= LEAST_OPEN_SIDE_PX, scores, -1))
        found = found[chosen]
        return BoxCandidates(found[:, :4], scores[chosen], np.zeros(len(chosen), np.int64), found[:, 4:])


def _mean_inside(values: Array, rectangle: Array) -> float:
    """Return the mean of a map in a rectangle: pixels inside its corners or less than half a pixel from its sides."""
    corners = np.floor(corners_of(from_centres(rectangle[np.newaxis, :4]), rectangle[4:])[0])
    left, top = np.maximum(corners.min(axis=0), 0).astype(int)
    right, bottom = corners.max(axis=0).astype(int) + 1
    part = values[top:bottom, left:right]
    rows, columns = np.ogrid[top : top + part.shape[0], left : left + part.shape[1]]
    inside = np.ones(part.shape, bool)
    for (x, y), (across, down) in zip(corners, np.roll(corners, -1, axis=0) - corners, strict=True):
        inside &= across * (rows - y) - down * (columns - x) >= -max(abs(across), abs(down)) / 2
    return float(part[inside].mean()) if inside.any() else 0.0


def text_box_head(manifest: ModelManifest, options: Table) -> TextBoxHead:
    """Take the head's options. Raises ConfigurationError (table, key)."""
    return TextBoxHead(
        manifest.outputs[0].name,
        threshold=options.number("threshold", THRESHOLD, low=0.0, high=1.0),
        unclip_ratio=options.number("unclip_ratio", UNCLIP_RATIO, low=0.0, high=UNCLIP_LIMIT),
        dilates=options.flag("dilate", True),
    )
