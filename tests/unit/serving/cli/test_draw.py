"""Results drawn into images, and printed."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as hnp
from PIL import Image, ImageColor

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.tensor import Array
from gateway.serving.cli.draw import draw_file
from gateway.serving.cli.result_view import documents_of, print_documents
from gateway.serving.tasks.drawing import COLOURS, draw, mask_of
from tests.simulators.images_made import stored_turned

BOX: dict[str, Any] = {"label": "person", "class": 0, "score": 0.9, "box": [20.0, 40.0, 60.0, 80.0]}


def run_lengths(mask: Array) -> dict[str, Any]:
    """Return a mask as COCO writes it, one pixel after the other down the columns."""
    counts, expected = [], False
    for value, run in groupby(mask.T.ravel().tolist()):
        counts += [0] * (value != expected) + [len(list(run))]
        expected = not value
    return {"size": list(mask.shape), "counts": counts}


def colour(index: int) -> tuple[int, ...]:
    return ImageColor.getrgb(COLOURS[index])


def drawn(document: dict[str, Any]) -> Array:
    return np.asarray(draw(document, Image.new("RGB", (100, 100), "#ffffff")))


@given(hnp.arrays(bool, hnp.array_shapes(min_dims=2, max_dims=2, max_side=6)))
def test_a_mask_is_read_as_it_was_written(mask: Array) -> None:
    assert np.array_equal(mask_of(run_lengths(mask)), mask)


def test_a_box_is_where_it_was_found() -> None:
    pixels = drawn({"detections": [BOX]})
    assert tuple(pixels[60, 20]) == tuple(pixels[80, 40]) == colour(0)
    assert tuple(pixels[60, 40]) == (255, 255, 255)
    assert tuple(pixels[60, 80]) == (255, 255, 255)


def test_a_mask_covers_its_pixels_only_and_one_of_another_size_none() -> None:
    mask = np.zeros((100, 100), bool)
    mask[90:, 70:] = True
    covered = drawn({"detections": [{**BOX, "mask": run_lengths(mask)}]})
    assert tuple(covered[95, 80]) not in {(255, 255, 255), colour(0)}
    assert tuple(covered[85, 80]) == (255, 255, 255)
    assert tuple(drawn({"detections": [{**BOX, "mask": run_lengths(mask[:50])}]})[95, 80]) == (255, 255, 255)


def test_keypoints_with_a_score_and_corners_are_drawn() -> None:
    points = [{"name": "nose", "x": 30, "y": 60, "score": 0.9}, {"name": "ear", "x": 50, "y": 60, "score": 0.1}]
    pixels = drawn({"detections": [{**BOX, "keypoints": points}]})
    assert tuple(pixels[60, 30]) == colour(0)
    assert tuple(pixels[60, 50]) == (255, 255, 255)
    turned = {**BOX, "corners": [[50, 30], [80, 60], [50, 90], [20, 60]]}
    pixels = drawn({"detections": [turned]})
    assert tuple(pixels[60, 21]) == tuple(pixels[89, 50]) == colour(0)
    assert tuple(pixels[80, 22]) == (255, 255, 255)


@pytest.mark.parametrize(
    "document",
    [
        {"text": "B-AB 1234", "score": 0.9},
        {"label": "cat", "score": 0.9},
        {"classes": [{"label": "cat", "class": 3, "score": 0.9}]},
        {"classes": [{"label": "road", "class": 1, "share": 0.5}]},
    ],
)
def test_what_is_said_of_the_whole_image_is_a_caption(document: dict[str, Any]) -> None:
    pixels = drawn(document)
    assert (pixels[:20] == 0).any()
    assert (pixels[50:] == 255).all()


@pytest.mark.parametrize("orientation", [2, 3, 6, 8])
def test_a_result_is_drawn_into_the_image_that_viewers_show(tmp_path: Path, orientation: int) -> None:
    shown = np.zeros((60, 100, 3), np.uint8)
    shown[:20, :30] = 255
    (tmp_path / "in.png").write_bytes(stored_turned(shown, orientation))
    draw_file({"detections": [{**BOX, "box": [50, 30, 90, 50]}]}, tmp_path / "in.png", tmp_path / "out.png")
    pixels = np.asarray(Image.open(tmp_path / "out.png"))
    assert pixels.shape == shown.shape
    assert tuple(pixels[50, 70]) == colour(0)
    assert tuple(pixels[5, 5]) == (255, 255, 255)
    draw_file({}, tmp_path / "in.png", tmp_path / "out.png", turned=False)
    assert np.array_equal(Image.open(tmp_path / "out.png"), Image.open(tmp_path / "in.png"))


def test_a_file_that_is_no_image_is_named(tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("no image")
    with pytest.raises(ConfigurationError, match=r"out\.png.*cannot be drawn from .*text\.png"):
        draw_file({}, tmp_path / "text.png", tmp_path / "out.png")
    Image.new("L", (8, 8)).save(tmp_path / "grey.png")
    with pytest.raises(ConfigurationError, match=r"out\.xyz"):
        draw_file({}, tmp_path / "grey.png", tmp_path / "out.xyz")


def test_results_are_printed_by_row(capsys: pytest.CaptureFixture[str]) -> None:
    answer = {"outputs": [{"name": "result", "data": ['{"detections": []}', '{"text": "hi", "score": 0.5}']}]}
    documents = documents_of(answer)
    print_documents([{"detections": [BOX]}, *documents])
    shown = capsys.readouterr().out
    assert "person" in shown
    assert "20 40 60 80" in shown
    assert "row 1: nothing was found" in shown
    assert 'row 2: {"text": "hi", "score": 0.5}' in shown
    assert documents_of({"outputs": [{"name": "y", "data": [1]}]}) == []
