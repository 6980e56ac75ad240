"""Overlaps of polygons and masks against OpenCV and COCO's own code."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pycocotools import mask as coco

from gateway.serving.tasks.rectangles import corners_of
from gateway.serving.tasks.run_lengths import encode_region
from gateway.workshop.making.metrics.boxes import Boxes
from gateway.workshop.making.metrics.masks import Masks, decoded
from gateway.workshop.making.metrics.polygons import Polygons

RECTANGLES = st.tuples(
    *(st.floats(0, 100), st.floats(0, 100), st.floats(1, 60), st.floats(1, 60), st.floats(-np.pi, np.pi))
)


def rectangle(given: tuple[float, ...]) -> np.ndarray:
    x, y, width, height, angle = given
    return corners_of(np.array([[x, y, x + width, y + height]]), np.array([angle]))


def overlap(first: np.ndarray, second: np.ndarray) -> float:
    pair = np.zeros(1, int)
    return float(Polygons(first).overlaps(pair, Polygons(second), pair, np.zeros(1, bool))[0])


@given(RECTANGLES, RECTANGLES)
def test_rectangles_overlap_as_in_opencv(one: tuple[float, ...], other: tuple[float, ...]) -> None:
    first, second = rectangle(one), rectangle(other)
    common, _ = cv2.intersectConvexConvex(first[0].astype(np.float32), second[0].astype(np.float32))
    whole = one[2] * one[3] + other[2] * other[3] - common
    assert overlap(first, second) == pytest.approx(common / whole, abs=2e-3)
    assert overlap(first, second) == pytest.approx(overlap(second, first), abs=1e-6)


@given(RECTANGLES, st.integers(0, 3), st.booleans())
def test_a_polygon_overlaps_itself_wherever_its_border_begins(
    given_rectangle: tuple[float, ...], begin: int, reverse: bool
) -> None:
    corners = rectangle(given_rectangle)
    other = np.roll(corners[:, ::-1] if reverse else corners, begin, axis=1)
    assert overlap(corners, other) == pytest.approx(1.0, abs=1e-6)


@given(st.lists(st.integers(0, 12), min_size=8, max_size=8))
def test_upright_rectangles_overlap_as_boxes_also_where_they_share_a_side(sides: list[int]) -> None:
    x1, y1, width, height, x2, y2, other_width, other_height = sides
    boxes = np.array([[x1, y1, x1 + width + 1, y1 + height + 1], [x2, y2, x2 + other_width + 1, y2 + other_height + 1]])
    first, second, none = np.array([0]), np.array([1]), np.zeros(1, bool)
    wanted = Boxes(boxes.astype(float)).overlaps(first, Boxes(boxes.astype(float)), second, none)
    corners = Polygons(corners_of(boxes.astype(float), np.zeros(2)))
    assert corners.overlaps(first, corners, second, none) == pytest.approx(wanted, abs=1e-6)


def test_a_corner_that_was_moved_onto_another_one_leaves_a_triangle() -> None:
    triangle = np.array([[[0.0, 0.0], [0.0, 0.0], [10.0, 0.0], [0.0, 10.0]]])
    square = np.array([[[0.0, 0.0], [10.0, 0.0], [10.0, 10.0], [0.0, 10.0]]])
    assert overlap(triangle, square) == pytest.approx(0.5, abs=1e-6)
    assert overlap(triangle, triangle) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_masks_overlap_as_in_coco(seed: int) -> None:
    random = np.random.default_rng(seed)
    regions = random.random((6, 9, 13)) < np.array([0.0, 0.2, 0.5, 0.5, 0.8, 1.0])[:, np.newaxis, np.newaxis]
    masks = Masks((9, 13), [encode_region(region, 0, 0, (9, 13)) for region in regions])
    encoded = [coco.encode(np.asfortranarray(region, np.uint8)) for region in regions]
    mine, theirs = (each.ravel() for each in np.mgrid[:6, :6])
    crowd = random.random(6) < 0.5
    with np.errstate(invalid="ignore"):
        wanted = np.nan_to_num(np.array(coco.iou(encoded, encoded, crowd.astype(np.uint8)))).ravel()
    assert masks.overlaps(mine, masks, theirs, crowd[theirs]) == pytest.approx(wanted, abs=1e-12)


def test_a_mask_of_another_size_is_resampled() -> None:
    region = np.zeros((8, 12), bool)
    region[2:6, 4:9] = True
    large = np.kron(region, np.ones((3, 2), bool))
    masks = Masks((24, 24), [encode_region(large, 0, 0, (24, 24))])
    assert (decoded(masks.resized((8, 12)).counts[0], (8, 12)) == region).all()
