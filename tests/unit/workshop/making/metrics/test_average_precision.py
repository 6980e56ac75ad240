"""Mean average precision against COCO's own evaluation: of boxes, masks and key points."""

from __future__ import annotations

import contextlib
import io
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pycocotools import mask as coco_masks
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from gateway.serving.tasks.run_lengths import encode_region
from gateway.workshop.making.metrics.average_precision import Objects, Shapes, mean_average_precision
from gateway.workshop.making.metrics.boxes import Boxes
from gateway.workshop.making.metrics.masks import Masks
from gateway.workshop.making.metrics.points import PointShapes

SIZE = (60, 80)
"""Height and width of the images."""
CLASSES = 4


def coco_map(kind: str, expected: list[dict[str, Any]], found: list[dict[str, Any]], images: int) -> float:
    """Return COCO's mAP at 0.5, with as many detections of an image as there are."""
    truth = COCO()
    truth.dataset = {
        "info": {},
        "images": [{"id": number, "height": SIZE[0], "width": SIZE[1]} for number in range(1, images + 1)],
        "categories": [{"id": number} for number in range(CLASSES)],
        "annotations": [{**each, "id": number} for number, each in enumerate(expected, 1)],
    }
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # pycocotools 2.0.11 and numpy 2
        truth.createIndex()
        evaluation = COCOeval(truth, truth.loadRes(found), kind)
        evaluation.params.maxDets = [10, 100, 3000]
        evaluation.params.iouThrs = np.array([0.5])
        if kind == "keypoints":
            evaluation.params.areaRng, evaluation.params.areaRngLbl = [[0, 1e10]], ["all"]
        evaluation.evaluate()
        evaluation.accumulate()
    precision = evaluation.eval["precision"][0, :, :, 0, -1]
    return float(precision[precision > -1].mean())


def random_boxes(random: np.random.Generator, count: int) -> np.ndarray:
    """Return boxes of whole pixels inside of an image; many of them overlap."""
    places = random.integers(0, 40, (count, 2))
    return np.concatenate((places, places + random.integers(4, 20, (count, 2))), axis=1).astype(float)


