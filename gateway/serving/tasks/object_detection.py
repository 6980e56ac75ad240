"""Object detection: boxes with label and score in the original image.

| head | outputs of a row | boxes | suppression (NMS) |
| --- | --- | --- | --- |
| `yolov5` | [n, 5 + c]: box, objectness, classes; score = objectness · class | centre, pixels | here |
| `yolox` | [n, 5 + c], as of `yolov5`, with boxes relative to cells of 8, 16 and 32 pixels | centre, pixels | here |
| `yolov8` | [4 + c, n]: box, classes | centre, pixels | here |
| `end-to-end` | [n, 6]: box, score, class | x1 y1 x2 y2, pixels | in the model |
| `ssd` | boxes [n, 4], classes [n], scores [n], count | y1 x1 y2 x2, 0..1 | in the model |
| `mediapipe` | boxes [n, 4 + 2 · k] relative to anchors, logits [n, 1] | centre, pixels | here |
| `detr` | boxes [q, 4], logits [q, c + 1] (softmax) or [q, c] (sigmoid); or [q, 4 + c] | centre, 0..1 | none |

c is the number of labels. `yolov5` is also the form of YOLOv7; `yolov8` that of YOLOv9, YOLO11 and YOLOv12;
`end-to-end` that of YOLOv10, YOLO26 and exports with `nms=True`. Sources: YOLOv5 7.0 (`detect.py`) and Ultralytics 8.3
(`non_max_suppression`, exports); YOLOX 0.3 (`demo_postprocess`); MediaPipe 0.10 (BlazeFace, whose k points are those
of `keypoints`); TensorFlow's `TFLite_Detection_PostProcess`; DETR and RT-DETR as Transformers exports
them, [q, 4 + c] of scores as Ultralytics exports RT-DETR. Exports of Ultralytics to TFLite have coordinates in 0..1:
write `coordinates = "normalised"`.

Suppression drops a box whose IoU with a better box of its class exceeds `iou_threshold`. Expected of the model: one
image input, and scores in 0..1 (`detr`: logits, or as `activation` says). Detections without area inside the original
image, and those with NaN or infinite values, are left out.

| option | type, default | meaning |
| --- | --- | --- |
| `head` | a name of the table above | required if shapes do not tell it, and for `yolox` and `mediapipe` |
| `score_threshold` | 0 to 1, 0.25 | least score of a detection |
| `score_thresholds` | table of label = number | least scores of single labels |
| `iou_threshold` | 0 to 1, 0.45 | largest IoU of two detections of one class |
| `class_agnostic` | flag, false | boxes of different classes suppress each other too |
| `merge` | flag, false | a box is the mean of those that it suppresses, by score: MediaPipe, with an IoU of 0.3 |
| `max_candidates` | 1 to 30,000; 1000 | most boxes that are compared, those with the best scores |
| `max_detections` | 1 to 3000; 300 | most detections of one image |
| `coordinates` | `pixels`, `normalised`; by head | unit of the model's boxes: pixels of its input, or 0..1 |
| `boxes`, `scores`, `classes`, `count` | names of outputs | `ssd`: required if the names do not tell them |
| `boxes`, `scores` | names of outputs | `detr`: required if the shapes do not tell them |
| `boxes` | name of an output | other heads: the output, if it is not the first one |
| `box_order` | `yxyx`, `xyxy`; `yxyx` | `ssd`: order of the coordinates |
| `first_class` | 0 to 1000; 0 | `ssd`: number of the first label |
| `activation` | `softmax`, `sigmoid`, `none`; by shape | `detr`: function that makes scores of logits |

Document: `{"detections": [{"label", "class", "score", "box": [x1, y1, x2, y2]}]}`, best first, in pixels of the
original image.
"""

from __future__ import annotations

