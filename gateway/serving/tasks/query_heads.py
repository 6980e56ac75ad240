"""Head of detection transformers: logits and boxes of a fixed number of queries, without suppression.

Sources: Carion et al., "End-to-End Object Detection with Transformers" (DETR, arXiv:2005.12872): softmax over the
classes and one more, the last, for "no object"; Zhao et al., "DETRs Beat YOLOs on Real-time Object Detection" (RT-DETR,
arXiv:2304.08069), and Deformable DETR, D-FINE and RF-DETR with it: a sigmoid for each class, and the best pairs of
query and class, as many as there are queries.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gateway.common.domain.tensor import Array, Tensors
from gateway.serving.domain.postprocess import softmax
from gateway.serving.tasks.boxes import from_centres
from gateway.serving.tasks.candidates import BoxCandidates
from gateway.serving.tasks.detection_limits import DetectionLimits
from gateway.serving.tasks.row_arrays import row_array, unfit

ACTIVATIONS = ("softmax", "sigmoid", "none")
"""Conversions of logits to scores. `none`: the outputs are scores already."""


@dataclass(frozen=True, slots=True)
class QueryHead:
    """Head of logits [q, k] and boxes [q, 4] (centre x, y, width, height in 0..1)."""

    boxes: str
    scores: str
    activation: str
    classes: int
    coordinates: str = "normalised"
    suppressed: bool = True

    def decode(self, outputs: Tensors, limits: DetectionLimits) -> BoxCandidates:
        """Return the candidates of one row. Raises RequestError UNSUPPORTED for outputs of another shape."""
        boxes, logits = row_array(outputs, self.boxes, 2), row_array(outputs, self.scores, 2)
        spare = 1 if self.activation == "softmax" else 0
        if boxes.shape != (len(logits), 4) or logits.shape[1] <= spare:
            raise unfit(self.boxes, boxes.shape, f"[{len(logits)}, 4], as many boxes as queries")
        if self.classes and logits.shape[1] != self.classes + spare:
            raise unfit(self.scores, logits.shape, f"[n, {self.classes + spare}]")
        return self._candidates(boxes, logits, limits)

    def _candidates(self, boxes: Array, logits: Array, limits: DetectionLimits) -> BoxCandidates:
        if self.activation == "softmax":
            return best_classes(boxes, softmax(logits)[:, :-1], limits)
        return best_pairs(boxes, logits if self.activation == "none" else sigmoid(logits), limits)


def best_classes(boxes: Array, scores: Array, limits: DetectionLimits) -> BoxCandidates:
    """Return the best class of each box [n, 4] by its scores [n, c]."""
    classes = scores.argmax(axis=1)
    best = scores.max(axis=1)
    chosen = limits.choose(best)
    return _candidates(boxes[chosen], best[chosen], classes[chosen])


def best_pairs(boxes: Array, scores: Array, limits: DetectionLimits) -> BoxCandidates:
    """Return the best n pairs of a box [n, 4] and a class by their scores [n, c]."""
    pairs = scores.ravel()
    chosen = limits.choose(pairs)[: len(boxes)]
    queries, classes = np.divmod(chosen, scores.shape[1])
    return _candidates(boxes[queries], pairs[chosen], classes)


def _candidates(boxes: Array, scores: Array, classes: Array) -> BoxCandidates:
    return BoxCandidates(from_centres(boxes), scores, classes, np.empty((len(boxes), 0)))


def sigmoid(logits: Array) -> Array:
    """Return 1 / (1 + e^−x), written with tanh, which does not overflow. Infinite logits become NaN."""
    scores = 0.5 * np.tanh(0.5 * logits) + 0.5
    return np.where(np.isfinite(logits), scores, np.nan)
