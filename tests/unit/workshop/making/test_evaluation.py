"""What accuracy is for each task, with a truth and without."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gateway.common.domain.errors import VariantError
from gateway.common.domain.manifest import ModelManifest, TensorSpec
from gateway.common.domain.tensor import Array, Datatype
from gateway.serving.domain.golden import GoldenSet
from gateway.serving.tasks.catalog import TASKS
from gateway.serving.tasks.frame import Frame
from gateway.serving.tasks.run_lengths import encode_region
from gateway.workshop.making.evaluation import Evaluation, make_evaluation
from gateway.workshop.making.metrics.average_precision import Objects
from gateway.workshop.making.metrics.boxes import Boxes
from gateway.workshop.making.metrics.class_iou import ClassRuns
from gateway.workshop.making.metrics.masks import Masks
from gateway.workshop.making.metrics.points import PointShapes
from gateway.workshop.making.metrics.polygons import Polygons
from gateway.workshop.making.metrics.roc_auc import AnomalyVerdict
from gateway.workshop.making.samples import SampleSet
from gateway.workshop.making.truth.kinds import TruthKind, truth_kind
from tests.simulators.vision_models import yolov8_output

ROWS = TensorSpec("x", Datatype.FP32, (-1, 4))
PHOTO = TensorSpec("images", Datatype.FP32, (-1, 3, 64, 64), "NCHW")


def model(
    kind: str,
    shape: tuple[int, ...],
    labels: tuple[str, ...] = (),
    inputs: TensorSpec = ROWS,
    **options: object,
) -> ModelManifest:
    output = TensorSpec("y", Datatype.FP32, (-1, *shape))
    return ModelManifest("m", "1", (inputs,), (output,), (), kind, labels=labels, batch=True, task_options=options)


def evaluation(
    manifest: ModelManifest,
    reference: Array,
    truth: Sequence[Any] | None = None,
    labels: Sequence[int] | None = None,
    frames: tuple[Frame, ...] = (),
) -> tuple[Evaluation, list[str]]:
    """Return how variants are measured whose reference gives `reference`, on samples with this truth."""
    inputs = {"x": np.zeros((len(reference), 4), np.float32)}
    numbers = None if labels is None else np.array(labels)
    samples = SampleSet(inputs, numbers, "", len(reference), frames, None if truth is None else tuple(truth))
    return make_evaluation(manifest, GoldenSet(inputs, {"y": reference}, numbers), samples, "onnx-fp32")


def detections(*boxes: tuple[float, float, float, float], score: float = 0.9) -> Array:
    """Return an output of a YOLOv8 head [6, 84] with boxes x1, y1, x2, y2 of class 1 in pixels of the input."""
    places = np.array(boxes, float).reshape(-1, 4)
    centres = np.concatenate(((places[:, :2] + places[:, 2:]) / 2, places[:, 2:] - places[:, :2]), axis=1)
    return yolov8_output(centres, np.full(len(places), score), np.ones(len(places), int), labels=2, count=84)


def annotated(*boxes: tuple[float, float, float, float]) -> Objects:
    shape = np.array(boxes, float).reshape(-1, 4)
    return Objects(np.ones(len(shape), int), np.ones(len(shape)), np.zeros(len(shape), bool), Boxes(shape))


DETECTOR = model("object-detection", (6, 84), ("cat", "dog"), PHOTO)
SCORES = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7]], np.float32)


def test_boxes_are_compared_in_pixels_of_the_original_image() -> None:
    frames = (Frame(128, 128, 0.5, 0.5), Frame(64, 64))
    reference = np.stack([detections((10, 10, 30, 30)), detections((40, 40, 60, 60))])
    truth = [annotated((20, 20, 60, 60)), annotated((40, 40, 60, 60))]
    found, remarks = evaluation(DETECTOR, reference, truth, frames=frames)
    assert found.quality({"y": reference}).accuracy == 1.0
    assert found.basis.described == "mAP at IoU 0.5, annotated boxes, 2 held-out samples"
    assert (found.basis.name, remarks) == ("map-50", [])
    moved = np.stack([reference[0], detections((0, 0, 20, 20))])
    assert found.quality({"y": moved}).accuracy == pytest.approx(51 / 101)


def test_a_score_below_the_threshold_of_serving_is_an_object_that_is_not_found() -> None:
    reference = np.stack([detections((10, 10, 30, 30))] * 2)
    found, _ = evaluation(DETECTOR, reference)
    paler = np.stack([reference[0], detections((10, 10, 30, 30), score=0.2)])
    assert found.basis.words == "mAP at IoU 0.5 against onnx-fp32"
    assert found.quality({"y": paler}).accuracy == pytest.approx(51 / 101)


def test_samples_without_an_annotation_are_not_judged() -> None:
    reference = np.stack([detections((10, 10, 30, 30)), detections((40, 40, 60, 60))])
    found, _ = evaluation(DETECTOR, reference, [annotated((10, 10, 30, 30)), None])
    assert found.basis.samples == 1
    assert found.quality({"y": np.stack([reference[0], detections()])}).accuracy == 1.0


def test_where_nothing_is_annotated_or_found_the_next_measure_is_taken_and_told() -> None:
    reference = np.stack([detections((10, 10, 30, 30)), detections()])
    found, (remark,) = evaluation(DETECTOR, reference, [annotated(), annotated()])
    assert found.basis.words == "mAP at IoU 0.5 against onnx-fp32"
    assert remark.startswith("the boxes of the held-out samples do not define mAP at IoU 0.5")
    nothing, (remark,) = evaluation(DETECTOR, np.stack([detections(), detections()]))
    assert nothing.basis.name == "similarity"
    assert remark.startswith("onnx-fp32 finds nothing in the held-out samples")


def test_classes_are_right_or_those_of_the_reference() -> None:
    manifest = model("image-classification", (2,), ("a", "b"))
    answers = SCORES[[0, 0, 2, 3]]
    labelled, _ = evaluation(manifest, SCORES, labels=[0, 1, 1, 1])
    assert labelled.quality({"y": answers}).accuracy == 0.5
    assert labelled.basis.described == "share of right classes, 4 held-out samples"
    alone, _ = evaluation(manifest, SCORES)
    assert alone.quality({"y": answers}).accuracy == 0.75
    assert alone.basis.words == "share of samples with the class of onnx-fp32"


def test_texts_have_error_rates() -> None:
    manifest = model("text-recognition", (4, 3), charset="ab")
    rows = np.eye(3, dtype=np.float32)[[[1, 0, 2, 0], [2, 2, 0, 1], [1, 1, 1, 1]]]  # ab, ba, a
    found, _ = evaluation(manifest, rows, ["ab", "bb", "a"])
    quality = found.quality({"y": rows})
    assert quality.accuracy == pytest.approx(1 - 1 / 5)
    assert quality.figures == pytest.approx({"word error rate": 1 / 3, "exact texts": 2 / 3})
    assert found.basis.words == "1 less the character error rate, annotated texts"


@pytest.mark.parametrize("side", ["above", "below"])
def test_anomalies_have_an_auc_or_else_the_verdicts_of_the_reference(side: str) -> None:
    from sklearn.metrics import roc_auc_score

    manifest = model("anomaly-detection", (), score="y", threshold=0.5, anomalous=side)
    scores, flags = np.array([0.1, 0.4, 0.35, 0.8], np.float32), [False, False, True, True]
    truth = [AnomalyVerdict(math.nan, flag) for flag in flags]
    found, _ = evaluation(manifest, scores, truth)
    wanted = roc_auc_score(flags, scores if side == "above" else -scores)
    assert found.quality({"y": scores}).accuracy == pytest.approx(wanted)
    assert found.basis.name == "auc"
    normal, (remark,) = evaluation(manifest, scores, truth[:2] * 2)
    assert normal.basis.words == "share of samples with the verdict of onnx-fp32"
    assert normal.quality({"y": scores + np.float32(0.12)}).accuracy == 0.75
    assert "do not define AUC (all are alike" in remark


def test_values_explain_a_share_of_the_deviation_in_their_units() -> None:
    from sklearn.metrics import d2_absolute_error_score

    manifest = model("tabular-regression", (2,), names=["w", "h"], scale=[10.0], offset=[1.0])
    truth = np.array([[1.0, 2.0], [3.0, 5.0], [4.0, 7.0]])
    reference = ((truth + [[0.5, -1.0]] * 3 - 1) / 10).astype(np.float32)
    found, _ = evaluation(manifest, reference, [row[np.newaxis] for row in truth])
    quality = found.quality({"y": reference})
    assert quality.accuracy == pytest.approx(d2_absolute_error_score(truth, truth + [[0.5, -1.0]] * 3))
    assert quality.figures == pytest.approx({"MAE": 0.75})
    worse = found.quality({"y": reference * 100})
    assert worse.accuracy == 0.0
    assert found.quality({"y": np.full_like(reference, np.nan)}).accuracy == 0.0


def test_of_quantiles_the_median_is_the_forecast() -> None:
    axes = {"axes": ["step", "quantile"], "quantiles": [0.1, 0.5, 0.9], "step": 1, "step_unit": "h"}
    manifest = model("time-series-forecasting", (2, 3), **axes)
    reference = np.array([[[0, 1, 9], [0, 2, 9]], [[0, 3, 9], [0, 5, 9]]], np.float32)
    truth = [each[:, 1:2].astype(float) for each in reference]
    found, _ = evaluation(manifest, reference, truth)
    assert found.quality({"y": reference}).accuracy == 1.0
    assert found.basis.words == "explained deviation (D²), values after the window"


def test_pixels_have_a_mean_iou() -> None:
    manifest = model("semantic-segmentation", (2, 2, 2), ("road", "sky"), PHOTO, layout="CHW")
    classes = np.array([[0, 1], [1, 1]])
    reference = np.stack([classes == 0, classes == 1]).astype(np.float32)[np.newaxis]
    truth = [ClassRuns.of(np.kron([[0, 1], [0, 1]], np.ones((32, 32), int)))]
    found, _ = evaluation(manifest, reference, truth)
    assert found.quality({"y": reference}).accuracy == pytest.approx((1 / 2 + 2 / 3) / 2)


def test_vectors_are_compared_with_those_of_the_reference() -> None:
    manifest = model("embedding", (2,))
    reference = np.array([[3.0, 0.0], [0.0, 2.0]], np.float32)
    found, _ = evaluation(manifest, reference)
    assert found.quality({"y": np.array([[1.0, 0.0], [1.0, 0.0]], np.float32)}).accuracy == pytest.approx(0.5)
    assert found.basis.words == "mean cosine similarity with onnx-fp32"


def test_a_model_without_a_task_is_measured_by_its_tensors() -> None:
    manifest = ModelManifest("m", "1", (ROWS,), (TensorSpec("y", Datatype.FP32, (-1, 2)),), (), "image-classification")
    found, _ = evaluation(manifest, SCORES)
    assert (found.basis.name, found.terms) == ("agreement", None)
    assert found.basis.words == "share of samples with the class of onnx-fp32"
    assert found.quality({"y": SCORES[[0, 0, 2, 3]]}).accuracy == 0.75


def test_outputs_that_the_task_does_not_know_are_an_error_of_the_variant() -> None:
    reference = np.stack([detections((10, 10, 30, 30))])
    found, _ = evaluation(DETECTOR, reference)
    with pytest.raises(VariantError, match="y"):
        found.quality({"y": reference[:, :5]})


def test_every_task_has_a_truth() -> None:
    kinds = {kind: truth_kind(model(kind, (2,))) for kind in TASKS}
    assert {kind for kind, truth in kinds.items() if truth is TruthKind.CLASSES} == {
        kind for kind in TASKS if kind.endswith("-classification") or kind == "keyword-spotting"
    }


def placed(box: tuple[float, float, float, float], *extras: float) -> Array:
    """Return an output of a YOLOv8 head [4 + 1 + extras, 84] with one box (centre, size) of class 0."""
    output = np.zeros((5 + len(extras), 84), np.float32)
    output[:, 3] = [*box, 0.9, *extras]
    return output


BOX = (32.0, 32.0, 16.0, 16.0)
POINTS = (28.0, 30.0, 0.9, 36.0, 30.0, 0.9)
CORNERS = np.array([[[24.0, 24.0], [40.0, 24.0], [40.0, 40.0], [24.0, 40.0]]])
ONE = (np.zeros(1, int), np.ones(1), np.zeros(1, bool))


@pytest.mark.parametrize(
    ("manifest", "reference", "truth", "worse"),
    [
        (
            model("oriented-boxes", (6, 84), ("boat",), PHOTO),
            placed(BOX, 0.0),
            Objects(*ONE, Polygons(CORNERS)),
            placed((32, 32, 32, 8), 0.5),
        ),
        (
            model("keypoints", (11, 84), ("hand",), PHOTO, keypoints=["a", "b"]),
            placed(BOX, *POINTS),
            Objects(
                *ONE,
                PointShapes(
                    np.array([[[28.0, 30.0], [36.0, 30.0]]]),
                    np.ones((1, 2), bool),
                    np.array([100.0]),
                    np.array([[24.0, 24.0, 40.0, 40.0]]),
                ),
            ),
            placed(BOX, 60.0, 60.0, 0.9, 4.0, 60.0, 0.9),
        ),
    ],
)
def test_rotated_boxes_and_points_have_overlaps_of_their_own(
    manifest: ModelManifest, reference: Array, truth: Objects, worse: Array
) -> None:
    for expected in ([truth], None):
        found, remarks = evaluation(manifest, reference[np.newaxis], expected)
        assert (found.basis.name, remarks) == ("map-50", [])
        assert found.quality({"y": reference[np.newaxis]}).accuracy == 1.0
        assert found.quality({"y": worse[np.newaxis]}).accuracy == 0.0


def test_masks_of_instances_are_compared_not_their_boxes() -> None:
    outputs = (TensorSpec("y", Datatype.FP32, (-1, 6, 84)), TensorSpec("p", Datatype.FP32, (-1, 1, 16, 16), "NCHW"))
    manifest = replace(model("instance-segmentation", (6, 84), ("leaf",), PHOTO), outputs=outputs)
    inputs, whole = {"x": np.zeros((1, 4), np.float32)}, np.full((1, 1, 16, 16), 9, np.float32)
    left = whole.copy()
    left[..., 7:] = -9
    golden = GoldenSet(inputs, {"y": placed(BOX, 1.0)[np.newaxis], "p": whole})
    region = np.zeros((64, 64), bool)
    region[24:40, 24:40] = True
    truth = Objects(*ONE, Masks((64, 64), [encode_region(region, 0, 0, (64, 64))]))
    for expected in ((truth,), None):
        found, _ = make_evaluation(manifest, golden, SampleSet(inputs, None, "", 1, (), expected), "onnx-fp32")
        assert found.quality(golden.outputs).accuracy == 1.0
        assert found.quality({**golden.outputs, "p": left}).accuracy == 0.0


def test_a_reconstruction_is_compared_with_its_input() -> None:
    manifest = model("anomaly-detection", (4,), reconstruction="y", threshold=0.5)
    inputs = np.arange(8, dtype=np.float32).reshape(2, 4)
    golden = GoldenSet({"x": inputs}, {"y": inputs + np.float32([[0.1], [1]])})
    truth = (AnomalyVerdict(math.nan, False), AnomalyVerdict(math.nan, True))
    found, _ = make_evaluation(manifest, golden, SampleSet({"x": inputs}, None, "", 2, (), truth), "onnx-fp32")
    quality = found.quality(golden.outputs)
    assert (quality.accuracy, quality.figures) == (1.0, {"right verdicts": 1.0})
    assert found.quality({"y": inputs}).accuracy == 0.5


def test_labels_of_an_authors_golden_set_are_the_truth_of_classes_only() -> None:
    manifest = model("anomaly-detection", (), score="y", threshold=0.5)
    scores, label = np.array([0.1, 0.9], np.float32), np.array([0, 1])
    golden = GoldenSet({"x": np.zeros((2, 4), np.float32)}, {"y": scores}, label)
    assert make_evaluation(manifest, golden, None, "onnx-fp32")[0].basis.name == "verdicts"
    classes = replace(golden, outputs={"y": SCORES[:2]})
    assert make_evaluation(model("image-classification", (2,)), classes, None, "r")[0].basis.name == "labels"


def test_samples_of_a_model_without_rows_are_runs() -> None:
    manifest = replace(
        model("image-classification", (2,)), batch=False, outputs=(TensorSpec("y", Datatype.FP32, (1, 2)),)
    )
    found, _ = evaluation(
        replace(manifest, inputs=(replace(ROWS, shape=(4,)),)), SCORES[:, np.newaxis], labels=[0, 1, 1, 1]
    )
    assert found.quality({"y": SCORES[:, np.newaxis]}).accuracy == 0.75
