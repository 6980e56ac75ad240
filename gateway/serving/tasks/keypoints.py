"""Keypoints: boxes with label, score and named points in the original image, such as the joints of persons.

Formula (YOLOv8-pose, Ultralytics 8.3): each box has k points of d values, x and y in the unit of the boxes and, if
d = 3, a score in 0..1 that the point is visible. Boxes, scores and suppression are those of `object-detection`, with
the same options; the heads are `yolov8` [4 + c + d · k, n], `end-to-end` [n, 6 + d · k] and `mediapipe`, with boxes
and points [n, 4 + 2 · k] relative to anchors, and logits [n, 1] (BlazeFace, palms).

Expected of the model: as many points as `keypoints` has names, in one output but for `mediapipe`. Models with heat
maps or with one set of points per image (MoveNet, BlazePose) have other outputs: they are no models of this task.

| option | type, default | meaning |
| --- | --- | --- |
| `keypoints` | list of names, required | names of the points, in the order of the model |
| `values` | 2, 3; by shape | values of a point; 3: x, y, score |
| `head`, `coordinates`, thresholds, bounds | | as for `object-detection` |

Document: `{"detections": [{"label", "class", "score", "box", "keypoints": [{"name", "x", "y", "score"}]}]}`, without
`score` of a point if d = 2. Points outside the original image are moved to its border. Tensors: `keypoints` FP32
[n, k, d].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gateway.common.domain.document import Table
from gateway.common.domain.manifest import ModelManifest, TensorSpec
from gateway.common.domain.tensor import Array, Datatype, Tensors
from gateway.serving.tasks.anchor_head import anchor_head
from gateway.serving.tasks.candidates import placed
from gateway.serving.tasks.detections import DETECTION_TENSORS, PIXEL_DIGITS, SCORE_DIGITS, DetectionResult, plain
from gateway.serving.tasks.detector import DetectionHead, read_detector
from gateway.serving.tasks.frame import Frame
from gateway.serving.tasks.single_output_heads import head_fit, single_output_head

HEADS = ("yolov8", "end-to-end")
VALUES = (3, 2)
"""Numbers of values of a point; the more frequent one is tried first."""
KEYPOINTS_LIMIT = 1000
COCO_KEYPOINTS = (
    *("nose", "left_eye", "right_eye", "left_ear", "right_ear", "left_shoulder", "right_shoulder", "left_elbow"),
    *("right_elbow", "left_wrist", "right_wrist", "left_hip", "right_hip", "left_knee", "right_knee", "left_ankle"),
    "right_ankle",
)
"""Points of a person in COCO, on which the published models are trained."""


@dataclass(frozen=True, slots=True)
class KeypointsResult:
    """Detections of one row with their points FP64 [n, k, d] in pixels of the original image."""

    detections: DetectionResult
    names: Sequence[str]
    points: Array

    def document(self) -> dict[str, Any]:
        """Return the detections with their named points."""
        pairs = zip(self.detections.entries(), self._places(), strict=True)
        return {"detections": [{**entry, "keypoints": points} for entry, points in pairs]}

    def tensors(self) -> dict[str, Array]:
        """Return the arrays of `Keypoints.results`."""
        return {**self.detections.tensors(), "keypoints": self.points.astype(np.float32)}

    def _places(self) -> list[list[dict[str, Any]]]:
        """Return the named points of each detection."""
        places = plain(self.points[..., :2], PIXEL_DIGITS)
        scores = plain(self.points[..., 2:], SCORE_DIGITS)
        return [
            [
                {"name": name, "x": x, "y": y, **({"score": score[0]} if score else {})}
                for name, (x, y), score in zip(self.names, points, of_points, strict=True)
            ]
            for points, of_points in zip(places, scores, strict=True)
        ]


class Keypoints:
    """Task of detectors with points. Construction checks their number against the shape of the output."""

    def __init__(self, manifest: ModelManifest, options: Table) -> None:
        self._names = options.texts("keypoints")
        if not 0 < len(self._names) <= KEYPOINTS_LIMIT:
            options.refuse("keypoints", f"must hold 1 to {KEYPOINTS_LIMIT} names, not {len(self._names)}")
        self._values = 0
        self._detector = read_detector(manifest, options, self._read_head)
        options.finish()

    @property
    def results(self) -> tuple[TensorSpec, ...]:
        """Return the tensors of a detection, and its points."""
        return (*DETECTION_TENSORS, TensorSpec("keypoints", Datatype.FP32, (-1, len(self._names), self._values)))

    def interpret(self, outputs: Tensors, frame: Frame | None) -> KeypointsResult:
        """Return the detections of one row with their points, best first."""
        image = self._detector.image
        original = image.frame(frame)
        found = placed(self._detector.detect(outputs, frame), original)
        points = found.extras.reshape(-1, len(self._names), self._values)
        places = image.pixels(points[..., :2], frame) if self._detector.normalised else points[..., :2]
        points = np.concatenate((original.points(places), points[..., 2:]), axis=2)
        return KeypointsResult(DetectionResult(self._detector.labels, found), self._names, points)

    def _read_head(self, manifest: ModelManifest, options: Table) -> DetectionHead:
        """Take the head and the number of values of a point. Raises ConfigurationError."""
        head = options.text("head", among=(*HEADS, "mediapipe")) if "head" in options else ""
        if head == "mediapipe":
            anchored, self._values = anchor_head(manifest, options, {}), 2
            if anchored.points != len(self._names):
                options.refuse(
                    "keypoints", f"holds {len(self._names)} names, but the model has {anchored.points} points"
                )
            return anchored
        output, among = manifest.outputs[0], (head,) if head else HEADS
        if "values" in options:
            self._values = options.integer("values", low=min(VALUES), high=max(VALUES))
        else:  # of equal fits the first one counts
            extras = {each: each * len(self._names) for each in VALUES}
            self._values = max(VALUES, key=lambda n: max(head_fit(output, manifest, name, extras[n]) for name in among))
        return single_output_head(
            output, manifest, options, head=head, among=HEADS, extras=self._values * len(self._names)
        )
