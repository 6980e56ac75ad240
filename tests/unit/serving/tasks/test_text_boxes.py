"""Text boxes: regions and rectangles of OpenCV, the steps of PaddleOCR with its functions, hostile maps."""

from __future__ import annotations

import math
from dataclasses import replace

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gateway.common.domain.errors import ConfigurationError, RequestError
from gateway.common.domain.manifest import Preprocess
from gateway.common.domain.tensor import Array
from gateway.serving.tasks.frame import Frame
from gateway.serving.tasks.oriented_boxes import OrientedBoxes, OrientedResult
from gateway.serving.tasks.text_box_head import find_regions, smallest_rectangle
from tests.simulators.vision_models import options, vision_model

SEEDS = st.integers(0, 2**32 - 1)
SIDE_PX = 320
MODEL = vision_model({"map": (1, -1, -1)}, ("text",), (SIDE_PX, SIDE_PX))


def detect(values: Array, frame: Frame | None = None, text: str = "") -> OrientedResult:
    task = OrientedBoxes(MODEL, options(f'head = "db"\n{text or "score_threshold = 0.5"}'))
    return task.interpret({"map": values[np.newaxis]}, frame)


def drawn(seed: int, lines: int = 6) -> Array:
    """Return a map with blurred lines of text at angles up to 40 degrees, and noise."""
    generator = np.random.default_rng(seed)
    made = np.zeros((SIDE_PX, SIDE_PX), np.float32)
    for number in range(lines):
        centre = (60 + 200 * generator.random(), 30 + 50 * number)
        size = (30 + 80 * generator.random(), 8 + 8 * generator.random())
        corners = cv2.boxPoints((centre, size, generator.uniform(-40, 40)))
        cv2.fillPoly(made, [corners.astype(np.int32)], float(generator.uniform(0.45, 1)))
    noise = generator.random(made.shape, np.float32) * np.float32(0.1)
    return np.asarray(cv2.GaussianBlur(made, (5, 5), 0) + noise, np.float32)