def near(boxes: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return boxes like those of a detector: near `boxes`, and some elsewhere."""
    moved = np.clip(boxes + random.integers(-4, 5, boxes.shape), 0, 59)
    moved[:, 2:] = np.maximum(moved[:, 2:], moved[:, :2] + 1)
    return np.concatenate((moved, random_boxes(random, 5)))


def wide(boxes: np.ndarray) -> list[list[float]]:
    """Return boxes as COCO has them: x, y, width, height."""
    return np.concatenate((boxes[:, :2], boxes[:, 2:] - boxes[:, :2]), axis=1).tolist()


def ellipse(box: np.ndarray) -> np.ndarray:
    rows, columns = np.mgrid[: SIZE[0], : SIZE[1]] + 0.5
    (left, top), (right, bottom) = box[:2], box[2:]
    x, y = (columns - (left + right) / 2) / (right - left), (rows - (top + bottom) / 2) / (bottom - top)
    return np.asarray(x**2 + y**2 <= 0.25)


def as_boxes(boxes: np.ndarray, random: np.random.Generator) -> tuple[Shapes, list[dict[str, Any]]]:
    entries = [{"bbox": box, "area": box[2] * box[3]} for box in wide(boxes)]
    return Boxes(boxes), entries


def as_masks(boxes: np.ndarray, random: np.random.Generator) -> tuple[Shapes, list[dict[str, Any]]]:
    regions = [ellipse(box) for box in boxes]
    entries = [
        {
            "bbox": box,
            "area": float(region.sum()),
            "segmentation": coco_masks.encode(np.asfortranarray(region, np.uint8)),
        }
        for box, region in zip(wide(boxes), regions, strict=True)
    ]
    return Masks(SIZE, [encode_region(region, 0, 0, SIZE) for region in regions]), entries


def as_points(boxes: np.ndarray, random: np.random.Generator) -> tuple[Shapes, list[dict[str, Any]]]:
    """Place 17 points evenly in each box, some of which are not visible, of an object that is large enough for 0.5."""
    shares = np.linspace(0.1, 0.9, 17)[np.newaxis, :, np.newaxis]
    places = boxes[:, np.newaxis, :2] + shares * (boxes[:, np.newaxis, 2:] - boxes[:, np.newaxis, :2])
    visible = random.random(places.shape[:2]) < 0.7
    visible[:, 0] = True
    sides = boxes[:, 2:] - boxes[:, :2]
    entries = [
        {
            "bbox": box,
            "area": box[2] * box[3] * 9,
            "num_keypoints": int(seen.sum()),
            "keypoints": np.column_stack((points, seen * 2)).ravel().tolist(),
        }
        for box, points, seen in zip(wide(boxes), places, visible, strict=True)
    ]
    return PointShapes(places, visible, sides.prod(axis=1) * 9, boxes), entries


MAKERS: dict[str, Callable[[np.ndarray, np.random.Generator], tuple[Shapes, list[dict[str, Any]]]]] = {
    "bbox": as_boxes,
    "segm": as_masks,
    "keypoints": as_points,
}


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("seed", range(6))
def test_it_is_that_of_coco(kind: str, seed: int) -> None:
    random, images = np.random.default_rng(seed), 7
    expected, found, truths, results = list[Objects](), list[Objects](), list[dict[str, Any]](), list[dict[str, Any]]()
    for image in range(1, images + 1):
        boxes = random_boxes(random, int(random.integers(0, 7)))
        classes, crowd = random.integers(0, CLASSES - 1, len(boxes)), random.random(len(boxes)) < 0.2
        shapes, entries = MAKERS[kind](boxes, random)
        expected.append(Objects(classes, np.ones(len(boxes)), crowd, shapes))
        told = {"image_id": image}
        truths += [
            {**told, "category_id": int(number), "iscrowd": int(is_crowd), **entry}
            for number, is_crowd, entry in zip(classes, crowd, entries, strict=True)
        ]
        guessed = near(boxes, random)
        numbers, scores = random.integers(0, CLASSES, len(guessed)), random.integers(1, 9, len(guessed)) / 10
        numbers[: len(classes)] = classes
        shapes, entries = MAKERS[kind](guessed, random)
        found.append(Objects(numbers, scores, np.zeros(len(guessed), bool), shapes))
        results += [
            {**told, "category_id": int(number), "score": float(score), **entry}
            for number, score, entry in zip(numbers, scores, entries, strict=True)
        ]
    wanted = coco_map(kind, truths, results, images)
    assert 0.0 < wanted < 1.0
    assert mean_average_precision(found, expected) == pytest.approx(wanted, abs=1e-9)


def objects(count: int, *, crowd: bool = False) -> Objects:
    boxes = np.array([[0.0, 0.0, 9.0, 9.0]]).repeat(count, axis=0) + np.arange(count)[:, np.newaxis] * 20
    return Objects(np.zeros(count, int), np.ones(count), np.full(count, crowd), Boxes(boxes))


def test_of_equal_overlaps_the_last_object_is_taken_as_in_coco() -> None:
    boxes = [np.array([[0.0, 0.0, 20.0, 10.0], [0.0, 0.0, 10.0, 20.0]]), np.array([[0.0, 0.0, 20.0, 20.0]])]
    found = np.concatenate((boxes[1], np.array([[0.0, 0.0, 10.0, 20.0]])))
    truth, guessed = (
        Objects(np.zeros(2, int), scores, np.zeros(2, bool), Boxes(shape))
        for shape, scores in ((boxes[0], np.ones(2)), (found, np.array([0.9, 0.8])))
    )
    told = {"image_id": 1, "category_id": 0}
    entries = [{**told, "iscrowd": 0, **each} for each in as_boxes(boxes[0], np.random.default_rng(0))[1]]
    results = [{**told, "score": 0.9 - place / 10, "bbox": box} for place, box in enumerate(wide(found))]
    wanted = coco_map("bbox", entries, results, 1)
    assert wanted < 1.0
    assert mean_average_precision([guessed], [truth]) == pytest.approx(wanted)


def test_what_is_found_exactly_is_1_and_nothing_found_is_0() -> None:
    assert mean_average_precision([objects(3)], [objects(3)]) == 1.0
    assert mean_average_precision([objects(0)], [objects(3)]) == 0.0
    assert mean_average_precision([objects(2)], [objects(4)]) == pytest.approx(51 / 101)


def test_without_an_expected_object_it_is_not_defined() -> None:
    assert math.isnan(mean_average_precision([objects(3)], [objects(0)]))
    assert math.isnan(mean_average_precision([objects(3)], [objects(1, crowd=True)]))
