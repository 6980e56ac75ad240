"""Tasks that tensors tell."""

from __future__ import annotations

import pytest

from gateway.common.domain.manifest import TensorSpec
from gateway.common.domain.tensor import Datatype
from gateway.common.domain.verdict import Signature
from gateway.serving.tasks.catalog import TASKS
from gateway.workshop.making.task_proposal import TaskProposal, propose_task

PHOTO, VIDEO, FACE = (-1, 3, 640, 640), (1, 320, 320, 3), (1, 128, 128, 3)
COCO = tuple(map(str, range(80)))


def proposal(
    inputs: tuple[tuple[int, ...], ...],
    outputs: tuple[tuple[int, ...], ...],
    labels: tuple[str, ...] = (),
    *,
    types: tuple[Datatype, ...] = (),
    names: tuple[str, ...] = (),
) -> TaskProposal:
    kinds = types or (Datatype.FP32,) * len(outputs)
    called = names or tuple(f"y{index}" for index in range(len(outputs)))
    return propose_task(
        Signature(
            tuple(TensorSpec(f"x{index}", Datatype.FP32, shape) for index, shape in enumerate(inputs)),
            tuple(TensorSpec(*each) for each in zip(called, kinds, outputs, strict=True)),
        ),
        labels,
    )


@pytest.mark.parametrize(
    ("image", "outputs", "labels", "kind", "options"),
    [
        (PHOTO, ((-1, 84, 8400),), (), "object-detection", {"format": "yolov8", "classes": 80}),
        (PHOTO, ((-1, 84, 8400),), COCO, "object-detection", {"format": "yolov8", "classes": 80}),
        ((1, 3, 320, 480), ((1, 6, 3150),), (), "object-detection", {"format": "yolov8", "classes": 2}),
        ((-1, 3, -1, -1), ((-1, 22, -1),), (), "object-detection", {"format": "yolov8", "classes": 18}),
        (PHOTO, ((-1, 56, 8400),), (), "keypoints", {"format": "yolov8", "classes": 1, "points": 17, "values": 3}),
        (PHOTO, ((-1, 14, 8400),), ("person",), "keypoints", {"format": "yolov8", "classes": 1}),
        (PHOTO, ((-1, 85, 8400),), COCO, "oriented-boxes", {"format": "yolov8", "classes": 80}),
        (PHOTO, ((-1, 116, 8400), (-1, 32, 160, 160)), (), "instance-segmentation", {"classes": 80}),
        (PHOTO, ((-1, 25200, 85),), (), "object-detection", {"format": "yolov5", "classes": 80}),
        (PHOTO, ((-1, 300, 6),), (), "object-detection", {"format": "end-to-end"}),
        (PHOTO, ((-1, 8400, 85),), (), "object-detection", {"format": "yolox", "classes": 80}),
        (PHOTO, ((-1, 8400, 85),), COCO, "object-detection", {"format": "yolox"}),
        ((1, 3, 160, 160), ((1, 525, 6),), (), "object-detection", {"format": "yolox", "classes": 1}),
        (FACE, ((1, 896, 16), (1, 896, 1)), (), "keypoints", {"format": "mediapipe", "points": 6, "classes": 1}),
        (FACE, ((1, 896, 1), (1, 896, 16)), (), "keypoints", {"format": "mediapipe"}),
        ((1, 192, 192, 3), ((1, 2016, 18), (1, 2016, 1)), (), "keypoints", {"format": "mediapipe", "points": 7}),
        (VIDEO, ((1, 10, 4), (1, 10), (1, 10), (1,)), (), "object-detection", {"format": "ssd", "boxes": "y0"}),
        (PHOTO, ((-1, 100, 92), (-1, 100, 4)), (), "object-detection", {"boxes": "y1", "scores": "y0"}),
        (PHOTO, ((-1, 21, 640, 640),), (), "semantic-segmentation", {"classes": 21, "layout": "NCHW"}),
        (VIDEO, ((1, 80, 80, 5),), (), "semantic-segmentation", {"classes": 5, "layout": "NHWC"}),
        ((-1, 3, 48, -1), ((-1, -1, 6625),), (), "text-recognition", {"format": "ctc", "characters": 6625}),
        ((-1, 3, -1, -1), ((-1, -1, 40),), ("a",) * 38, "text-recognition", {"characters": 40}),
        (VIDEO, ((1, 1001),), (), "image-classification", {"classes": 1001, "scores": "y0"}),
        (PHOTO, ((-1, 1),), (), "tabular-regression", {"scores": "y0"}),
    ],
)
def test_models_of_images(
    image: tuple[int, ...], outputs: tuple[tuple[int, ...], ...], labels: tuple[str, ...], kind: str, options: object
) -> None:
    found = proposal((image,), outputs, labels)
    assert found.kind == kind
    assert isinstance(options, dict)
    assert options.items() <= dict(found.options).items()
    assert found.why
    assert kind in TASKS


@pytest.mark.parametrize(
    ("inputs", "outputs", "types", "kind"),
    [
        (((-1, 100, 6),), ((-1, 4),), (), "time-series-classification"),
        (((-1, 100, 6),), ((-1, 1),), (), "tabular-regression"),
        (((-1, 4),), ((-1,), (-1, 3)), (Datatype.INT64, Datatype.FP32), "tabular-classification"),
        (((-1, 4),), ((-1,), (-1, 3)), (Datatype.BYTES, Datatype.FP32), "tabular-classification"),
        (((-1, 1), (-1, 1)), ((-1, 3),), (), "tabular-classification"),
        (((-1, 4),), ((-1, 1),), (), "tabular-regression"),
    ],
)
def test_models_of_numbers(
    inputs: tuple[tuple[int, ...], ...], outputs: tuple[tuple[int, ...], ...], types: tuple[Datatype, ...], kind: str
) -> None:
    assert proposal(inputs, outputs, types=types).kind == kind


