"""Head of MediaPipe's detectors: boxes and points relative to anchors, and a logit of each.

Sources: BlazeFace (Bazarevsky et al., arXiv:1907.05047), and MediaPipe 0.10 (`SsdAnchorsCalculator`,
`TensorsToDetectionsCalculator`). The size of the input and the number of boxes tell the anchors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gateway.common.domain.document import Table
from gateway.common.domain.manifest import ROWS, ModelManifest
from gateway.common.domain.tensor import Array, Tensors
from gateway.serving.tasks.boxes import from_centres
from gateway.serving.tasks.candidates import BoxCandidates
from gateway.serving.tasks.cell_grid import anchors
from gateway.serving.tasks.detection_limits import DetectionLimits
from gateway.serving.tasks.image_input import image_input
from gateway.serving.tasks.query_heads import sigmoid
from gateway.serving.tasks.row_arrays import row_array, row_shape, unfit


@dataclass(frozen=True, slots=True)
class AnchorHead:
    """Head of boxes [n, 4 + 2 · points] (centre, size, points in pixels from the anchor) and logits [n, 1].

    `anchors` [n, 2] are in pixels of the input.
    """

    boxes: str
    scores: str
    anchors: Array
    points: int
    coordinates: str = "pixels"
    suppressed: bool = False

    def decode(self, outputs: Tensors, limits: DetectionLimits) -> BoxCandidates:
        """Return the candidates of one row. Raises RequestError UNSUPPORTED for outputs of another shape."""
        values, logits = row_array(outputs, self.boxes, 2), row_array(outputs, self.scores, 2)
        for name, array, columns in ((self.boxes, values, 4 + 2 * self.points), (self.scores, logits, 1)):
            if array.shape != (len(self.anchors), columns):
                raise unfit(name, array.shape, f"[{len(self.anchors)}, {columns}]")
        scores = sigmoid(logits[:, 0])
        chosen = limits.choose(scores)
        pairs = values[chosen].astype(np.float64).reshape(len(chosen), 2 + self.points, 2)
        pairs[:, [0, *range(2, 2 + self.points)]] += self.anchors[chosen, np.newaxis]
        boxes, points = from_centres(pairs[:, :2].reshape(-1, 4)), pairs[:, 2:].reshape(len(chosen), 2 * self.points)
        return BoxCandidates(boxes, scores[chosen], np.zeros(len(chosen), np.int64), points)


def anchor_head(manifest: ModelManifest, options: Table, names: Mapping[str, str]) -> AnchorHead:
    """Return the head of the outputs that `names` tells by role, else by their shapes. Raises ConfigurationError."""
    shapes = {spec.name: row_shape(spec, manifest, 2) for spec in manifest.outputs}
    scores = names.get("scores") or next((name for name, shape in shapes.items() if shape[1:] == (1,)), "")
    boxes = names.get("boxes") or next((name for name in shapes if name != scores), "")
    shape, size = shapes.get(boxes, ()), image_input(manifest).size
    if not scores or len(shape) != 2 or shape[1] < 4 or shape[1] % 2:
        listed = ", ".join(f"{name} {list(each)}" for name, each in shapes.items())
        options.refuse("head", f"mediapipe needs outputs [n, 4 + 2 · points] and [n, 1] per row, not {listed}")
    found = anchors(size, shape[0]) if size and shape[0] != ROWS else None
    if found is None:
        options.refuse("head", f"no detector of MediaPipe has {shape[0]} anchors for an input of {size or 'any size'}")
    return AnchorHead(boxes, scores, found, shape[1] // 2 - 2)
