"""Oriented boxes: rectangles at any angle, with label and score, by their corners in the original image.

Formula (YOLOv8-obb, Ultralytics 8.3): the output of a row is [4 + c + 1, n]: centre x, y, width, height, classes, and
the angle in radians from the x axis to the side of length width, clockwise in the image because y points down. The
head `end-to-end` is [n, 7]: centre x, y, width, height, score, class, angle (YOLO26-obb).

Suppression compares rectangles as normal distributions (ProbIoU; Llerena et al., arXiv:2106.06072): the covariance of
a rectangle is R · diag(w², h²) / 12 · Rᵀ, and the overlap is 1 − H, the Hellinger distance H of two distributions.
A box is dropped if its overlap with a better box of its class exceeds `iou_threshold`. Ultralytics uses the same
overlap, but lets boxes that are dropped themselves drop others: it may keep fewer.

The head `db` is of text detectors (PP-OCR; DB, Liao et al., arXiv:1911.08947): a map [1, h, w] of probabilities of
the size of the input. A region above `threshold` becomes its smallest rectangle, whose score is the mean in it, moved
outwards by area · `unclip_ratio` / perimeter. RapidOCR cuts corners to whole pixels: they differ by up to 2.5 pixels.

Options: `coordinates`, thresholds and bounds, as for `object-detection`. Expected of the model: one output.

| option | type, default | meaning |
| --- | --- | --- |
| `head` | `yolov8`, `end-to-end`, `db` | required if the shape of the output does not tell it, and for `db` |
| `threshold` | 0 to 1; 0.3 | `db`: probability above which a pixel belongs to text |
| `unclip_ratio` | 0 to 10; 1.6 | `db`: how far sides are moved outwards; 1.5 in PaddleOCR |
| `dilate` | flag, true | `db`: regions grow by a pixel right and below first; false in PaddleOCR |

Document: `{"detections": [{"label", "class", "score", "box", "corners": [[x, y] × 4], "angle"}]}`. `corners` go
clockwise; the first side is the one of length width, and `angle` is its direction in the original image, in radians, −π
to π. Corners outside the image are moved to its border. `box` [x1, y1, x2, y2] contains
the corners. Tensors: `corners` FP32 [n, 4, 2], `angles` FP32 [n].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gateway.common.domain.document import Table
from gateway.common.domain.manifest import ModelManifest, TensorSpec
from gateway.common.domain.tensor import Array, Datatype, Tensors
from gateway.serving.tasks.boxes import from_centres
from gateway.serving.tasks.candidates import BoxCandidates
from gateway.serving.tasks.detections import DETECTION_TENSORS, PIXEL_DIGITS, SCORE_DIGITS, DetectionResult, plain
from gateway.serving.tasks.detector import DetectionHead, read_detector
from gateway.serving.tasks.frame import Frame
from gateway.serving.tasks.rectangles import corners_of, rectangle_overlaps
from gateway.serving.tasks.single_output_heads import single_output_head
from gateway.serving.tasks.text_box_head import text_box_head

HEADS = ("yolov8", "end-to-end")


@dataclass(frozen=True, slots=True)
class OrientedResult:
    """Detections of one row with corners FP64 [n, 4, 2] in pixels of the original image, and angles [n] in radians."""

    detections: DetectionResult
    corners: Array
    angles: Array

    def document(self) -> dict[str, Any]:
        """Return the detections with their corners and angles."""
        places = zip(
            self.detections.entries(), plain(self.corners, PIXEL_DIGITS), plain(self.angles, SCORE_DIGITS), strict=True
        )
        return {"detections": [{**entry, "corners": corners, "angle": angle} for entry, corners, angle in places]}

    def tensors(self) -> dict[str, Array]:
        """Return the arrays of `OrientedBoxes.results`."""
        return {
            **self.detections.tensors(),
            "corners": self.corners.astype(np.float32),
            "angles": self.angles.astype(np.float32),
        }


class OrientedBoxes:
    """Task of detectors of rectangles at any angle."""

    results = (
        *DETECTION_TENSORS,
        TensorSpec("corners", Datatype.FP32, (-1, 4, 2)),
        TensorSpec("angles", Datatype.FP32, (-1,)),
    )
    """Detections of a row, best first."""

    def __init__(self, manifest: ModelManifest, options: Table) -> None:
        self._detector = read_detector(manifest, options, _read_head, rectangle_overlaps)
        options.finish()

    def interpret(self, outputs: Tensors, frame: Frame | None) -> OrientedResult:
        """Return the detections of one row with corners in the original image, best first."""
        found, original = self._detector.detect(outputs, frame), self._detector.image.frame(frame)
        # The heads end-to-end and db give centre and size here, the other one has been converted.
        boxes = from_centres(found.boxes) if self._detector.head.suppressed else found.boxes
        angles = found.extras[:, -1]
        corners = original.points(corners_of(boxes, angles))
        bounds = np.concatenate((corners.min(axis=1), corners.max(axis=1)), axis=1)
        visible = np.flatnonzero((bounds[:, 2] > bounds[:, 0]) & (bounds[:, 3] > bounds[:, 1]))
        seen = BoxCandidates(bounds, found.scores, found.classes, found.extras).select(visible)
        turned = np.arctan2(np.sin(angles) / original.scale_y, np.cos(angles) / original.scale_x)
        return OrientedResult(DetectionResult(self._detector.labels, seen), corners[visible], turned[visible])


def _read_head(manifest: ModelManifest, options: Table) -> DetectionHead:
    head = options.text("head", among=(*HEADS, "db")) if "head" in options else ""
    if head == "db":
        return text_box_head(manifest, options)
    return single_output_head(manifest.outputs[0], manifest, options, head=head, among=HEADS, extras=1)