def packaged(values: Array, ratio: float = 1.6) -> tuple[Array, list[float]]:
    """Return corners and scores by OpenCV, as PaddleOCR and RapidOCR take them, without cutting to whole pixels."""
    flags = cv2.dilate((values > 0.3).astype(np.uint8), np.array([[1, 1], [1, 1]], np.uint8))
    contours, _ = cv2.findContours(flags, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    boxes, scores = [], []
    for contour in contours:
        centre, size, angle = cv2.minAreaRect(contour)
        if min(size) < 3:
            continue
        corners, mask = cv2.boxPoints((centre, size, angle)), np.zeros(values.shape, np.uint8)
        cv2.fillPoly(mask, [np.floor(corners).astype(np.int32)], 1)
        score = cv2.mean(values, mask)[0]
        grown = 2 * ratio * size[0] * size[1] / (2 * sum(size))
        size = (size[0] + grown, size[1] + grown)
        if score >= 0.5 and min(size) >= 5:
            boxes.append(cv2.boxPoints((centre, size, angle)))
            scores.append(score)
    return np.array(boxes).reshape(-1, 4, 2), scores


@given(flags=arrays.arrays(bool, arrays.array_shapes(min_dims=2, max_dims=2, max_side=24)))
def test_regions_are_the_connected_components_of_opencv(flags: Array) -> None:
    found = np.zeros(flags.shape, int)
    for row, first, last, region in zip(*find_regions(flags), strict=True):
        found[row, first : last + 1] = region + 1
    count, expected = cv2.connectedComponents(flags.astype(np.uint8), connectivity=8)
    assert ((found > 0) == flags).all()
    assert len({*zip(found[flags].tolist(), expected[flags].tolist(), strict=True)}) == count - 1


def test_regions_that_wind_are_one() -> None:
    comb = np.zeros((400, 401), bool)
    comb[:, ::2] = True
    comb[-1] = True
    assert len(np.unique(find_regions(comb)[3])) == 1
    assert len(np.unique(find_regions(comb[:-1])[3])) == 201


@given(seed=SEEDS, count=st.integers(1, 40))
def test_rectangles_are_no_larger_than_those_of_opencv_and_hold_every_point(seed: int, count: int) -> None:
    points = np.unique(np.random.default_rng(seed).integers(0, 30, (count, 2)), axis=0)[:, ::-1]
    x, y, width, height, angle = smallest_rectangle(points)
    assert width * height <= math.prod(cv2.minAreaRect(points.astype(np.float32))[1]) + 0.05
    assert -math.pi / 4 - 1e-9 <= angle <= math.pi / 4
    turn = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    assert (np.abs((points - (x, y)) @ turn.T) <= np.array([width, height]) / 2 + 1e-6).all()


@pytest.mark.parametrize("seed", range(40))
def test_boxes_are_those_of_the_functions_of_paddleocr(seed: int) -> None:
    values = drawn(seed)
    found, (expected, scores) = detect(values, Frame(10**6, 10**6, left=-(10**3), top=-(10**3))), packaged(values)
    corners = found.corners - 10**3  # the frame keeps what is outside the map
    near = [score for score in scores if score < 0.6]  # scores differ by pixels at corners: mostly by 0.0003
    sure = [score for score in found.detections.found.scores if score >= 0.6]
    assert len(expected) - len(near) <= len(corners)
    assert len(sure) <= len(expected)
    for box, score in zip(expected, scores, strict=True):
        apart = [np.abs(own[:, np.newaxis] - box).max(axis=2).min(axis=1).max() for own in corners]
        if score >= 0.6:
            assert min(apart) < 0.05
            assert found.detections.found.scores[int(np.argmin(apart))] == pytest.approx(score, abs=0.1)


def test_a_line_has_its_corners_clockwise_from_the_top_left_in_the_original() -> None:
    values = np.zeros((SIDE_PX, SIDE_PX), np.float32)
    values[100:111, 40:141] = 1.0  # 101 by 11 pixels, corners at their centres: 100 by 10, moved by 1.6 · 1000 / 220
    (entry,) = detect(values, Frame(640, 640, 0.5, 0.5), "dilate = false").document()["detections"]
    moved = 1.6 * 1000 / 220
    x1, y1, x2, y2 = ((side + sign * moved) * 2 for side, sign in ((40, -1), (100, -1), (140, 1), (110, 1)))
    expected = [[x1, y1], [x2, y1], [x2, y2], [x1, y2]]
    assert np.abs(np.array(entry["corners"]) - expected).max() < 0.01
    assert (entry["label"], entry["score"], entry["angle"]) == ("text", 1.0, 0.0)


def test_tensors_of_an_open_size_are_not_cut_to_that_of_decoded_images() -> None:
    model = vision_model({"map": (1, -1, -1)}, ("text",), None)
    image = replace(model.inputs[0], preprocess=Preprocess(("png",), resize=(64, 64)))
    values = np.zeros((SIDE_PX, SIDE_PX), np.float32)
    values[100:111, 40:141] = 1.0
    task = OrientedBoxes(replace(model, inputs=(image,)), options('head = "db"\ndilate = false\nunclip_ratio = 0'))
    (box,) = task.interpret({"map": values[np.newaxis]}, None).detections.entries()
    assert box["box"] == [40.0, 100.0, 140.0, 110.0]


def test_options_choose_pixels_and_sizes() -> None:
    values = np.full((SIDE_PX, SIDE_PX), 0.1, np.float32)
    values[100:111, 40:141], values[50, 50], values[20:22, 20:60] = 0.6, 1.0, 0.9
    assert len(detect(values, text="dilate = false").corners) == 1  # of the others a side is too short
    assert len(detect(values, text="threshold = 0.7").corners) == 0
    assert len(detect(values, text="score_threshold = 0.7").corners) == 0
    (box,) = detect(values, text="dilate = false\nunclip_ratio = 0").detections.entries()
    assert box["box"] == [40.0, 100.0, 140.0, 110.0]


def test_the_largest_regions_are_measured_if_there_are_too_many() -> None:
    values = np.zeros((SIDE_PX, SIDE_PX), np.float32)
    for number in range(20):
        values[number * 16 : number * 16 + 8, : 40 + number] = 1.0
    widths = np.ptp(
        detect(values, text="max_candidates = 3\nunclip_ratio = 0\ndilate = false").corners[:, :, 0], axis=1
    )
    assert sorted(widths.tolist()) == [56.0, 57.0, 58.0]


@pytest.mark.parametrize("fill", [0.0, 1.0, np.nan, np.inf, -np.inf])
def test_maps_without_text(fill: float) -> None:
    assert len(detect(np.full((SIDE_PX, SIDE_PX), fill, np.float32)).corners) == (1 if fill == 1.0 else 0)


@given(values=arrays.arrays(np.float32, (9, 9), elements=st.floats(width=32)))
def test_any_map_gives_a_document(values: Array) -> None:
    assert "detections" in detect(values).document()


def test_other_outputs_are_refused() -> None:
    with pytest.raises(RequestError, match="2 dimensions"):
        OrientedBoxes(MODEL, options('head = "db"')).interpret({"map": np.zeros((2, 8, 8), np.float32)}, None)
    with pytest.raises(ConfigurationError, match="head"):
        OrientedBoxes(MODEL, options('head = "dbnet"'))