from gateway.common.domain.document import Table
from gateway.common.domain.manifest import ModelManifest
from gateway.common.domain.tensor import Tensors
from gateway.serving.tasks.anchor_head import anchor_head
from gateway.serving.tasks.candidates import placed
from gateway.serving.tasks.detections import DETECTION_TENSORS, DetectionResult
from gateway.serving.tasks.detector import DetectionHead, read_detector
from gateway.serving.tasks.frame import Frame
from gateway.serving.tasks.postprocessed_head import ROLES, postprocessed_head
from gateway.serving.tasks.query_heads import ACTIVATIONS, QueryHead
from gateway.serving.tasks.row_arrays import row_shape
from gateway.serving.tasks.single_output_heads import HEAD_FORMS, single_output_head


class ObjectDetection:
    """Task of detectors. Construction chooses the head from the options and the shapes of the outputs."""

    results = DETECTION_TENSORS
    """Detections of a row, best first."""

    def __init__(self, manifest: ModelManifest, options: Table) -> None:
        self._detector = read_detector(manifest, options, read_head)
        options.finish()

    def interpret(self, outputs: Tensors, frame: Frame | None) -> DetectionResult:
        """Return the detections of one row, best first."""
        found = self._detector.detect(outputs, frame)
        return DetectionResult(self._detector.labels, placed(found, self._detector.image.frame(frame)))


def read_head(manifest: ModelManifest, options: Table) -> DetectionHead:
    """Take the head and its options. Without `head`, the number and shapes of the outputs tell it.

    Raises ConfigurationError if they do not: it says what to write.
    """
    head = options.text("head", among=(*HEAD_FORMS, "ssd", "mediapipe")) if "head" in options else ""
    if head == "mediapipe":
        return anchor_head(manifest, options, _output_names(manifest, options, ("boxes", "scores")))
    if head == "ssd" or (not head and len(manifest.outputs) >= 3):
        return postprocessed_head(manifest, options, _output_names(manifest, options, ROLES))
    if head in {"", "detr"} and len(manifest.outputs) == 2:
        return _query_head(manifest, options, _output_names(manifest, options, ("boxes", "scores")))
    names = _output_names(manifest, options, ("boxes",))
    output = manifest.output(names.get("boxes", "")) or manifest.outputs[0]
    distinct = tuple(name for name in HEAD_FORMS if name != "yolox")  # which has the shapes of yolov5
    return single_output_head(output, manifest, options, head=head, among=distinct)


def _output_names(manifest: ModelManifest, options: Table, roles: tuple[str, ...]) -> dict[str, str]:
    """Take the options that name outputs by their role."""
    known = tuple(spec.name for spec in manifest.outputs)
    return {role: options.text(role, among=known) for role in roles if role in options}


def _query_head(manifest: ModelManifest, options: Table, names: dict[str, str]) -> QueryHead:
    """Return the head of queries: which output is which, and how logits become scores."""
    shapes = {spec.name: row_shape(spec, manifest, 2) for spec in manifest.outputs}
    boxes = names.get("boxes") or _only(options, "boxes", [name for name, shape in shapes.items() if shape[1:] == (4,)])
    scores = names.get("scores") or _only(options, "scores", [name for name in shapes if name != boxes])
    return QueryHead(
        boxes, scores, _activation(options, scores, shapes[scores], len(manifest.labels)), len(manifest.labels)
    )


def _activation(options: Table, scores: str, shape: tuple[int, ...], classes: int) -> str:
    """Take the activation. Without the option, the number of columns of `scores` tells it."""
    if "activation" in options:
        return options.text("activation", among=ACTIVATIONS)
    likely = {classes + 1: "softmax", classes: "sigmoid"}.get(shape[-1], "") if classes and shape else ""
    if not likely:
        options.refuse(
            "activation",
            f"output '{scores}' of shape {list(shape)} per row with {classes} labels does not tell it; write "
            'activation = "softmax" (the last class is no object), "sigmoid" or "none"',
        )
    return likely


def _only(options: Table, role: str, found: list[str]) -> str:
    if len(found) != 1:
        options.refuse(role, f'the shapes of the outputs do not tell which one it is; write {role} = "NAME"')
    return found[0]
