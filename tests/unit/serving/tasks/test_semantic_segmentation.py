"""Semantic segmentation: layouts, resizing as in OpenCV, shares, masks as pycocotools decodes them."""

from __future__ import annotations

import json

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.errors import ConfigurationError, RequestError
from gateway.common.domain.tensor import Array, Datatype
from gateway.serving.tasks.catalog import TASKS
from gateway.serving.tasks.frame import Frame, place
from gateway.serving.tasks.semantic_segmentation import SegmentationResult, SemanticSegmentation
from tests.simulators.coco_masks import decoded_mask
from tests.simulators.vision_models import options, vision_model

LABELS = ("background", "road", "sky")
LOGITS = np.random.default_rng(1).normal(0, 1, (3, 16, 16)).astype(np.float32)


def segment(
    array: Array, frame: Frame | None = None, text: str = "", labels: tuple[str, ...] = LABELS, **how: object
) -> SegmentationResult:
    model = vision_model({"y": array.shape}, labels, (64, 64), **how)  # type: ignore[arg-type]
    return SemanticSegmentation(model, options(text)).interpret({"y": array}, frame)


def classes(result: SegmentationResult) -> list[list[int]]:
    return result.tensors()["classes"].tolist()


def by_opencv(size: tuple[int, int], interpolation: int) -> Array:
    return np.stack([cv2.resize(each, size, interpolation=interpolation) for each in LOGITS])


def test_layouts_of_one_map_give_one_result() -> None:
    wanted = classes(segment(LOGITS))
    assert wanted == by_opencv((64, 64), cv2.INTER_NEAREST).argmax(axis=0).tolist()
    assert classes(segment(LOGITS.transpose(1, 2, 0))) == wanted
    assert classes(segment(LOGITS.argmax(axis=0))) == wanted
    assert classes(segment(LOGITS.argmax(axis=0)[np.newaxis], datatype=Datatype.INT64)) == wanted
    assert classes(segment(LOGITS.transpose(1, 2, 0), labels=(), layout="NHWC")) == wanted


@pytest.mark.parametrize("size", [(64, 64), (100, 40), (33, 47), (8, 8)])
def test_bilinear_is_that_of_opencv(size: tuple[int, int]) -> None:
    logits = by_opencv(size, cv2.INTER_LINEAR)
    found = np.array(classes(segment(LOGITS, place("stretch", size, (64, 64)), 'resize = "bilinear"')))
    best = np.sort(logits, axis=0)
    clear = best[2] - best[1] > 1e-4
    assert np.array_equal(found[clear], logits.argmax(axis=0)[clear])
    assert clear.mean() > 0.99


@pytest.mark.parametrize("resize", ["nearest", "bilinear"])
def test_padding_is_no_part_of_the_original(resize: str) -> None:
    """A letterboxed image: rows of padding above and below are of another class."""
    logits = np.zeros((3, 64, 64), np.float32)
    logits[0], logits[1, 16:48], logits[2, 16:48, 32:] = 0.5, 1, 2
    result = segment(logits, place("letterbox", (640, 320), (64, 64)), f'resize = "{resize}"')
    shares = {each["label"]: each["share"] for each in result.document()["classes"]}
    assert shares == {"road": pytest.approx(0.5, abs=0.01), "sky": pytest.approx(0.5, abs=0.01)}
    assert result.document()["size"] == [320, 640]


@given(seed=st.integers(0, 2**32 - 1), width=st.integers(1, 90), height=st.integers(1, 90))
def test_masks_and_shares_cover_the_image_once(seed: int, width: int, height: int) -> None:
    numbers = np.random.default_rng(seed).integers(0, 3, (9, 7))
    result = segment(numbers, place("stretch", (width, height), (64, 64)))
    document = json.loads(json.dumps(result.document()))
    masks = {each["class"]: decoded_mask(each["mask"]) for each in document["classes"]}
    assert (np.sum(list(masks.values()), axis=0) == 1).all()
    for number, mask in masks.items():
        assert np.array_equal(mask, result.classes == number)
    assert result.tensors()["shares"].sum() == pytest.approx(1, abs=1e-5)


