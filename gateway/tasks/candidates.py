"""Candidates of a detection model: boxes with a score and a class, and the choice of detections among them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gateway.domain.tensor import Array
from gateway.tasks.boxes import Overlaps, overlap_boxes, suppress
from gateway.tasks.detection_limits import DetectionLimits
from gateway.tasks.frame import Frame
from gateway.tasks.image_input import ImageInput

COORDINATE_LIMIT_PX = 1e9
"""Largest magnitude of a coordinate: products of four of them are exact enough in FP64."""


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
        sound = (np.abs(self.boxes) < COORDINATE_LIMIT_PX).all(axis=1) & np.isfinite(self.extras).all(axis=1)
        return self.select(sound & limits.accepts(self.scores, self.classes))

    def suppressed(self, limits: DetectionLimits, measure: OverlapMeasure) -> BoxCandidates:
        """Return the candidates that no better one suppresses, at most `max_detections`."""
        measured, classes = measure(self, limits.iou_threshold), self.classes

        def overlaps(some: Array, others: Array) -> Array:
            found = measured(some, others)
            return found if limits.class_agnostic else found & (classes[some, np.newaxis] == classes[others])

        return self.select(suppress(len(self.boxes), overlaps, limits.max_detections))

    def in_pixels(self, image: ImageInput, frame: Frame | None) -> BoxCandidates:
        """Return candidates with boxes in 0..1 of the input as candidates with pixels of the input."""
        boxes = image.pixels(self.boxes.reshape(-1, 2, 2), frame).reshape(-1, 4)
        return BoxCandidates(boxes, self.scores, self.classes, self.extras)


OverlapMeasure = Callable[[BoxCandidates, float], Overlaps]
"""Function of candidates and the largest overlap that two detections may have."""


def box_overlaps(candidates: BoxCandidates, threshold: float) -> Overlaps:
    """Return the function that compares candidates by the IoU of their boxes.

    They are compared in FP32, in which models give them: 128 boxes with each other take 76 µs, and 130 µs in FP64.
    """
    boxes = np.ascontiguousarray(candidates.boxes.T, np.float32)
    return lambda some, others: overlap_boxes(boxes[:, some], boxes[:, others], threshold)


def placed(candidates: BoxCandidates, frame: Frame) -> BoxCandidates:
    """Return the candidates with boxes in the original image. Boxes without area inside of it are left out."""
    boxes = frame.boxes(candidates.boxes)
    visible = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
    moved = BoxCandidates(boxes, candidates.scores, candidates.classes, candidates.extras)
    return moved if visible.all() else moved.select(visible)
