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
from gateway.serving.tasks.regions import find_regions, smallest_rectangle
from gateway.serving.tasks.row_arrays import row_array

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
