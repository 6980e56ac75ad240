"""Views of images: parts, parts of parts and tiles are where they should be, and hold at least one pixel."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from gateway.common.domain.manifest import Preprocess, TensorSpec
from gateway.common.domain.tensor import Array, Datatype
from gateway.serving.engine.images import views_as_input
from gateway.serving.tasks.views import View, align, crop, tiles, turn, warp, whole
from tests.simulators.similarity import FACE, umeyama

WIDTH, HEIGHT = 60, 40
ACROSS, DOWN = np.meshgrid(np.arange(WIDTH), np.arange(HEIGHT))
PICTURE = Image.fromarray(np.stack([ACROSS * 4, DOWN * 4, ACROSS * 0], axis=2).astype(np.uint8))
"""Picture whose red is four times the column, and whose green is four times the row."""
ANY = st.floats(width=32)
SPEC = TensorSpec("image", Datatype.UINT8, (-1, 3, -1, -1), preprocess=Preprocess(("png",)))


def pixels(view: View) -> Array:
    """Return the pixels of a view [height, width, 3] as a model without a size of its own gets them."""
    array, (frame,) = views_as_input([view], SPEC)
    assert (frame.width, frame.height) == array.shape[:1:-1]
    shown: Array = array[0].transpose(1, 2, 0)
    return shown


def test_a_part_has_the_pixels_of_its_box() -> None:
    part = crop(whole(PICTURE), np.array([10, 5, 30, 25]))
    np.testing.assert_array_equal(pixels(part), np.asarray(PICTURE)[5:25, 10:30])
    assert list(part.origin) == [10, 5]
    bigger = crop(whole(PICTURE), np.array([10, 5, 30, 25]), 1.5)
    assert list(bigger.box) == [5, 0, 35, 30]
    np.testing.assert_array_equal(pixels(crop(part, np.array([0, 0, 4, 4]))), np.asarray(PICTURE)[:4, :4])


@given(st.tuples(ANY, ANY, ANY, ANY), st.floats(0.1, 10))
def test_any_box_gives_whole_pixels_of_the_picture(box: tuple[float, ...], factor: float) -> None:
    view = crop(whole(PICTURE), np.array(box, np.float32), factor)
    left, top, right, bottom = view.box
    assert 0 <= left < right <= WIDTH
    assert 0 <= top < bottom <= HEIGHT
    assert all(value == round(value) for value in view.box)
    assert pixels(view).shape == (bottom - top, right - left, 3)


@given(st.lists(st.tuples(ANY, ANY), min_size=4, max_size=4), st.tuples(ANY, ANY, ANY, ANY), ANY)
def test_any_corners_give_pixels(corners: list[tuple[float, float]], box: tuple[float, ...], degrees: float) -> None:
    view = warp(whole(PICTURE), np.array(corners, np.float32))
    assert pixels(view).size
    assert pixels(crop(view, np.array(box, np.float32))).size
    assert pixels(turn(view, degrees)).size
    assert pixels(warp(view, np.array(corners, np.float32))).size
    assert all(pixels(tile).size for tile in tiles(view, (16, 16), 0.5, 1000))


def test_a_part_between_corners_has_the_pixels_between_them_and_so_have_its_parts() -> None:
    corners = np.array([(10, 5), (50, 5), (50, 35), (10, 35)])
    warped = warp(whole(PICTURE), corners)
    np.testing.assert_allclose(pixels(warped), np.asarray(PICTURE)[5:35, 10:50], atol=4)
    part = crop(warped, np.array([5, 10, 15, 20]))
    assert list(part.origin) == [5, 10]
    np.testing.assert_allclose(pixels(part), np.asarray(PICTURE)[15:25, 15:25], atol=4)
    inner = crop(part, np.array([7, 12, 9, 14]))
    np.testing.assert_allclose(pixels(inner), np.asarray(PICTURE)[17:19, 17:19], atol=4)
    for tile in tiles(warped, (20, 20), 0.0, 1000):
        left, top = (int(value) for value in tile.origin)
        np.testing.assert_allclose(pixels(tile), np.asarray(PICTURE)[5 + top : 25 + top, 10 + left : 30 + left], atol=4)


def test_a_turned_part_is_turned_clockwise() -> None:
    part = crop(whole(PICTURE), np.array([10, 5, 30, 15]))
    for quarters in range(-1, 5):
        wanted = np.rot90(np.asarray(PICTURE)[5:15, 10:30], -quarters)
        np.testing.assert_allclose(pixels(turn(part, 90.0 * quarters + 3)), wanted, atol=4)
    assert turn(part, np.nan) is part


@given(
    st.integers(1, 200), st.integers(1, 200), st.integers(1, 80), st.integers(1, 80), st.floats(0, 0.9, allow_nan=False)
)
def test_tiles_cover_the_picture(width: int, height: int, tall: int, wide: int, overlap: float) -> None:
    view = View(None, (0.0, 0.0, float(width), float(height)))
    try:
        found = tiles(view, (tall, wide), overlap, 1000)
    except ValueError:
        return
    covered = np.zeros((height, width), int)
    for tile in found:
        left, top, right, bottom = map(int, tile.box)
        assert (right - left, bottom - top) == (min(wide, width), min(tall, height))
        covered[top:bottom, left:right] += 1
    assert covered.all()
    assert len(found) <= 1000


def test_too_many_tiles_are_refused_before_they_are_made() -> None:
    view = View(None, (0.0, 0.0, 4e7, 1.0))
    with pytest.raises(ValueError, match="more than 1000 tiles; make them larger"):
        tiles(view, (1, 1), 0.9, 1000)
    with pytest.raises(ValueError, match="more than 1000 tiles"):
        tiles(View(None, (0.0, 0.0, 500.0, 500.0)), (1, 1), 0.0, 1000)


@given(st.integers(0, 2**32 - 1), st.floats(-180, 180), st.floats(0.05, 1.5), st.floats(0, 4))
def test_key_points_are_aligned_as_opencv_does_by_the_transform_of_umeyama(
    seed: int, degrees: float, scale: float, noise: float
) -> None:
    random = np.random.default_rng(seed)
    picture = cv2.GaussianBlur(random.integers(0, 255, (200, 300, 3), np.uint8), (0, 0), 4)
    turned = np.exp(1j * np.radians(degrees)) * scale * (FACE @ [1, 1j]) + random.uniform(50, 250)
    points = np.stack((turned.real, turned.imag + 60), axis=1) + random.normal(0, noise, FACE.shape)
    part = align(whole(Image.fromarray(picture)), points, FACE, (112, 96))
    matrix = umeyama(points, FACE)
    wanted = cv2.warpAffine(picture, matrix, (112, 96))
    inner = cv2.warpAffine(np.ones((200, 300), np.uint8), matrix, (112, 96)) > 0
    inner = cv2.erode(inner.astype(np.uint8), np.ones((5, 5)), borderValue=0) > 0  # both mix black in at the border
    shown = pixels(part)
    assert np.abs(shown[inner].astype(int) - wanted[inner]).max(initial=0) <= 3
    far = cv2.warpAffine(np.ones((200, 300), np.uint8), matrix, (112, 96), flags=cv2.INTER_NEAREST, borderValue=0) == 0
    assert not shown[cv2.erode(far.astype(np.uint8), np.ones((9, 9)), borderValue=0) > 0].any()


@given(st.lists(st.tuples(ANY, ANY), min_size=5, max_size=5), st.tuples(ANY, ANY, ANY, ANY))
def test_any_key_points_give_a_part_of_the_size_that_is_asked(
    points: list[tuple[float, float]], box: tuple[float, ...]
) -> None:
    for view in (whole(PICTURE), warp(whole(PICTURE), np.array([(10, 5), (50, 9), (50, 35), (10, 35)]))):
        part = align(view, np.array(points, np.float32), FACE, (20, 30))
        assert pixels(part).shape == (30, 20, 3)
        assert pixels(crop(part, np.array(box, np.float32))).size


def test_key_points_that_leave_the_scale_open_are_moved_only() -> None:
    cross = np.array([(0.0, 4.0), (4.0, 0.0), (8.0, 4.0), (4.0, 8.0)])
    for points in (np.full((4, 2), 4.0), cross[[2, 1, 0, 3]]):  # all in one place; mirrored, so that no turn is best
        part = pixels(align(whole(PICTURE), points + np.array([26, 16]), cross, (9, 9)))
        np.testing.assert_allclose(part, np.asarray(PICTURE)[16:25, 26:35], atol=1)
    assert not pixels(align(whole(PICTURE), np.full((4, 2), np.nan), cross + 500, (4, 4))).any()


def test_a_part_of_a_part_is_aligned_in_the_pixels_of_the_whole_image() -> None:
    part = crop(whole(PICTURE), np.array([10, 5, 50, 35]))
    box = np.array([(20, 10), (29, 10), (20, 19)])
    np.testing.assert_allclose(
        pixels(align(part, box, box - box[0], (10, 10))), np.asarray(PICTURE)[10:20, 20:30], atol=1
    )
    warped = warp(whole(PICTURE), np.array([(10, 5), (50, 5), (50, 35), (10, 35)]))
    np.testing.assert_allclose(
        pixels(align(warped, box, box - box[0], (10, 10))), np.asarray(PICTURE)[15:25, 30:40], atol=4
    )


@pytest.mark.parametrize(("degrees", "quarters"), [(90, -1), (180, 2), (270, 1)])
def test_key_points_of_a_turned_image_are_aligned_in_its_pixels(degrees: int, quarters: int) -> None:
    turned = np.ascontiguousarray(np.rot90(np.asarray(PICTURE), quarters))
    points = FACE * 0.2 + np.array([4.0, 3.0])
    wanted = pixels(align(whole(Image.fromarray(turned)), points, FACE, (112, 96)))
    shown = pixels(align(turn(whole(PICTURE), degrees), points, FACE, (112, 96)))
    assert np.abs(shown.astype(int) - wanted).max() <= 1
