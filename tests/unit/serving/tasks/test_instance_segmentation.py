"""Instance segmentation: masks compared with OpenCV's interpolation by pycocotools' decoder."""

from __future__ import annotations

import json

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.errors import ConfigurationError, RequestError
from gateway.common.domain.manifest import ModelManifest
from gateway.common.domain.tensor import Array
from gateway.serving.tasks.catalog import TASKS
from gateway.serving.tasks.frame import Frame, place
from gateway.serving.tasks.instance_segmentation import InstanceResult, InstanceSegmentation
from tests.simulators.coco_masks import decoded_mask
from tests.simulators.vision_models import options, vision_model

TWO = ("cat", "dog")
MODEL = vision_model({"output0": (38, 100), "output1": (32, 160, 160)}, TWO)


def outputs(seed: int, detections: int = 3) -> dict[str, Array]:
    """Return boxes that do not overlap, with smooth prototypes."""
    generator = np.random.default_rng(seed)
    boxes = np.zeros((38, 100), np.float32)
    boxes[:2, :detections] = np.arange(detections) * 200 + 100
    boxes[2:4, :detections] = generator.uniform(60, 180, (2, detections))
    boxes[4 + generator.integers(0, 2, detections), np.arange(detections)] = np.linspace(0.9, 0.5, detections)
    boxes[6:, :detections] = generator.normal(0, 1, (32, detections))
    coarse = generator.normal(0, 1, (32, 10, 10)).astype(np.float32)
    prototypes = np.stack([cv2.resize(each, (160, 160), interpolation=cv2.INTER_CUBIC) for each in coarse])
    return {"output0": boxes, "output1": prototypes}


def segment(
    given: dict[str, Array], frame: Frame | None = None, text: str = "", model: ModelManifest = MODEL
) -> InstanceResult:
    return InstanceSegmentation(model, options(text)).interpret(given, frame)


def masks(result: InstanceResult) -> list[Array]:
    """Return the masks as pycocotools decodes the JSON document."""
    found = json.loads(json.dumps(result.document()))["detections"]
    return [decoded_mask(each["mask"]) for each in found]


def expected(given: dict[str, Array], index: int, size: tuple[int, int] = (640, 640)) -> Array:
    """Return the logits of one detection at every pixel of the input, interpolated by OpenCV."""
    coefficients = given["output0"][-32:, index]
    return cv2.resize(np.tensordot(coefficients, given["output1"], 1), size, interpolation=cv2.INTER_LINEAR)


@given(seed=st.integers(0, 2**32 - 1))
def test_masks_are_the_interpolated_logits_inside_the_box(seed: int) -> None:
    made = outputs(seed)
    result = segment(made)
    for index, mask in enumerate(masks(result)):
        logits, (x1, y1, x2, y2) = expected(made, index), result.detections.found.boxes[index]
        centres = np.arange(640) + 0.5
        inside = ((centres >= y1) & (centres < y2))[:, np.newaxis] & ((centres >= x1) & (centres < x2))
        clear = np.abs(logits) > 1e-3
        assert np.array_equal(mask[clear], ((logits > 0) & inside)[clear])


@pytest.mark.parametrize("fit", ["stretch", "letterbox", "crop"])
def test_masks_are_in_the_original_image(fit: str) -> None:
    """OpenCV takes the logits of the input back to the original: the mask is where they are positive, in the box."""
    made, frame = outputs(5), place(fit, (1280, 960), (640, 640))
    result = segment(made, frame)
    assert result.size == (960, 1280)
    moved = np.float32([[frame.scale_x, 0, frame.left], [0, frame.scale_y, frame.top]])
    moved[:, 2] += moved[:, :2].sum(axis=1) / 2 - 0.5  # OpenCV places the centre of the first pixel at 0
    logits = [
        cv2.warpAffine(expected(made, index), moved, (1280, 960), flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP)
        for index in range(3)
    ]
    scores = sorted(made["output0"][4:6, :3].max(axis=0).tolist(), reverse=True)
    assert len(masks(result)) >= 2
    for mask, entry in zip(masks(result), result.document()["detections"], strict=True):
        (index,) = [at for at, score in enumerate(scores) if score == pytest.approx(entry["score"])]
        x1, y1, x2, y2 = (round(side) for side in entry["box"])
        inside = np.zeros((960, 1280), bool)
        inside[y1 + 1 : y2 - 1, x1 + 1 : x2 - 1] = True
        clear = inside & (np.abs(logits[index]) > 0.1)
        assert clear.sum() > 1000
        assert np.array_equal(mask[clear], logits[index][clear] > 0)
        assert not mask[: max(0, y1 - 1)].any()


def test_the_threshold_is_a_probability() -> None:
    made = outputs(7)
    logits = expected(made, 0)
    (mask, *_) = masks(segment(made, text="mask_threshold = 0.8"))
    assert mask.any()
    assert 1 / (1 + np.exp(-logits[mask].min())) == pytest.approx(0.8, abs=0.01)


