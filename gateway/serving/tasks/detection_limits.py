"""Thresholds and bounds of detections: which candidates are considered, and how many become detections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gateway.common.domain.document import Table
from gateway.common.domain.tensor import Array

SCORE_THRESHOLD = 0.25
IOU_THRESHOLD = 0.45
"""Both defaults are those of YOLOv5's `detect.py`."""
CANDIDATES = 1000
CANDIDATES_LIMIT = 30_000
"""Largest `max_candidates`: that of YOLOv5's and YOLOv8's own suppression."""
DETECTIONS = 300
DETECTIONS_LIMIT = 3000


@dataclass(frozen=True, slots=True)
class DetectionLimits:
    """Bounds of one model. `score_thresholds` [classes + 1] by class; the last one is for classes without a label.

    At most `max_candidates` of the best scores are compared, and at most `max_detections` remain. Boxes of different
    classes suppress each other only if `class_agnostic`. With `merge`, boxes are means of those that they suppress.
    """

    score_thresholds: Array
    iou_threshold: float
    max_candidates: int
    max_detections: int
    class_agnostic: bool
    merge: bool = False

    @property
    def lowest_score(self) -> float:
        """Return the least threshold of all classes."""
        return float(self.score_thresholds.min())

    def choose(self, scores: Array) -> Array:
        """Return the indices of at most `max_candidates` finite scores [n] above the lowest threshold, best first."""
        chosen = np.flatnonzero((scores >= self.lowest_score) & (scores < np.inf))  # NaN compares false
        found = scores[chosen]
        if len(chosen) > self.max_candidates:  # scores below the last of the best are not sorted
            best = np.flatnonzero(found >= np.partition(found, -self.max_candidates)[-self.max_candidates])
            chosen, found = chosen[best], found[best]
        return chosen[np.argsort(-found, kind="stable")[: self.max_candidates]]

    def accepts(self, scores: Array, classes: Array) -> Array:
        """Return True [n] where a score reaches the threshold of its class. Negative classes are padding."""
        thresholds = self.score_thresholds[np.clip(classes, 0, len(self.score_thresholds) - 1)]
        return np.asarray((scores >= thresholds) & (classes >= 0))


def read_limits(options: Table, labels: Sequence[str]) -> DetectionLimits:
    """Take the options of thresholds and bounds. Raises ConfigurationError (table, key)."""
    lowest = options.number("score_threshold", SCORE_THRESHOLD, low=0.0, high=1.0)
    thresholds = np.full(len(labels) + 1, lowest, np.float32)
    if (table := options.table("score_thresholds")) is not None:
        for label in table.remaining():
            if label not in labels:
                table.refuse(label, "is none of the manifest's labels; correct its spelling")
            thresholds[labels.index(label)] = table.number(label, low=0.0, high=1.0)
    return DetectionLimits(
        score_thresholds=thresholds,
        iou_threshold=options.number("iou_threshold", IOU_THRESHOLD, low=0.0, high=1.0),
        max_candidates=options.integer("max_candidates", CANDIDATES, low=1, high=CANDIDATES_LIMIT),
        max_detections=options.integer("max_detections", DETECTIONS, low=1, high=DETECTIONS_LIMIT),
        class_agnostic=options.flag("class_agnostic", False),
        merge=options.flag("merge", False),
    )
