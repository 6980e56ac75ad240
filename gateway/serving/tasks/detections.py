"""Result of detection: boxes in the original image with labels and scores, as values and as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gateway.common.domain.manifest import TensorSpec
from gateway.common.domain.tensor import Array, Datatype
from gateway.serving.tasks.candidates import BoxCandidates

SCORE_DIGITS = 6
PIXEL_DIGITS = 2
DETECTION_TENSORS = (
    TensorSpec("boxes", Datatype.FP32, (-1, 4)),
    TensorSpec("scores", Datatype.FP32, (-1,)),
    TensorSpec("classes", Datatype.INT32, (-1,)),
)
"""Tensors of a detection: boxes x1, y1, x2, y2 in pixels of the original image."""


def plain(values: Array, digits: int) -> list[Any]:
    """Return an array as nested lists of Python floats, rounded to `digits` decimals."""
    listed: list[Any] = (np.round(values.astype(np.float64), digits) + 0.0).tolist()  # + 0.0: no "-0.0" in JSON
    return listed


def label_of(labels: Sequence[str], index: int) -> str:
    """Return the label of a class. A class without one is named by its number."""
    return labels[index] if index < len(labels) else str(index)


@dataclass(frozen=True, slots=True)
class DetectionResult:
    """Detections of one row, best first."""

    labels: Sequence[str]
    found: BoxCandidates

    def document(self) -> dict[str, Any]:
        """Return the detections with label, class, score and box."""
        return {"detections": self.entries()}

    def entries(self) -> list[dict[str, Any]]:
        """Return one object per detection: its box is [x1, y1, x2, y2] in pixels of the original image."""
        classes = self.found.classes.tolist()
        values = zip(
            classes, plain(self.found.scores, SCORE_DIGITS), plain(self.found.boxes, PIXEL_DIGITS), strict=True
        )
        return [
            {"label": label_of(self.labels, index), "class": index, "score": score, "box": box}
            for index, score, box in values
        ]

    def tensors(self) -> dict[str, Array]:
        """Return the arrays of DETECTION_TENSORS."""
        found = self.found
        return {
            "boxes": found.boxes.astype(np.float32),
            "scores": found.scores.astype(np.float32),
            "classes": found.classes.astype(np.int32),
        }
