"""Keypoints: points where they were drawn, with names, for both heads and both numbers of values."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.tensor import Array
from gateway.serving.tasks.catalog import TASKS
from gateway.serving.tasks.frame import Frame, place
from gateway.serving.tasks.keypoints import Keypoints, KeypointsResult
from tests.simulators.vision_models import options, vision_model

NAMES = 'keypoints = ["nose", "tail"]'
BOX = [100.0, 120.0, 40.0, 20.0]
POINTS = [[90.0, 115.0, 0.875], [110.0, 125.0, 0.25]]


def output(points: Array, box: list[float] | None = None) -> Array:
    """Return an output of YOLOv8-pose with one box of one class."""
    made = np.zeros((5 + points.size, 50), np.float32)
    made[:, 7] = [*(box or BOX), 0.75, *points.ravel()]
    return made


def detect(made: Array, frame: Frame | None = None, text: str = NAMES) -> KeypointsResult:
    model = vision_model({"output0": (*made.shape[:1], -1)}, ("dog",))
    return Keypoints(model, options(text)).interpret({"output0": made}, frame)


def test_points_have_names_places_and_scores() -> None:
    assert detect(output(np.array(POINTS))).document() == {
        "detections": [
            {
                "label": "dog",
                "class": 0,
                "score": 0.75,
                "box": [80.0, 110.0, 120.0, 130.0],
                "keypoints": [
                    {"name": "nose", "x": 90.0, "y": 115.0, "score": 0.875},
                    {"name": "tail", "x": 110.0, "y": 125.0, "score": 0.25},
                ],
            }
        ]
    }


def test_points_without_scores() -> None:
    (found,) = detect(output(np.array(POINTS)[:, :2])).document()["detections"]
    assert found["keypoints"] == [{"name": "nose", "x": 90.0, "y": 115.0}, {"name": "tail", "x": 110.0, "y": 125.0}]


def test_the_shape_that_fits_two_and_three_values_is_read_with_three() -> None:
    """Without labels the number of classes is open: 4 + c + 2 · 3 with c = 1, or 4 + c + 2 · 2 with c = 3."""
    model = vision_model({"output0": (11, 50)}, ())
    assert Keypoints(model, options(NAMES)).results[-1].shape == (-1, 2, 3)
    assert Keypoints(model, options(f"{NAMES}\nvalues = 2")).results[-1].shape == (-1, 2, 2)


def test_end_to_end() -> None:
    rows = np.array([[80, 110, 120, 130, 0.75, 0, *np.ravel(POINTS)], [0] * 12], np.float32)
    model = vision_model({"output0": (300, 12)}, ("dog",))
    result = Keypoints(model, options(NAMES)).interpret({"output0": rows}, None)
    assert result.document() == detect(output(np.array(POINTS))).document()


@pytest.mark.parametrize("fit", ["stretch", "letterbox", "crop"])
@pytest.mark.parametrize("unit", ["pixels", "normalised"])
def test_points_are_in_pixels_of_the_original(fit: str, unit: str) -> None:
    frame = place(fit, (1920, 1080), (640, 640))
    drawn = np.array([[700.0, 300.0, 0.5], [900.0, 700.0, 0.5]])
    moved = drawn.copy()
    moved[:, :2] = drawn[:, :2] * [frame.scale_x, frame.scale_y] + [frame.left, frame.top]
    box = [320.0, 320.0, 300.0, 300.0]
    if unit == "normalised":
        moved[:, :2] /= 640
        box = [side / 640 for side in box]
    result = detect(output(moved, box), frame, f'{NAMES}\ncoordinates = "{unit}"')
    assert result.tensors()["keypoints"][0] == pytest.approx(drawn, abs=0.01)


def test_tensors_are_as_declared() -> None:
    task = TASKS["keypoints"](vision_model({"output0": (11, 50)}, ("dog",)), options(NAMES))
    tensors = task.interpret({"output0": output(np.array(POINTS))}, None).tensors()
    assert {spec.name: spec.datatype.dtype for spec in task.results} == {n: a.dtype for n, a in tensors.items()}
    assert tensors["keypoints"].shape == (1, 2, 3)
    empty = task.interpret({"output0": np.zeros((11, 50), np.float32)}, None)
    assert empty.tensors()["keypoints"].shape == (0, 2, 3)
    assert empty.document() == {"detections": []}


@given(values=arrays.arrays(np.float32, (11, 20), elements=st.floats(width=32, allow_nan=True, allow_infinity=True)))
def test_no_values_give_points_outside_the_image(values: Array) -> None:
    result = detect(values, place("letterbox", (1920, 1080), (640, 640)))
    points = result.tensors()["keypoints"][..., :2]
    assert ((points >= 0) & (points <= [1920, 1080])).all()
    assert json.dumps(result.document(), allow_nan=False)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "task.keypoints: missing; it must be an array of strings"),
        ("keypoints = []", "must hold 1 to 1000 names, not 0"),
        ('keypoints = ["nose"]', "fits no head"),
        (f"{NAMES}\nvalues = 4", "between 2 and 3"),
        (f'{NAMES}\nhead = "yolov5"', "must be one of yolov8, end-to-end"),
        (f"{NAMES}\nskeleton = 1", "unknown key"),
    ],
)
def test_wrong_options_say_what_to_write(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Keypoints(vision_model({"output0": (11, 50)}, ("dog",)), options(text))
