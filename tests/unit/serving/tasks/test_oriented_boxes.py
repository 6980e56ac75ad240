"""Oriented boxes: corners of OpenCV, overlaps by the equations of the paper, suppression by both."""

from __future__ import annotations

import json
import math

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.tensor import Array
from gateway.serving.tasks.boxes import from_centres
from gateway.serving.tasks.candidates import BoxCandidates
from gateway.serving.tasks.catalog import TASKS
from gateway.serving.tasks.frame import Frame, place
from gateway.serving.tasks.oriented_boxes import OrientedBoxes, OrientedResult
from gateway.serving.tasks.rectangles import corners_of, rectangle_overlaps
from tests.simulators.vision_models import options, vision_model

TWO = ("ship", "plane")
SEEDS = st.integers(0, 2**32 - 1)


def output(rectangles: Array, scores: Array, classes: Array) -> Array:
    """Return an output of YOLOv8-obb with rectangles [n, 5]: centre, size, angle."""
    made = np.zeros((7, 60), np.float32)
    count = len(rectangles)
    made[:4, :count], made[6, :count] = rectangles[:, :4].T, rectangles[:, 4]
    made[4 + classes, np.arange(count)] = scores
    return made


def detect(made: Array, frame: Frame | None = None, text: str = "") -> OrientedResult:
    model = vision_model({"output0": (7, -1)}, TWO)
    return OrientedBoxes(model, options(text)).interpret({"output0": made}, frame)


def rectangles(seed: int, count: int, spread: float = 100) -> Array:
    generator = np.random.default_rng(seed)
    centres, sides = generator.random((count, 2)) * spread + 250, generator.random((count, 2)) * 60 + 10
    return np.concatenate((centres, sides, generator.uniform(-math.pi / 4, 3 * math.pi / 4, (count, 1))), axis=1)


def opencv_rectangle(rectangle: Array) -> tuple[tuple[float, float], tuple[float, float], float]:
    x, y, width, height, angle = rectangle.tolist()
    return (x, y), (width, height), math.degrees(angle)


@given(seed=SEEDS)
def test_corners_are_those_of_opencv(seed: int) -> None:
    made = rectangles(seed, 5)
    found = corners_of(from_centres(made[:, :4]), made[:, 4])
    for rectangle, corners in zip(made, found, strict=True):
        points = cv2.boxPoints(opencv_rectangle(rectangle))
        assert np.abs(corners[:, np.newaxis] - points).sum(axis=2).min(axis=1).max() < 1e-2
        assert cv2.contourArea(corners.astype(np.float32)) == pytest.approx(rectangle[2] * rectangle[3], rel=1e-3)


def paper_overlap(first: Array, second: Array) -> float:
    """Return ProbIoU by matrices, as the paper writes it: the Bhattacharyya and Hellinger distances of two normals."""

    def normal(rectangle: Array) -> tuple[Array, Array]:
        x, y, width, height, angle = rectangle
        turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
        return np.array([x, y]), turn @ np.diag([width**2 / 12, height**2 / 12]) @ turn.T

    (mean, spread), (other_mean, other_spread) = normal(first), normal(second)
    middle = (spread + other_spread) / 2
    difference = mean - other_mean
    distance = difference @ np.linalg.inv(middle) @ difference / 8
    shapes = np.linalg.det(spread) * np.linalg.det(other_spread)
    distance += math.log(np.linalg.det(middle) / math.sqrt(shapes)) / 2
    return 1 - math.sqrt(max(0.0, 1 - math.exp(-distance)))


def overlapping(made: Array, threshold: float) -> Array:
    count = len(made)
    boxes, angles = from_centres(made[:, :4]), made[:, 4:]
    candidates = BoxCandidates(boxes, np.ones(count), np.zeros(count, int), angles)
    return rectangle_overlaps(candidates, threshold)(np.arange(count)[:, np.newaxis], np.arange(count))


@given(seed=SEEDS, threshold=st.floats(0.05, 0.95))
def test_overlaps_are_those_of_the_paper(seed: int, threshold: float) -> None:
    made = rectangles(seed, 12)
    wanted = np.array([[paper_overlap(one, other) for other in made] for one in made])
    clear = np.abs(wanted - threshold) > 1e-6
    assert np.array_equal(overlapping(made, threshold)[clear], (wanted > threshold)[clear])


