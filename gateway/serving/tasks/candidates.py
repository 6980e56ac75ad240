"""Candidates of a detection model: boxes with a score and a class, and the choice of detections among them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gateway.common.domain.tensor import Array
from gateway.serving.tasks.boxes import Overlaps, iou_overlaps, suppress
from gateway.serving.tasks.detection_limits import DetectionLimits
from gateway.serving.tasks.frame import Frame
from gateway.serving.tasks.image_input import ImageInput

COORDINATE_LIMIT_PX = 1e9
"""Largest magnitude of a coordinate: products of four of them are exact enough in FP64."""
PAIRS_SHARE = 8
"""Boxes are compared in pairs where less than one of so many pairs has one class, else all with all.

300 boxes with 128 others take 0.09 ms all with all, and 0.04 ms in pairs if there are 80 classes.
"""


@dataclass(frozen=True, slots=True)
class BoxCandidates:
    """Candidates of one row, best first: boxes FP64 [n, 4] (x1, y1, x2, y2 of the input), scores [n], classes [n].

    `extras` [n, e] are further values of each box, such as coefficients of masks or keypoints.
    """

    boxes: Array
    scores: Array
    classes: Array
    extras: Array

    def select(self, chosen: Array) -> BoxCandidates:
        """Return the candidates at `chosen`: indices, or flags [n]."""
        return BoxCandidates(self.boxes[chosen], self.scores[chosen], self.classes[chosen], self.extras[chosen])

    def accepted(self, limits: DetectionLimits) -> BoxCandidates:
        """Return the candidates with finite values and with the score that their class needs."""
        accepted = limits.accepts(self.scores, self.classes)
        in_range, finite = np.abs(self.boxes) < COORDINATE_LIMIT_PX, np.isfinite(self.extras)
        if not (in_range.all() and finite.all()):  # by box only then: it takes ten times as long
            accepted &= in_range.all(axis=1) & finite.all(axis=1)
        return self if accepted.all() else self.select(accepted)

    def suppressed(self, limits: DetectionLimits, measure: OverlapMeasure) -> BoxCandidates:
        """Return the candidates that no better one suppresses, at most `max_detections`."""
        overlaps = measure(self, limits.iou_threshold)
        if not limits.class_agnostic:
            overlaps = within_classes(overlaps, self.classes)
        kept = suppress(len(self.boxes), overlaps, limits.max_detections)
        return self._merged(kept, overlaps) if limits.merge and len(kept) else self.select(kept)

    def _merged(self, kept: Array, overlaps: Overlaps) -> BoxCandidates:
        """Return the candidates at `kept`, each the mean of itself and those that it suppresses, weighted by score."""
        owned = overlaps(kept[:, np.newaxis], np.arange(len(self.boxes)))
        owned[np.arange(len(kept)), kept] = True
        owners, values = owned.argmax(axis=0), np.concatenate((self.boxes, self.extras), axis=1)
        weights = np.where(owned.any(axis=0), self.scores, 0.0).astype(np.float64)
        sums = np.zeros((len(kept), values.shape[1]))
        np.add.at(sums, owners, values * weights[:, np.newaxis])
        sums /= np.bincount(owners, weights, len(kept))[:, np.newaxis]
        return BoxCandidates(sums[:, :4], self.scores[kept], self.classes[kept], sums[:, 4:])

    def in_pixels(self, image: ImageInput, frame: Frame | None) -> BoxCandidates:
        """Return candidates with boxes in 0..1 of the input as candidates with pixels of the input."""
        boxes = image.pixels(self.boxes.reshape(-1, 2, 2), frame).reshape(-1, 4)
        return BoxCandidates(boxes, self.scores, self.classes, self.extras)


OverlapMeasure = Callable[[BoxCandidates, float], Overlaps]
"""Function of candidates and the largest overlap that two detections may have."""


def box_overlaps(candidates: BoxCandidates, threshold: float) -> Overlaps:
    """Return the function that compares candidates by the IoU of their boxes.

    They are compared in FP32, in which models give them: 128 boxes with each other take 46 µs, and 71 µs in FP64.
    """
    return iou_overlaps(np.ascontiguousarray(candidates.boxes.T, np.float32), threshold)


def within_classes(overlaps: Overlaps, classes: Array) -> Overlaps:
    """Return the function that compares boxes as `overlaps` does, but only those of one class. `classes` is [n]."""
    narrow = classes.astype(np.int32)

    def compare(some: Array, others: Array) -> Array:
        """Return True [a, b] for indices [a, 1] and [b]."""
        alike = np.equal(narrow[some], narrow[others])
        if np.count_nonzero(alike) * PAIRS_SHARE > alike.size:
            alike &= overlaps(some, others)
        else:
            rows, columns = np.divmod(places := np.flatnonzero(alike), len(others))
            alike.reshape(-1)[places] = overlaps(some[rows, 0], others[columns])
        return alike

    return compare


def placed(candidates: BoxCandidates, frame: Frame) -> BoxCandidates:
    """Return the candidates with boxes in the original image. Boxes without area inside of it are left out."""
    boxes = frame.boxes(candidates.boxes)
    visible = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
    moved = BoxCandidates(boxes, candidates.scores, candidates.classes, candidates.extras)
    return moved if visible.all() else moved.select(visible)