@pytest.mark.parametrize(
    ("channels", "labels", "named", "found"),
    [
        (1 + 21 * 3, 0, 21, ("keypoints", 21, 3, 1)),
        (2 + 4 * 2, 2, 4, ("keypoints", 4, 2, 2)),
        (1 + 4 * 2, 0, 4, ("keypoints", 4, 2, 1)),
        (2 + 17 * 3, 2, 0, ("keypoints", 17, 3, 2)),
        (80, 0, 30, ("object-detection", None, None, 80)),
        (80, 80, 17, ("object-detection", None, None, 80)),
    ],
)
def test_named_key_points_tell_their_number_and_values(
    channels: int, labels: int, named: int, found: tuple[str, int | None, int | None, int]
) -> None:
    image, output = TensorSpec("x", Datatype.FP32, PHOTO), TensorSpec("y", Datatype.FP32, (-1, 4 + channels, 8400))
    proposed = propose_task(Signature((image,), (output,)), COCO[:labels], named)
    options = proposed.options
    assert (proposed.kind, options.get("points"), options.get("values"), options["classes"]) == found


@pytest.mark.parametrize(
    ("columns", "named", "kind", "values"),
    [
        (57, 17, "keypoints", 3),
        (40, 17, "keypoints", 2),
        (6, 0, "object-detection", None),
        (6, 17, "object-detection", None),
    ],
)
def test_named_key_points_follow_boxes_after_suppression(
    columns: int, named: int, kind: str, values: int | None
) -> None:
    image, output = TensorSpec("x", Datatype.FP32, PHOTO), TensorSpec("y", Datatype.FP32, (-1, 300, columns))
    proposed = propose_task(Signature((image,), (output,)), ("person",), named)
    assert (proposed.kind, proposed.options.get("values")) == (kind, values)
    assert proposed.options["format"] == "end-to-end"


@pytest.mark.parametrize(
    ("name", "shape", "kind"),
    [
        ("sigmoid_0.tmp_0", (-1, 1, -1, -1), "oriented-boxes"),
        ("fetch_name_0", (-1, -1, -1, -1), "oriented-boxes"),
        ("fetch_name_0", (-1, 19, -1, -1), "semantic-segmentation"),
        ("mask", (-1, 1, -1, -1), "semantic-segmentation"),
    ],
)
def test_the_map_of_a_text_detector_is_known_by_the_names_of_paddle(
    name: str, shape: tuple[int, ...], kind: str
) -> None:
    image, output = TensorSpec("x", Datatype.FP32, (-1, 3, -1, -1)), TensorSpec(name, Datatype.FP32, shape)
    found = propose_task(Signature((image,), (output,)), ())
    assert found.kind == kind
    assert (found.options.get("format"), found.labels) == (
        ("db", ("text",)) if kind == "oriented-boxes" else (None, ())
    )
    other = propose_task(Signature((TensorSpec("image", Datatype.FP32, (-1, 3, -1, -1)),), (output,)), ())
    assert other.kind != "oriented-boxes"


def test_labels_that_do_not_fit_are_no_yolox() -> None:
    assert proposal((PHOTO,), ((-1, 8400, 84),), COCO).options.get("format") != "yolox"


def test_an_output_called_embedding_is_one_unless_there_are_labels() -> None:
    assert proposal((PHOTO,), ((-1, 3),), names=("embedding",)).kind == "embedding"
    assert proposal((PHOTO,), ((-1, 3),), ("a", "b", "c"), names=("embedding",)).kind == "image-classification"


def test_words_are_texts() -> None:
    inputs = (TensorSpec("input_ids", Datatype.INT64, (-1, -1)),)
    outputs = (TensorSpec("logits", Datatype.FP32, (-1, 2)),)
    assert propose_task(Signature(inputs, outputs), ()).kind == "text-classification"


def test_outlier_detectors_of_scikit_learn_are_no_regression() -> None:
    types, names = (Datatype.INT64, Datatype.FP32), ("label", "scores")
    found = proposal(((-1, 3),), ((-1, 1), (-1, 1)), types=types, names=names)
    table = {"score": "scores", "threshold": 0.0, "anomalous": "below"}
    assert (found.kind, found.table) == ("anomaly-detection", table)
    assert proposal(((-1, 3),), ((-1, 1), (-1, 1)), types=types, names=("label", "y")).kind == "tabular-regression"


@pytest.mark.parametrize("shape", [(-1, 1), (-1, 3)])
def test_text_outputs_are_no_scores(shape: tuple[int, ...]) -> None:
    assert proposal(((-1, 4),), (shape,), types=(Datatype.BYTES,)).kind == ""
    found = proposal(((-1, 4),), (shape, (-1, 2)), types=(Datatype.BYTES, Datatype.FP32))
    assert (found.kind, found.options) == ("tabular-classification", {"scores": "y1", "classes": 2})


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ((PHOTO,), ((-1, 84, 8401),)),
        ((PHOTO,), ((-1, 896, 16), (-1, 896, 1))),
        (((-1, 44100),), ((-1, 5),)),
        (((-1, 44100, 1),), ((-1, 172, 88),)),
        ((PHOTO,), ()),
    ],
)
def test_what_is_unknown_is_not_guessed(
    inputs: tuple[tuple[int, ...], ...], outputs: tuple[tuple[int, ...], ...]
) -> None:
    found = proposal(inputs, outputs)
    assert (found.kind, dict(found.options)) == ("", {})
    assert found.why