def test_one_channel_is_one_class() -> None:
    mask = np.zeros((1, 64, 64), np.float32)
    mask[0, :16] = 0.75
    result = segment(mask, text="threshold = 0.5", labels=("person",))
    assert result.document()["classes"] == [
        {"label": "person", "class": 0, "share": 0.25, "mask": {"size": [64, 64], "counts": [0] + [16, 48] * 64}}
    ]
    assert result.tensors()["classes"].min() == -1


def test_ignored_classes_and_those_beyond_the_labels_are_not_listed() -> None:
    numbers = np.array([[0, 1], [255, 2]])
    listed = segment(numbers, text='ignored = ["background"]').document()["classes"]
    assert [(each["label"], each["share"]) for each in listed] == [("road", 0.25), ("sky", 0.25)]


def test_a_large_original_has_a_coarser_mask() -> None:
    result = segment(LOGITS, place("letterbox", (4000, 3000), (64, 64)), "max_mask_pixels = 1024")
    height, width = result.document()["size"]
    assert height * width <= 1024
    assert width / height == pytest.approx(4 / 3, rel=0.05)


def test_numbers_without_labels_are_bounded() -> None:
    result = segment(np.array([[3, 2**31 - 2], [-5, 70_000]]), labels=())
    assert [each["label"] for each in result.document()["classes"]] == ["3"]
    assert result.tensors()["shares"].tolist() == [0, 0, 0, 0.25]


@pytest.mark.parametrize("resize", ["nearest", "bilinear"])
def test_nan_is_never_the_best_class(resize: str) -> None:
    logits = LOGITS.copy()
    logits[2] = np.nan
    assert {each["label"] for each in segment(logits, text=f'resize = "{resize}"').document()["classes"]} <= set(
        LABELS[:2]
    )


def test_tensors_are_as_declared() -> None:
    task = TASKS["semantic-segmentation"](vision_model({"y": (3, 16, 16)}, LABELS), options())
    tensors = task.interpret({"y": LOGITS}, None).tensors()
    assert {spec.name: spec.datatype.dtype for spec in task.results} == {n: a.dtype for n, a in tensors.items()}


@pytest.mark.parametrize(
    ("shape", "text", "said"),
    [
        ((3, 16, 3), "", "task.layout.*write layout = CHW or HWC"),
        ((5, 16, 16), "", "with 3 labels does not tell it"),
        ((4, 16, 16), 'layout = "CHW"', "task.layout: CHW gives 4 classes, but the manifest has 3 labels"),
        ((16, 16), 'resize = "bilinear"', "numbers of classes cannot be interpolated"),
        ((3, 16, 16), 'ignored = ["sea"]', "must hold only background, road, sky"),
        ((3, 16, 16), "size = 3", "task.size: unknown key"),
    ],
)
def test_wrong_options_say_what_to_write(shape: tuple[int, ...], text: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        SemanticSegmentation(vision_model({"y": shape}, LABELS), options(text))


def test_one_channel_needs_a_threshold() -> None:
    with pytest.raises(ConfigurationError, match=r"task\.threshold: one channel needs it; write 0\.5"):
        SemanticSegmentation(vision_model({"y": (1, 16, 16)}, ("person",)), options())


def test_several_outputs_need_a_name() -> None:
    model = vision_model({"aux": (3, 16, 16), "out": (3, 16, 16)}, LABELS)
    with pytest.raises(ConfigurationError, match=r"task\.output: missing; write output"):
        SemanticSegmentation(model, options())
    SemanticSegmentation(model, options('output = "out"'))


def test_an_output_of_another_shape_is_refused() -> None:
    task = SemanticSegmentation(vision_model({"y": (3, 16, 16)}, LABELS), options())
    for shape in ((4, 16, 16), (16, 16), (3, 0, 16)):
        with pytest.raises(RequestError, match="output 'y' has shape"):
            task.interpret({"y": np.zeros(shape, np.float32)}, None)
