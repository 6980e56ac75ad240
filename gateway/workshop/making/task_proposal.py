"""Task of a model, proposed from its tensors and labels. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.common.domain.manifest import ROWS, TensorSpec
from gateway.common.domain.tensor import Datatype
from gateway.common.domain.verdict import Signature
from gateway.serving.tasks.cell_grid import anchors
from gateway.workshop.making.tensor_guesses import ImageGuess, guess_image

STRIDES_PX = (8, 16, 32)
"""Strides of the three feature maps of YOLO heads."""
YOLOV5_ANCHORS = 3
"""Anchors of each cell of YOLOv5's feature maps."""
POSE_POINTS = 17
"""Key points of a person (COCO), which a YOLOv8 pose head has unless labels or names tell others."""
POINT_VALUES = (3, 2)
"""Values of a key point: x, y and mostly a score."""
BOXES_LIMIT = 1_000
"""Most boxes of a head with suppression inside."""
LINE_HEIGHT_PX = 64
"""Greatest height of an input that is taken for a line of text."""
COLUMNS_LIMIT = 1_000
"""Most columns of an input that is taken for a row of a table; a longer one is a signal."""
OUTLIERS = [("label", False, (1,)), ("scores", True, (1,))]
"""Outputs of skl2onnx for outlier detectors (`decision_function`): name, whether it has floats, shape of a row."""
FACE_POINTS = ("right_eye", "left_eye", "nose", "mouth", "right_ear", "left_ear")
PALM_POINTS = ("wrist", "index_mcp", "middle_mcp", "ring_mcp", "pinky_mcp", "thumb_cmc", "thumb_mcp")
MEDIAPIPE: Mapping[int, tuple[str, str, tuple[str, ...]]] = {
    4: ("person", "signed-unit", ("hips", "body_rim", "shoulders", "upper_body_rim")),
    6: ("face", "signed-unit", FACE_POINTS),
    7: ("palm", "unit", PALM_POINTS),
}
"""Detectors of MediaPipe by the number of their points: label, range of pixels, names of the points."""
TEXT_MAP = re.compile(r"sigmoid_|fetch_name_|save_infer_model")
"""Beginnings of the names of outputs that Paddle's exporters give."""
TEXT_SIDE_PX = 960
"""Side to which PaddleOCR shrinks pages for its text detector."""
_FLOATS = frozenset({Datatype.FP16, Datatype.BF16, Datatype.FP32, Datatype.FP64})


