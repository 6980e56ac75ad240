"""Heads of boxes relative to cells (YOLOX) and anchors (MediaPipe), held against loops as their authors write them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.errors import ConfigurationError, RequestError
from gateway.common.domain.tensor import Array
from gateway.serving.tasks.cell_grid import anchors
from gateway.serving.tasks.frame import Frame
from gateway.serving.tasks.keypoints import Keypoints, KeypointsResult
from gateway.serving.tasks.object_detection import ObjectDetection
from tests.simulators.vision_models import options, vision_model

SEEDS = st.integers(0, 2**32 - 1)
POINTS = ("right_eye", "left_eye", "nose", "mouth", "right_ear", "left_ear")
MERGED = 'head = "mediapipe"\nscore_threshold = 0.5\niou_threshold = 0.3\nmerge = true\n'
FACES = MERGED + f"keypoints = {list(POINTS)}".replace("'", '"')


# ---- YOLOX ----------------------------------------------------------------------------------------------------------
def yolox_cells(width: int, height: int) -> list[tuple[int, int, int]]:
    """Return column, row and stride of each cell, as YOLOX's `demo_postprocess` numbers them."""
    return [(x, y, s) for s in (8, 16, 32) for y in range(height // s) for x in range(width // s)]


@given(seed=SEEDS)
def test_yolox_boxes_are_those_of_its_formula(seed: int) -> None:
    generator, cells = np.random.default_rng(seed), yolox_cells(128, 96)
    output = np.zeros((len(cells), 7), np.float32)
    chosen = generator.choice(len(cells), 5, replace=False)
    output[chosen, :4] = generator.normal(0, 0.5, (5, 4))
    output[chosen, 4], output[chosen, 5:] = generator.uniform(0.8, 1, 5), generator.random((5, 2))
    model = vision_model({"output": (len(cells), 7)}, ("cat", "dog"), (128, 96))
    task = ObjectDetection(model, options('head = "yolox"\niou_threshold = 1.0'))
    found = task.interpret({"output": output}, Frame(10**6, 10**6, left=-(10**3), top=-(10**3))).tensors()
    expected = []
    for index in chosen:
        (column, row, stride), values = cells[index], output[index].astype(float)
        x, y = (values[0] + column) * stride, (values[1] + row) * stride
        width, height = math.exp(values[2]) * stride, math.exp(values[3]) * stride
        score = values[4] * values[5:].max()
        if score >= 0.25:
            expected.append([score, x - width / 2, y - height / 2, x + width / 2, y + height / 2])
    ours = np.column_stack((found["scores"], found["boxes"] - 10**3))
    assert ours.shape == (len(expected), 5)
    assert np.abs(ours - np.array(sorted(expected, reverse=True)).reshape(-1, 5)).max(initial=0) < 1e-2


def test_yolox_needs_the_size_of_the_input_and_as_many_rows() -> None:
    with pytest.raises(ConfigurationError, match="size of the input"):
        ObjectDetection(vision_model({"output": (-1, 7)}, ("a", "b"), None), options('head = "yolox"'))
    task = ObjectDetection(vision_model({"output": (-1, 7)}, ("a", "b"), (64, 64)), options('head = "yolox"'))
    with pytest.raises(RequestError, match=r"needs \[84, 7\]"):
        task.interpret({"output": np.zeros((252, 7), np.float32)}, None)
    assert task.interpret({"output": np.full((84, 7), np.nan, np.float32)}, None).document() == {"detections": []}
    assert task.interpret({"output": np.full((84, 7), 1e38, np.float32)}, None).document() == {"detections": []}


# ---- MediaPipe ------------------------------------------------------------------------------------------------------
def mediapipe_anchors(side: int, strides: tuple[int, ...], each: int = 2) -> list[tuple[float, float]]:
    """Return the centres in 0..1 as MediaPipe's SsdAnchorsCalculator makes them: layers of one stride together."""
    made, layer = list[tuple[float, float]](), 0
    while layer < len(strides):
        same = [stride for stride in strides[layer:] if stride == strides[layer]]
        count = side // same[0]
        for y in range(count):
            for x in range(count):
                made += [((x + 0.5) / count, (y + 0.5) / count)] * (each * len(same))
        layer += len(same)
    return made


@pytest.mark.parametrize(
    ("side", "strides", "each", "count"),
    [
        (128, (8, 16, 16, 16), 2, 896),
        (256, (16, 32, 32, 32), 2, 896),
        (192, (8, 16, 16, 16), 2, 2016),
        (192, (4,), 1, 2304),
        (224, (8, 16, 32, 32, 32), 2, 2254),
    ],
)
def test_anchors_are_known_by_size_and_number(side: int, strides: tuple[int, ...], each: int, count: int) -> None:
    expected, found = np.array(mediapipe_anchors(side, strides, each)), anchors((side, side), count)
    assert found is not None
    assert np.abs(found / side - expected).max() < 1e-12
    assert anchors((side, side), count + 1) is None


def weighted(boxes: list[Array], scores: list[float]) -> list[tuple[float, Array]]:
    """Return merged detections by MediaPipe's weighted suppression; each of `boxes` [8, 2] begins with two corners."""

    def overlap(one: Array, other: Array) -> float:
        sides = np.clip(np.minimum(one[1], other[1]) - np.maximum(one[0], other[0]), 0, None)
        union = np.prod(one[1] - one[0]) + np.prod(other[1] - other[0]) - sides.prod()
        return float(sides.prod() / union)

    rest, merged = sorted(range(len(boxes)), key=lambda index: -scores[index]), []
    while rest:
        best = rest[0]
        near = [index for index in rest if index == best or overlap(boxes[index], boxes[best]) > 0.3]
        total = sum(scores[index] for index in near)
        merged.append((scores[best], sum(boxes[index] * scores[index] for index in near) / total))
        rest = [index for index in rest if index not in near]
    return merged


def face_outputs(seed: int) -> tuple[Array, Array]:
    """Return outputs of BlazeFace with some faces, each at several anchors, and noise."""
    generator, places = np.random.default_rng(seed), np.array(mediapipe_anchors(128, (8, 16, 16, 16))) * 128
    values, logits = np.zeros((896, 16), np.float32), generator.normal(-6, 1, (896, 1)).astype(np.float32)
    for _ in range(3):
        centre, side = generator.uniform(30, 98, 2), generator.uniform(15, 40)
        face = np.concatenate((centre, [side, side], (centre + generator.normal(0, side / 4, (6, 2))).ravel()))
        for index in np.argsort(np.abs(places - centre).sum(axis=1))[:6]:
            values[index] = face + generator.normal(0, 1.5, 16)
            values[index, [0, 1, *range(4, 16)]] -= np.tile(places[index], 7)
            logits[index] = generator.normal(2, 1)
    return values, logits


def faces(values: Array, logits: Array, text: str = FACES) -> KeypointsResult:
    model = vision_model({"regressors": (896, 16), "classificators": (896, 1)}, ("face",), (128, 128))
    return Keypoints(model, options(text)).interpret({"regressors": values, "classificators": logits}, None)


@given(seed=SEEDS)
def test_faces_are_those_of_mediapipes_calculators(seed: int) -> None:
    values, logits = face_outputs(seed)
    boxes, scores = list[Array](), list[float]()
    for (x, y), row, logit in zip(mediapipe_anchors(128, (8, 16, 16, 16)), values, logits[:, 0], strict=True):
        score = 1 / (1 + math.exp(-float(logit)))
        pairs = row.reshape(-1, 2) / 128
        if score >= 0.5:
            scores.append(score)
            centre = pairs[0] + (x, y)
            boxes.append(np.stack([centre - pairs[1] / 2, centre + pairs[1] / 2, *np.add(pairs[2:], (x, y))]) * 128)
    expected = weighted(boxes, scores)
    result = faces(values, logits)
    found = result.tensors()
    assert np.abs(found["scores"] - [score for score, _ in expected]).max(initial=0) < 1e-6
    merged = np.clip(np.array([box for _, box in expected]), 0, 128)
    assert np.abs(found["boxes"].reshape(-1, 2, 2) - merged[:, :2]).max() < 1e-3
    assert np.abs(found["keypoints"] - merged[:, 2:]).max() < 1e-3
    assert [each["name"] for each in result.document()["detections"][0]["keypoints"]] == list(POINTS)


def test_faces_are_detected_without_their_points_too() -> None:
    values, logits = face_outputs(7)
    model = vision_model({"regressors": (896, 16), "classificators": (896, 1)}, ("face",), (128, 128))
    boxes = ObjectDetection(model, options(MERGED)).interpret({"regressors": values, "classificators": logits}, None)
    assert boxes.tensors()["boxes"].tolist() == faces(values, logits).tensors()["boxes"].tolist()


def test_no_face_and_no_number_give_no_detection() -> None:
    zeros = np.zeros((896, 16), np.float32)
    for logit in (-9.0, np.nan, np.inf):
        assert faces(zeros, np.full((896, 1), logit, np.float32)).document() == {"detections": []}
    assert faces(np.full((896, 16), np.nan, np.float32), np.ones((896, 1), np.float32)).document() == {"detections": []}


@pytest.mark.parametrize(
    ("outputs", "size", "text", "problem"),
    [
        ({"r": (896, 16), "c": (896, 1)}, (128, 128), MERGED + 'keypoints = ["nose"]', "6 points"),
        ({"r": (896, 16), "c": (896, 1)}, None, FACES, "any size"),
        ({"r": (900, 16), "c": (900, 1)}, (128, 128), FACES, "900 anchors"),
        ({"r": (896, 16)}, (128, 128), FACES, r"needs outputs"),
        ({"r": (896, 15), "c": (896, 1)}, (128, 128), FACES, r"needs outputs"),
    ],
)
def test_outputs_that_are_no_head_of_mediapipe(
    outputs: dict[str, tuple[int, ...]], size: tuple[int, int] | None, text: str, problem: str
) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        Keypoints(vision_model(outputs, ("face",), size), options(text))


def test_other_shapes_than_declared_are_refused() -> None:
    with pytest.raises(RequestError, match=r"needs \[896, 16\]"):
        faces(np.zeros((896, 18), np.float32), np.zeros((896, 1), np.float32))
