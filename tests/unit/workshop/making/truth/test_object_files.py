"""Objects of images as COCO and YOLO write them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pycocotools import mask as coco_masks

from gateway.common.domain.errors import ConfigurationError
from gateway.workshop.making.metrics.average_precision import Objects
from gateway.workshop.making.metrics.boxes import Boxes
from gateway.workshop.making.metrics.masks import Masks, decoded
from gateway.workshop.making.metrics.points import PointShapes
from gateway.workshop.making.metrics.polygons import Polygons
from gateway.workshop.making.settings import CalibrationSettings
from gateway.workshop.making.truth.image_set import FoundTruth, ImageSet, TruthForm
from gateway.workshop.making.truth.images import read_object_files
from gateway.workshop.making.truth.kinds import TruthKind

SIZE = (20, 40)
"""Height and width of the images."""
FORM = TruthForm(TruthKind.BOXES, ("cat", "dog"), 2, CalibrationSettings())
CATEGORIES = [{"id": 7, "name": "dog"}, {"id": 9, "name": "cat"}]
BOX = {"id": 1, "image_id": 5, "category_id": 7, "bbox": [4, 2, 10, 6]}


def image_set(folder: Path, *names: str, annotations: Path | None = None) -> ImageSet:
    """Return images of `folder`, which need not be there: their sizes are known."""
    paths = [folder / name for name in names or ("a.jpg",)]
    return ImageSet(paths, [SIZE] * len(paths), paths, folder, annotations)


def coco(folder: Path, *annotations: Any, name: str = "truth.json", images: Any = None, categories: Any = None) -> Path:
    content = {
        "images": images or [{"id": 5, "file_name": "a.jpg"}],
        "categories": categories or CATEGORIES,
        "annotations": list(annotations),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(content))
    return folder / name


def yolo(folder: Path, text: str, name: str = "a.txt") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder / name


def only(found: FoundTruth) -> Objects:
    assert found.items is not None
    assert isinstance(found.items[0], Objects)
    return found.items[0]


def refused(images: ImageSet, form: TruthForm = FORM) -> str:
    with pytest.raises(ConfigurationError) as problem:
        read_object_files(images, form)
    return str(problem.value)


def test_coco_boxes_have_the_models_classes_by_name(tmp_path: Path) -> None:
    coco(tmp_path, BOX, {**BOX, "id": 2, "category_id": 9, "iscrowd": 1})
    found = only(read_object_files(image_set(tmp_path), FORM))
    assert isinstance(found.shapes, Boxes)
    assert found.shapes.corners.tolist() == [[4, 2, 14, 8]] * 2
    assert (found.classes.tolist(), found.crowd.tolist()) == ([1, 0], [False, True])


def test_an_image_that_coco_lists_may_have_no_objects_and_one_that_it_does_not_is_not_judged(tmp_path: Path) -> None:
    coco(tmp_path / "annotations", images=[{"id": 5, "file_name": "a.jpg"}, {"id": 6, "file_name": "gone.jpg"}])
    found = read_object_files(image_set(tmp_path, "a.jpg", "b.jpg"), FORM)
    assert found.items is not None
    assert len(found.items[0].classes) == 0
    assert found.items[1] is None
    first, second = found.remarks
    assert "truth.json has 1 images that are not in the data, such as 'gone.jpg'" in first
    assert "1 images have no annotation in" in second
    assert "'b.jpg'" in second


def test_each_part_of_the_data_may_have_a_coco_file_of_its_own(tmp_path: Path) -> None:
    coco(tmp_path / "train", BOX)
    coco(tmp_path / "valid", {**BOX, "category_id": 9}, images=[{"id": 5, "file_name": "b.jpg"}])
    found = read_object_files(image_set(tmp_path, "train/a.jpg", "valid/b.jpg", "valid/c.jpg"), FORM)
    assert [None if each is None else each.classes.tolist() for each in found.items or ()] == [[1], [0], None]


def test_images_of_one_name_in_several_folders_are_told_apart_by_their_paths(tmp_path: Path) -> None:
    images = [{"id": 5, "file_name": "x/a.jpg"}, {"id": 6, "file_name": "y/a.jpg"}]
    coco(tmp_path, BOX, images=images)
    found = read_object_files(image_set(tmp_path, "x/a.jpg", "y/a.jpg", "z/a.jpg"), FORM)
    assert [None if each is None else len(each.classes) for each in found.items or ()] == [1, 0, None]


@pytest.mark.parametrize("compressed", [True, False])
def test_coco_masks_are_run_lengths(tmp_path: Path, *, compressed: bool) -> None:
    region = np.random.default_rng(4).random(SIZE) < 0.4
    encoded = coco_masks.encode(np.asfortranarray(region, np.uint8))
    counts: Any = encoded["counts"].decode()
    if not compressed:
        flat = np.concatenate(([0], region.T.ravel(), [1 - region[-1, -1]]))
        edges = np.flatnonzero(np.diff(flat))
        counts = np.diff(np.concatenate(([0], edges))).tolist()
    coco(tmp_path, {**BOX, "segmentation": {"size": list(SIZE), "counts": counts}})
    found = only(read_object_files(image_set(tmp_path), replace(FORM, kind=TruthKind.MASKS)))
    assert isinstance(found.shapes, Masks)
    assert (decoded(found.shapes.counts[0], SIZE) == region).all()


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # pycocotools 2.0.11 and numpy 2
@pytest.mark.parametrize("source", ["coco", "yolo"])
def test_polygons_are_filled_as_coco_does_but_for_their_border(tmp_path: Path, source: str) -> None:
    star = np.array([[20, 1], [24, 8], [38, 9], [26, 12], [30, 19], [20, 14], [9, 19], [14, 12], [2, 9], [16, 8]])
    if source == "coco":
        coco(tmp_path, {**BOX, "segmentation": [star.ravel().tolist()]})
    else:
        yolo(tmp_path, "1 " + " ".join(str(share) for share in (star / (SIZE[1], SIZE[0])).ravel()))
    found = only(read_object_files(image_set(tmp_path), replace(FORM, kind=TruthKind.MASKS)))
    assert isinstance(found.shapes, Masks)
    mask = decoded(found.shapes.counts[0], SIZE)
    theirs = coco_masks.decode(coco_masks.frPyObjects([star.ravel().tolist()], *SIZE))[..., 0].astype(bool)
    assert (mask & theirs).sum() / (mask | theirs).sum() > 0.9
    assert found.classes.tolist() == [1]


def test_coco_points_are_those_of_the_model(tmp_path: Path) -> None:
    coco(tmp_path, {**BOX, "keypoints": [5, 6, 2, 0, 0, 0], "area": 30}, {**BOX, "id": 2, "keypoints": [0] * 6})
    found = only(read_object_files(image_set(tmp_path), replace(FORM, kind=TruthKind.KEYPOINTS)))
    assert isinstance(found.shapes, PointShapes)
    assert found.shapes.places[0].tolist() == [[5, 6], [0, 0]]
    assert found.shapes.visible.tolist() == [[True, False], [False, False]]
    assert found.shapes.areas[0] == 30
    assert found.crowd.tolist() == [False, True]


def test_yolo_boxes_are_shares_of_the_image(tmp_path: Path) -> None:
    yolo(tmp_path / "labels" / "val", "1 0.5 0.5 0.25 0.5\n\n0 0.1 0.1 0.2 0.2\n")
    images = image_set(tmp_path / "images" / "val", "a.jpg", "empty.jpg")
    found = read_object_files(images, FORM)
    boxes = only(found).shapes
    assert isinstance(boxes, Boxes)
    assert boxes.corners == pytest.approx(np.array([[15, 5, 25, 15], [0, 0, 8, 4]]))
    assert len((found.items or [])[1].classes) == 0
    assert "1 images have no .txt file" in found.remarks[0]


def test_only_the_last_folder_of_images_has_labels_next_to_it(tmp_path: Path) -> None:
    yolo(tmp_path / "images" / "set" / "labels", "1 0.5 0.5 1 1\n")
    found = read_object_files(image_set(tmp_path / "images" / "set" / "images"), FORM)
    assert only(found).classes.tolist() == [1]


def test_yolo_corners_and_points(tmp_path: Path) -> None:
    yolo(tmp_path, "0 0.25 0.1 0.5 0.1 0.5 0.4 0.25 0.4\n")
    corners = only(read_object_files(image_set(tmp_path), replace(FORM, kind=TruthKind.ORIENTED))).shapes
    assert isinstance(corners, Polygons)
    assert corners.corners[0] == pytest.approx(np.array([[10, 2], [20, 2], [20, 8], [10, 8]]))
    boxes = only(read_object_files(image_set(tmp_path), FORM)).shapes
    assert isinstance(boxes, Boxes)
    assert boxes.corners[0] == pytest.approx(np.array([10, 2, 20, 8]))
    yolo(tmp_path, "0 0.5 0.5 0.5 0.5 0.25 0.5 2 0 0 0\n0 0.5 0.5 0.5 0.5 0.25 0.5 0.75 0.5\n")
    points = only(read_object_files(image_set(tmp_path), replace(FORM, kind=TruthKind.KEYPOINTS))).shapes
    assert isinstance(points, PointShapes)
    assert points.places[:, 0] == pytest.approx(np.array([[10, 10], [10, 10]]))
    assert points.visible.tolist() == [[True, False], [True, True]]
    assert points.areas == pytest.approx(np.full(2, 0.53 * 20 * 10))


def test_annotations_may_be_elsewhere(tmp_path: Path) -> None:
    file = coco(tmp_path / "elsewhere", BOX)
    yolo(tmp_path / "texts", "0 0.5 0.5 1 1\n")
    images = image_set(tmp_path / "data")
    assert read_object_files(images, FORM).items is None
    assert only(read_object_files(replace(images, annotations=file), FORM)).classes.tolist() == [1]
    assert only(read_object_files(replace(images, annotations=tmp_path / "texts"), FORM)).classes.tolist() == [0]


def test_categories_that_are_no_labels_are_told(tmp_path: Path) -> None:
    categories = [*CATEGORIES, {"id": 1, "name": "bird"}]
    coco(tmp_path, BOX, {**BOX, "id": 2, "category_id": 1}, categories=categories)
    found = read_object_files(image_set(tmp_path), FORM)
    assert only(found).classes.tolist() == [1]
    assert "categories that are no labels of the model (bird): they are left out" in found.remarks[0]
    numbered = read_object_files(image_set(tmp_path), replace(FORM, labels=()))
    assert only(numbered).classes.tolist() == [1, 0]
    assert "in the order of their ids" in numbered.remarks[0]


def test_json_files_that_are_no_annotations_of_these_images_are_told(tmp_path: Path) -> None:
    coco(tmp_path, BOX)
    (tmp_path / "captions.json").write_text('{"images": [{"id": 5, "file_name": "a.jpg"}], "annotations": []}')
    (tmp_path / "settings.json").write_text('{"a": 1}')
    coco(tmp_path, images=[{"id": 1, "file_name": "other.jpg"}], name="train.json")
    found = read_object_files(image_set(tmp_path), FORM)
    assert len(only(found).classes) == 1
    assert [remark.partition(" ")[0].rpartition("/")[2] for remark in found.remarks] == [
        "captions.json",
        "settings.json",
        "train.json",
    ]


@pytest.mark.parametrize(
    ("content", "kind", "problem"),
    [
        ([{**BOX, "category_id": 3}], TruthKind.BOXES, "annotation 1 has the category 3, which is not listed"),
        ([{**BOX, "image_id": 3}], TruthKind.BOXES, "annotation 1 has the image 3, which is not listed"),
        ([{"id": 4, "image_id": 5, "category_id": 7}], TruthKind.BOXES, "annotation 4: 'bbox' is missing"),
        ([{**BOX, "bbox": [1, 2]}], TruthKind.BOXES, "annotation 1: "),
        ([BOX], TruthKind.MASKS, "an object has no mask"),
        ([{**BOX, "segmentation": [[1, 2]]}], TruthKind.MASKS, "a polygon needs three points"),
        ([{**BOX, "segmentation": {"size": [2, 2], "counts": [4]}}], TruthKind.MASKS, "its mask has the size [2, 2]"),
        (
            [{**BOX, "segmentation": {"size": [20, 40], "counts": [4]}}],
            TruthKind.MASKS,
            "do not fill a mask of 20 x 40",
        ),
        ([{**BOX, "segmentation": {"size": [20, 40], "counts": "é"}}], TruthKind.MASKS, "no text of COCO's"),
        ([BOX], TruthKind.KEYPOINTS, "an object has no key points"),
        ([{**BOX, "keypoints": [1, 2, 2]}], TruthKind.KEYPOINTS, "an object has 1 key points, but the model 2"),
        ([BOX], TruthKind.ORIENTED, "an object has no corners"),
    ],
)
def test_coco_files_that_do_not_fit_are_refused(tmp_path: Path, content: Any, kind: TruthKind, problem: str) -> None:
    file = coco(tmp_path, *content)
    told = refused(image_set(tmp_path), replace(FORM, kind=kind))
    assert problem in told
    assert str(file) in told


def test_damaged_or_ambiguous_coco_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"images": [{"id": 1}], "categories": [], "annotations": []}')
    assert "a.json: is no COCO file: 'file_name' is missing; export it again" in refused(image_set(tmp_path))
    (tmp_path / "a.json").write_text("{")
    assert "a.json: is no COCO file: " in refused(image_set(tmp_path))
    small = replace(FORM, settings=CalibrationSettings(annotations_bytes=0))
    assert "it has more than 0 bytes" in refused(image_set(tmp_path), small)
    coco(tmp_path, BOX, name="a.json")
    coco(tmp_path, BOX, name="b.json")
    assert "a.json and b.json both list 'a.jpg'; name one of them with --annotations" in refused(image_set(tmp_path))
    assert "more than 1 .json files" in refused(
        image_set(tmp_path), replace(FORM, settings=CalibrationSettings(annotation_files=1))
    )


def test_labels_of_another_model_are_refused(tmp_path: Path) -> None:
    coco(tmp_path, BOX)
    told = refused(image_set(tmp_path), replace(FORM, labels=("car", "bus")))
    assert "its categories (dog) are none of the model's labels (car, bus); rename them, or correct labels" in told


@pytest.mark.parametrize(
    ("line", "kind", "problem"),
    [
        ("2 0.5 0.5 1 1", TruthKind.BOXES, "class 2 is none of the model's 2"),
        ("-1 0.5 0.5 1 1", TruthKind.BOXES, "class -1 is none"),
        ("0.5 0.5 0.5 1 1", TruthKind.BOXES, "class 0.5 is none"),
        ("0 0.5 0.5 1", TruthKind.BOXES, "3 values after the class are neither a box (4) nor a polygon"),
        ("cat 0.5 0.5 1 1", TruthKind.BOXES, "could not convert string to float: 'cat'"),
        ("0 0.5 0.5 1 nan", TruthKind.BOXES, "a value is not finite"),
        ("0 0.5 0.5 1 1 0.5", TruthKind.KEYPOINTS, "5 values after the class are no box and 2 points"),
    ],
)
def test_lines_of_yolo_that_do_not_fit_are_refused(tmp_path: Path, line: str, kind: TruthKind, problem: str) -> None:
    file = yolo(tmp_path, f"0 0.5 0.5 1 1{' 0 0 0 0' if kind is TruthKind.KEYPOINTS else ''}\n{line}\n")
    told = refused(image_set(tmp_path), replace(FORM, kind=kind))
    assert told.startswith(f"{file}:2: ")
    assert problem in told


def test_boxes_are_no_masks(tmp_path: Path) -> None:
    file = yolo(tmp_path, "0 0.5 0.5 1 1\n")
    assert f"{file}: an object has no mask" in refused(image_set(tmp_path), replace(FORM, kind=TruthKind.MASKS))
    assert "it has more than 4 bytes" in refused(
        image_set(tmp_path), replace(FORM, settings=CalibrationSettings(label_file_bytes=4))
    )


def test_annotations_of_the_stored_image_are_refused_where_it_is_turned(tmp_path: Path) -> None:
    listed = {"id": 5, "file_name": "a.jpg"}
    coco(tmp_path, BOX, images=[{**listed, "height": 40, "width": 20}])
    with pytest.raises(ConfigurationError, match=r"'a\.jpg' is annotated as stored.*annotate the upright image"):
        read_object_files(image_set(tmp_path), FORM)
    coco(tmp_path, BOX, images=[{**listed, "height": 20, "width": 40}])
    assert only(read_object_files(image_set(tmp_path), FORM))