@dataclass(frozen=True, slots=True)
class TaskProposal:
    """Proposed task ("": none fits), its options, and the reason for people.

    Options: `classes` (number of names that the outputs need), `points` (number of key points, of `values` each),
    `format` of the outputs, and names of outputs by their role. `table`: keys of the table `[task]` that the tensors or
    the author tell. Of a known family of models: `image` are its `range` of pixels and keys of `[input.preprocess]`,
    `labels` its classes.
    """

    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""
    table: Mapping[str, Any] = field(default_factory=dict)
    image: Mapping[str, Any] = field(default_factory=dict)
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Tensors:
    """Tensors of a model: `image` is what its image input says, None without one.

    `points` is the number of key points that the author names, 0: none.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    labels: tuple[str, ...]
    image: ImageGuess | None
    points: int

    @property
    def first(self) -> tuple[int, ...]:
        return self.outputs[0].shape

    @property
    def cells(self) -> int:
        """Return the number of cells of a YOLO head for the image's size; -1 if it is open."""
        if self.image is None or ROWS in (self.image.height, self.image.width):
            return ROWS
        return sum((self.image.height // stride) * (self.image.width // stride) for stride in STRIDES_PX)


def propose_task(signature: Signature, labels: Sequence[str], points: int = 0) -> TaskProposal:
    """Return the task that the tensors and the numbers of labels and of named key points (0: none) tell.

    `signature` may name layouts of its inputs.
    """
    images = filter(None, map(guess_image, signature.inputs))
    outputs = tuple(spec for spec in signature.outputs if spec.datatype is not Datatype.BYTES)
    tensors = _Tensors(signature.inputs, outputs, tuple(labels), next(images, None), points)
    if not tensors.outputs:
        return TaskProposal("", why="no task is known for a model without numeric outputs")
    found = (rule(tensors) for rule in (_OF_IMAGES if tensors.image else _OF_OTHERS))
    return next(filter(None, found), TaskProposal("", why=f"no task is known for {_shapes(tensors.outputs)}"))


def _text_line(tensors: _Tensors) -> TaskProposal | None:
    """Propose CTC: scores [rows, steps, characters and a blank] of an image that is one line high."""
    shape, image = tensors.first, tensors.image
    if image is None or len(tensors.outputs) != 1 or len(shape) != 3 or shape[2] < 3:
        return None
    extra = shape[2] - len(tensors.labels)
    is_line = 0 < image.height <= LINE_HEIGHT_PX and (image.width == ROWS or image.width > image.height)
    if extra not in {0, 1, 2} if tensors.labels else not is_line:
        return None
    options = {"format": "ctc", "characters": shape[2]}
    return TaskProposal("text-recognition", options, f"{_shapes(tensors.outputs)} of a line of text are CTC scores")


def _ssd(tensors: _Tensors) -> TaskProposal | None:
    """Propose the four outputs of TensorFlow's detection postprocess: boxes, classes, scores, number."""
    by_rank = sorted(tensors.outputs, key=lambda spec: -len(spec.shape))
    ranks = [len(spec.shape) for spec in by_rank]
    if ranks not in ([3, 2, 2, 1], [3, 2, 2, 2]) or by_rank[0].shape[2] != 4:
        return None
    names = [spec.name for spec in by_rank]
    options = dict(zip(("boxes", "classes_output", "scores", "number"), names, strict=True))
    why = "four outputs: boxes, classes, scores and their number, as of TensorFlow's detection models"
    return TaskProposal("object-detection", {"format": "ssd", **options}, why)


def _yolov8(tensors: _Tensors) -> TaskProposal | None:
    """Propose a head [rows, 4 + classes + extras, cells], with a second output if it has masks."""
    shape = tensors.first
    if len(shape) != 3 or shape[1] < 5 or not _agree(shape[2], tensors.cells, more_than=4 * shape[1]):
        return None
    masks = next((spec.shape[1] for spec in tensors.outputs[1:] if len(spec.shape) == 4), 0)
    channels = shape[1] - 4 - masks
    points, values = (0, 0) if masks else _points(channels, len(tensors.labels), tensors.points)
    kind, classes = ("keypoints", channels - points * values) if points else _head(channels, tensors, masks)
    why = f"{_shapes(tensors.outputs)} is a YOLOv8 head: 4 numbers of a box and {channels} others for each cell"
    options = {"format": "yolov8", "classes": classes} | ({"points": points, "values": values} if points else {})
    return TaskProposal(kind, options, why)


def _points(channels: int, labels: int, named: int) -> tuple[int, int]:
    """Return the number of key points of a YOLOv8 head with `channels` next to the box, and the values of each.

    `labels` and `named` points are the author's (0: not known). (0, 0): it has none.
    """
    if named:
        return next(((named, values) for values in POINT_VALUES if channels - values * named == (labels or 1)), (0, 0))
    extra = channels - labels if labels else 0
    if extra > 0 and extra % POINT_VALUES[0] == 0:
        return extra // POINT_VALUES[0], POINT_VALUES[0]
    return (POSE_POINTS, POINT_VALUES[0]) if not labels and channels == 1 + POSE_POINTS * POINT_VALUES[0] else (0, 0)


def _head(channels: int, tensors: _Tensors, masks: int) -> tuple[str, int]:
    """Return the kind and the number of classes of a YOLOv8 head without points."""
    if masks:
        return "instance-segmentation", channels
    if tensors.labels and channels == len(tensors.labels) + 1:
        return "oriented-boxes", len(tensors.labels)
    return "object-detection", channels


def _yolov5(tensors: _Tensors) -> TaskProposal | None:
    """Propose a head [rows, 3 · cells, 5 + classes]."""
    shape, cells = tensors.first, tensors.cells
    if len(shape) != 3 or shape[2] < 6 or ROWS in (shape[1], cells) or shape[1] != YOLOV5_ANCHORS * cells:
        return None
    options = {"format": "yolov5", "classes": shape[2] - 5}
    return TaskProposal("object-detection", options, f"{_shapes(tensors.outputs)} is a YOLOv5 head")


def _yolox(tensors: _Tensors) -> TaskProposal | None:
    """Propose a head [rows, cells, 5 + classes] of boxes relative to cells."""
    shape, labels = tensors.first, len(tensors.labels)
    if len(tensors.outputs) != 1 or len(shape) != 3 or shape[2] < 6 or shape[1] == ROWS or shape[1] != tensors.cells:
        return None
    if labels and labels + 5 != shape[2]:
        return None
    image = {"range": "pixels", "color": "bgr", "align": "top-left", "pad_value": 114}
    why = f"{_shapes(tensors.outputs)} is a YOLOX head: 5 numbers and the classes of each cell"
    return TaskProposal("object-detection", {"format": "yolox", "classes": shape[2] - 5}, why, image=image)


def _mediapipe(tensors: _Tensors) -> TaskProposal | None:
    """Propose boxes and points [rows, anchors, 4 + 2 · points] and logits [rows, anchors, 1]."""
    image, shapes = tensors.image, sorted(spec.shape for spec in tensors.outputs)
    if image is None or [len(shape) for shape in shapes] != [3, 3] or shapes[0][2] != 1 or shapes[1][2] % 2:
        return None
    known = MEDIAPIPE.get(shapes[1][2] // 2 - 2)
    if known is None or anchors((image.width, image.height), shapes[1][1]) is None:
        return None
    label, pixels, points = known
    options = {"format": "mediapipe", "classes": 1, "points": len(points), "keypoints": points}
    table = {"score_threshold": 0.5, "iou_threshold": 0.3, "merge": True}
    why = f"{_shapes(tensors.outputs)} are boxes and points at MediaPipe's anchors"
    return TaskProposal("keypoints", options, why, table, {"range": pixels}, (label,))


def _text_boxes(tensors: _Tensors) -> TaskProposal | None:
    """Propose the map of PaddleOCR's text detector, by the names that Paddle's exporters give."""
    (spec, *others), image = tensors.outputs, tensors.image
    known = tensors.inputs[0].name == "x" and TEXT_MAP.match(spec.name)
    if others or image is None or not known or len(spec.shape) != 4 or spec.shape[1] not in {1, ROWS}:
        return None
    given = {"range": "signed-unit", "color": "bgr", "align": "top-left", "resize": (TEXT_SIDE_PX, TEXT_SIDE_PX)}
    why = f"{_shapes(tensors.outputs)} is the map of a text detector, by its name one of PaddleOCR"
    options, table = {"format": "db", "classes": 1}, {"score_threshold": 0.5}
    return TaskProposal("oriented-boxes", options, why, table, given, ("text",))


def _end_to_end(tensors: _Tensors) -> TaskProposal | None:
    """Propose boxes after suppression: [rows, boxes, 6] with corners, score and class, then key points with names."""
    shape, points = tensors.first, tensors.points
    values = next((each for each in (0, *POINT_VALUES) if shape[2:] == (6 + each * points,)), None)
    if len(tensors.outputs) != 1 or values is None or shape[1] > BOXES_LIMIT:
        return None
    return TaskProposal(
        "keypoints" if values else "object-detection",
        {"format": "end-to-end"} | ({"points": points, "values": values} if values else {}),
        f"{_shapes(tensors.outputs)}: two corners, score and class of each box{f', {points} points' if values else ''}",
    )


def _boxes_and_scores(tensors: _Tensors) -> TaskProposal | None:
    """Propose two outputs [rows, boxes, 4] and [rows, boxes, classes]."""
    if len(tensors.outputs) != 2 or any(len(spec.shape) != 3 for spec in tensors.outputs):
        return None
    boxes = next((spec for spec in tensors.outputs if spec.shape[2] == 4), None)
    scores = next((spec for spec in tensors.outputs if spec is not boxes), None)
    if boxes is None or scores is None or boxes.shape[1] != scores.shape[1] or scores.shape[2] < 1:
        return None
    options = {"format": "boxes-scores", "boxes": boxes.name, "scores": scores.name, "classes": scores.shape[2]}
    return TaskProposal("object-detection", options, f"{_shapes(tensors.outputs)} are boxes and scores of classes")


def _segmentation(tensors: _Tensors) -> TaskProposal | None:
    """Propose scores of classes for each pixel: an output of rank 4."""
    if len(tensors.outputs) != 1 or len(tensors.first) != 4 or tensors.image is None:
        return None
    place = tensors.image.layout.index("C")
    classes = tensors.first[place]
    sides = [size for axis, size in enumerate(tensors.first[1:], 1) if axis != place]
    if classes < 1 or any(0 < size < 4 for size in sides):
        return None
    options = {"classes": classes, "layout": tensors.image.layout}
    return TaskProposal("semantic-segmentation", options, f"{_shapes(tensors.outputs)} are scores of each pixel")


def _image_classes(tensors: _Tensors) -> TaskProposal | None:
    return _vector(tensors, "image-classification")


def _series(tensors: _Tensors) -> TaskProposal | None:
    if len(tensors.inputs) != 1 or len(tensors.inputs[0].shape) != 3 or tensors.inputs[0].datatype not in _FLOATS:
        return None
    return _vector(tensors, "time-series-classification")


def _text(tensors: _Tensors) -> TaskProposal | None:
    tokens = any("input_ids" in spec.name or spec.datatype is Datatype.BYTES for spec in tensors.inputs)
    return _vector(tensors, "text-classification") if tokens else None


def _table(tensors: _Tensors) -> TaskProposal | None:
    """Propose classes or numbers from rows of a table: one input [rows, columns], or one for each column."""
    kinds = [(spec.name, spec.datatype in _FLOATS, spec.shape[1:]) for spec in tensors.outputs]
    if kinds == OUTLIERS:
        table = {"score": "scores", "threshold": 0.0, "anomalous": "below"}
        why = "a label and a score of each row, as of scikit-learn's outlier detectors: below 0 is an outlier"
        return TaskProposal("anomaly-detection", why=why, table=table)
    columns = [spec.shape[1] if len(spec.shape) == 2 else 1 for spec in tensors.inputs]
    if any(len(spec.shape) > 2 for spec in tensors.inputs) or sum(columns) > COLUMNS_LIMIT:
        return None
    return _vector(tensors, "tabular-classification")


def _vector(tensors: _Tensors, kind: str) -> TaskProposal | None:
    """Propose `kind` for one output [rows, classes], also next to the best class, or a number for [rows, 1]."""
    scores = [spec for spec in tensors.outputs if spec.datatype in _FLOATS or len(tensors.outputs) == 1]
    others = [spec for spec in tensors.outputs if spec not in scores]
    if len(scores) != 1 or len(scores[0].shape) != 2 or any(len(spec.shape) > 2 for spec in others):
        return None
    spec, classes = scores[0], scores[0].shape[1]
    if any(word in spec.name.lower() for word in ("embed", "feature")) and not tensors.labels:
        return TaskProposal("embedding", {"scores": spec.name}, f"the output is called {spec.name!r}")
    if classes == 1:
        return TaskProposal(
            "tabular-regression", {"scores": spec.name}, f"{_shapes((spec,))} is one number for each row"
        )
    options = {"scores": spec.name} | ({"classes": classes} if classes > 0 else {})
    return TaskProposal(kind, options, f"{_shapes((spec,))} are scores of classes")


def _agree(size: int, cells: int, *, more_than: int) -> bool:
    """Return True if a dimension may be the number of cells: equal, or one of them open and the other not small."""
    if ROWS in (size, cells):
        return size == ROWS or size > more_than
    return size == cells


def _shapes(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(f"{spec.name} {list(spec.shape)}" for spec in specs[:4])


_Rule = Callable[[_Tensors], TaskProposal | None]
_OF_IMAGES: Sequence[_Rule] = (
    _text_line,
    _ssd,
    _mediapipe,
    _text_boxes,
    _yolox,
    _yolov5,
    _end_to_end,
    _yolov8,
    _boxes_and_scores,
    _segmentation,
    _image_classes,
)
_OF_OTHERS: Sequence[_Rule] = (_series, _text, _table)
