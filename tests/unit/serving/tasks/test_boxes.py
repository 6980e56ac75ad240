"""Suppression of boxes, compared with ONNX Runtime's operator and OpenCV's functions."""

from __future__ import annotations

import cv2
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from gateway.common.domain.tensor import Array
from gateway.serving.tasks.boxes import from_centres, iou_overlaps, suppress
from gateway.serving.tasks.candidates import BoxCandidates, box_overlaps
from gateway.serving.tasks.detection_limits import DetectionLimits

SEEDS = st.integers(0, 2**32 - 1)


def limits(iou: float = 0.45, most: int = 300, *, agnostic: bool = False) -> DetectionLimits:
    return DetectionLimits(np.array([0.25], np.float32), iou, 30_000, most, agnostic)


def crowd(seed: int, count: int, classes: int = 3) -> BoxCandidates:
    """Return candidates that overlap often, best first, with scores that differ."""
    generator = np.random.default_rng(seed)
    corners = generator.random((count, 2)) * 200
    boxes = np.concatenate((corners, corners + 10 + generator.random((count, 2)) * 60), axis=1).astype(np.float32)
    scores = np.sort(generator.permutation(count) + 1)[::-1].astype(np.float32) / (count + 1)
    return BoxCandidates(
        boxes.astype(np.float64), scores, generator.integers(0, classes, count), np.arange(count)[:, np.newaxis]
    )


def kept(candidates: BoxCandidates, bounds: DetectionLimits) -> list[int]:
    return [int(index) for index in candidates.suppressed(bounds, box_overlaps).extras[:, 0]]


def session(iou: float, most: int) -> ort.InferenceSession:
    """Return ONNX Runtime's NonMaxSuppression with corners as they are."""
    inputs = [
        helper.make_tensor_value_info("boxes", TensorProto.FLOAT, (1, None, 4)),
        helper.make_tensor_value_info("scores", TensorProto.FLOAT, (1, None, None)),
    ]
    constants = [
        helper.make_tensor("most", TensorProto.INT64, (1,), [most]),
        helper.make_tensor("iou", TensorProto.FLOAT, (1,), [iou]),
    ]
    node = helper.make_node("NonMaxSuppression", ["boxes", "scores", "most", "iou"], ["chosen"])
    chosen = helper.make_tensor_value_info("chosen", TensorProto.INT64, (None, 3))
    graph = helper.make_graph([node], "nms", inputs, [chosen], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=8)
    onnx.checker.check_model(model)
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("classes", [1, 3, 30])  # few are compared all with all, many in pairs
@pytest.mark.parametrize("iou", [0.2, 0.45, 0.7])
@given(seed=SEEDS)
def test_onnx_runtime_keeps_the_same_boxes(iou: float, classes: int, seed: int) -> None:
    candidates = crowd(seed, 300, classes)
    scores = np.zeros((1, classes, 300), np.float32)
    scores[0, candidates.classes, np.arange(300)] = candidates.scores
    boxes = candidates.boxes.astype(np.float32)[np.newaxis, :, [1, 0, 3, 2]]
    (chosen,) = session(iou, 300).run(None, {"boxes": boxes, "scores": scores})
    real = [int(index) for _, of, index in chosen if scores[0, of, index] > 0]
    assert kept(candidates, limits(iou)) == sorted(real)


@pytest.mark.parametrize("iou", [0.2, 0.45, 0.7])
@given(seed=SEEDS)
def test_opencv_keeps_the_same_boxes(iou: float, seed: int) -> None:
    candidates = crowd(seed, 300)
    sized = candidates.boxes.copy()
    sized[:, 2:] -= sized[:, :2]
    scores = candidates.scores.tolist()
    agnostic = cv2.dnn.NMSBoxes(sized.tolist(), scores, 0.0, iou)
    assert kept(candidates, limits(iou, agnostic=True)) == sorted(agnostic)
    by_class = cv2.dnn.NMSBoxesBatched(sized.tolist(), scores, candidates.classes.tolist(), 0.0, iou)
    assert kept(candidates, limits(iou)) == sorted(by_class)


@given(seed=SEEDS, count=st.integers(0, 400), most=st.integers(1, 50))
def test_a_bound_keeps_the_best_of_what_remains(seed: int, count: int, most: int) -> None:
    candidates = crowd(seed, count)
    assert kept(candidates, limits(most=most)) == kept(candidates, limits(most=3000))[:most]


def test_a_kept_box_suppresses_but_a_dropped_one_does_not() -> None:
    """Box 1 overlaps 0 and 2; 0 and 2 do not overlap."""
    chain = np.array([[0, 0, 10, 10], [4, 0, 14, 10], [8, 0, 18, 10]], np.float64)
    assert suppress(3, iou_overlaps(chain.T, 0.3), 3).tolist() == [0, 2]


def all_with_all(boxes: Array, threshold: float) -> Array:
    indices = np.arange(len(boxes))
    return iou_overlaps(boxes.T, threshold)(indices[:, np.newaxis], indices)


def test_iou_at_the_threshold_does_not_suppress() -> None:
    half = np.array([[0, 0, 10, 10], [0, 0, 10, 5]], np.float64)
    assert all_with_all(half, 0.5).tolist() == [[True, False], [False, True]]
    assert all_with_all(half, 0.49).all()


def test_boxes_without_area_suppress_nothing() -> None:
    assert not all_with_all(np.zeros((3, 4)), 0.0).any()


def test_boxes_apart_on_both_axes_suppress_nothing() -> None:
    assert all_with_all(np.array([[0, 0, 4, 4], [8, 8, 12, 12.0]]), 0.0).tolist() == [[True, False], [False, True]]


def test_an_iou_threshold_of_one_suppresses_nothing() -> None:
    assert not all_with_all(np.tile([0.0, 0.0, 10.0, 10.0], (3, 1)), 1.0).any()


def test_centres_become_corners() -> None:
    assert from_centres(np.array([[10, 20, 4, 6]], np.float32)).tolist() == [[8.0, 17.0, 12.0, 23.0]]