@given(seed=SEEDS)
def test_overlaps_agree_with_the_intersection_of_opencv_where_it_is_clear(seed: int) -> None:
    """Rectangles that share nine tenths of their area overlap, those that share nothing overlap by less than 0.4."""
    made = rectangles(seed, 12, spread=60)
    made = np.concatenate((made, made + np.array([0.2, 0.2, 0.1, 0.1, 0.002])))
    much, little = overlapping(made, 0.8), overlapping(made, 0.4)
    for i, one in enumerate(made):
        for j, other in enumerate(made):
            kind, points = cv2.rotatedRectangleIntersection(opencv_rectangle(one), opencv_rectangle(other))
            shared = cv2.contourArea(cv2.convexHull(points)) if kind != cv2.INTERSECT_NONE else 0.0
            union = one[2] * one[3] + other[2] * other[3] - shared
            assert much[i, j] or shared / union < 0.9
            assert shared > 0 or not little[i, j]


@given(seed=SEEDS)
def test_suppression_is_greedy_by_class(seed: int) -> None:
    generator = np.random.default_rng(seed)
    made, classes = rectangles(seed, 40).astype(np.float32), generator.integers(0, 2, 40)
    scores = (generator.permutation(40) + 20).astype(np.float32) / 64
    result = detect(output(made, scores, classes))
    kept: list[int] = []
    for index in np.argsort(-scores).tolist():
        rivals = [other for other in kept if classes[other] == classes[index]]
        if scores[index] >= 0.25 and all(paper_overlap(made[index], made[other]) <= 0.45 for other in rivals):
            kept.append(index)
    assert result.tensors()["scores"].tolist() == scores[kept].tolist()


def test_the_document() -> None:
    made = np.array([[300, 200, 80, 40, math.pi / 2]])
    (found,) = detect(output(made, np.array([0.75]), np.array([1]))).document()["detections"]
    assert found == {
        "label": "plane",
        "class": 1,
        "score": 0.75,
        "box": [280.0, 160.0, 320.0, 240.0],
        "corners": [[320.0, 160.0], [320.0, 240.0], [280.0, 240.0], [280.0, 160.0]],
        "angle": 1.570796,
    }


@pytest.mark.parametrize("fit", ["stretch", "letterbox", "crop"])
def test_corners_and_angles_are_in_the_original(fit: str) -> None:
    frame = place(fit, (1920, 1080), (640, 640))
    made = np.array([[300.0, 330.0, 80, 40, 0.6]])
    result = detect(output(made, np.array([0.75]), np.array([1])), frame)
    (corners,) = result.corners
    back = corners * [frame.scale_x, frame.scale_y] + [frame.left, frame.top]
    assert back == pytest.approx(corners_of(from_centres(made[:, :4]), made[:, 4])[0], abs=1e-3)
    side = corners[1] - corners[0]
    assert result.angles.tolist() == [pytest.approx(math.atan2(side[1], side[0]), abs=1e-6)]


def test_end_to_end_gives_centre_size_score_class_and_angle() -> None:
    made = rectangles(3, 2)
    made[:, :2] = [[100, 100], [400, 400]]
    rows = np.concatenate((made[:, :4], [[0.75, 1], [0.5, 0]], made[:, 4:]), axis=1).astype(np.float32)
    model = vision_model({"output0": (300, 7)}, TWO)
    result = OrientedBoxes(model, options()).interpret({"output0": rows}, None)
    assert result.document() == detect(output(made, np.array([0.75, 0.5]), np.array([1, 0]))).document()


def test_tensors_are_as_declared() -> None:
    task = TASKS["oriented-boxes"](vision_model({"output0": (7, 60)}, TWO), options())
    for count in (0, 2):
        made = output(rectangles(1, count, 400), np.full(count, 0.75), np.zeros(count, int))
        tensors = task.interpret({"output0": made}, None).tensors()
        assert {spec.name: spec.datatype.dtype for spec in task.results} == {n: a.dtype for n, a in tensors.items()}
        assert tensors["corners"].shape[1:] == (4, 2)


@given(values=arrays.arrays(np.float32, (7, 20), elements=st.floats(width=32, allow_nan=True, allow_infinity=True)))
def test_no_values_give_corners_outside_the_image(values: Array) -> None:
    result = detect(values, place("letterbox", (1920, 1080), (640, 640)))
    assert ((result.corners >= 0) & (result.corners <= [1920, 1080])).all()
    assert json.dumps(result.document(), allow_nan=False)


def test_a_shape_without_angle_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"fits no head \(yolov8 \[7, n\], end-to-end \[n, 7\] per row\)"):
        OrientedBoxes(vision_model({"output0": (6, 8400)}, TWO), options())