def test_many_pixels_make_the_grid_coarser_and_leave_boxes_alone() -> None:
    made = outputs(3)
    fine, coarse = segment(made), segment(made, text="max_mask_pixels = 1024")
    assert fine.document()["detections"][0]["box"] == coarse.document()["detections"][0]["box"]
    area = sum(int(np.prod(np.diff(each.reshape(2, 2), axis=0))) for each in coarse.detections.found.boxes)
    assert coarse.size[0] * coarse.size[1] <= 640 * 640 * 1024 / (area * 0.9)
    for few, many in zip(masks(coarse), masks(fine), strict=True):
        assert few.mean() == pytest.approx(many.mean(), abs=0.01)


def test_tensors_hold_the_same_masks() -> None:
    task = TASKS["instance-segmentation"](MODEL, options())
    result = task.interpret(outputs(11), None)
    tensors = result.tensors()
    assert {spec.name: spec.datatype.dtype for spec in task.results} == {n: a.dtype for n, a in tensors.items()}
    offsets = tensors["mask_offsets"]
    counts = [tensors["mask_counts"][offsets[i] : offsets[i + 1]].tolist() for i in range(len(offsets) - 1)]
    assert counts == [each["mask"]["counts"] for each in result.document()["detections"]]
    assert tensors["mask_size"].tolist() == [640, 640]


def test_nothing_found_is_an_empty_result() -> None:
    result = segment({"output0": np.zeros((38, 100), np.float32), "output1": np.zeros((32, 160, 160), np.float32)})
    assert result.document() == {"detections": []}
    assert result.tensors()["mask_offsets"].tolist() == [0]


def test_tflite_has_prototypes_last_and_normalised_boxes() -> None:
    made = outputs(13)
    last = {"output0": made["output0"].copy(), "output1": made["output1"].transpose(1, 2, 0)}
    last["output0"][:4] /= 640
    model = vision_model({"output0": (38, 100), "output1": (160, 160, 32)}, TWO)
    text = 'coordinates = "normalised"'
    for one, other in zip(masks(segment(made)), masks(segment(last, text=text, model=model)), strict=True):
        assert (one != other).mean() < 1e-4


def test_the_layout_tells_which_dimension_counts_prototypes() -> None:
    made = outputs(29)
    small = {**made, "output1": np.ascontiguousarray(made["output1"][:, :20, :20].transpose(1, 2, 0))}
    shapes = {"output0": (38, 100), "output1": (20, 20, 32)}
    with pytest.raises(ConfigurationError, match="fits no head"):
        InstanceSegmentation(vision_model(shapes, TWO, (80, 80)), options())
    model = vision_model(shapes, TWO, (80, 80), layout="NHWC")
    assert segment(small, model=model).size == (80, 80)


@pytest.mark.parametrize(
    ("shape", "columns", "head"), [((-1, 39), "yolov5", "yolov5"), ((300, 38), "end", "end-to-end")]
)
def test_other_heads(shape: tuple[int, ...], columns: str, head: str) -> None:
    made = outputs(17)
    v8 = made["output0"][:, :3].T
    corners = np.concatenate((v8[:, :2] - v8[:, 2:4] / 2, v8[:, :2] + v8[:, 2:4] / 2), axis=1)
    best = v8[:, 4:6].max(axis=1, keepdims=True), v8[:, 4:6].argmax(axis=1)[:, np.newaxis]
    rows = {
        "yolov5": np.concatenate((v8[:, :4], np.ones((3, 1)), v8[:, 4:]), axis=1),
        "end": np.concatenate((corners, *best, v8[:, 6:]), axis=1),
    }[columns]
    labels = TWO if head == "yolov5" else (*TWO, "bird")
    model = vision_model({"output0": shape, "output1": (32, 160, 160)}, labels)
    other = segment({**made, "output0": rows.astype(np.float32)}, model=model)
    assert all((a != b).mean() < 1e-4 for a, b in zip(masks(segment(made)), masks(other), strict=True))


def test_an_open_input_is_four_times_the_prototypes() -> None:
    model = vision_model({"output0": (38, -1), "output1": (32, -1, -1)}, TWO, size=None)
    made = outputs(19)
    assert [each.tolist() for each in masks(segment(made, model=model))] == [
        each.tolist() for each in masks(segment(made))
    ]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_prototypes_that_are_no_numbers_are_no_mask(value: float) -> None:
    made = outputs(23)
    made["output1"][0] = value
    for mask in masks(segment(made)):
        assert mask.shape == (640, 640)


def test_models_and_outputs_that_do_not_fit() -> None:
    with pytest.raises(ConfigurationError, match=r"task\.kind: needs a model with two outputs"):
        InstanceSegmentation(vision_model({"output0": (38, 100)}, TWO), options())
    with pytest.raises(ConfigurationError, match="fits no head"):
        InstanceSegmentation(vision_model({"output0": (38, 100), "output1": (32, 160, 160)}, ("a",)), options())
    with pytest.raises(RequestError, match="needs 32 prototypes of masks"):
        segment({**outputs(1), "output1": np.zeros((31, 160, 160), np.float32)})
