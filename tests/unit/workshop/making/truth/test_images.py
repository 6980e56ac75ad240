"""Truth of images in tables and masks, and where it is looked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest import ModelManifest, Preprocess, TensorSpec
from gateway.common.domain.tensor import Datatype
from gateway.workshop.making.metrics.class_iou import NO_CLASS, NOT_JUDGED, ClassRuns
from gateway.workshop.making.metrics.roc_auc import AnomalyVerdict
from gateway.workshop.making.settings import CalibrationSettings
from gateway.workshop.making.truth.image_set import FoundTruth, ImageSet
from gateway.workshop.making.truth.images import read_image_truth
from tests.simulators.images_made import stored_turned

INPUT = TensorSpec("x", Datatype.FP32, (-1, 1, 4, 4), "NCHW")
OUTPUT = TensorSpec("y", Datatype.FP32, (-1, 2))
SIZE = (2, 3)


def model(kind: str, labels: tuple[str, ...] = (), **options: object) -> ModelManifest:
    return ModelManifest("m", "1", (INPUT,), (OUTPUT,), (), kind, labels=labels, task_options=options)


TEXT, FLAG = model("text-recognition"), model("anomaly-detection")
CLASSES, VALUES = model("image-classification"), model("tabular-regression", names=["width", "height"])
MASKS = model("semantic-segmentation", ("road", "sky"))


def images(folder: Path, *names: str, annotations: Path | None = None) -> ImageSet:
    paths = [folder / name for name in names or ("a.png", "b.png")]
    return ImageSet(paths, [SIZE] * len(paths), paths, folder, annotations)


def read(found: ImageSet, manifest: ModelManifest, **limits: int) -> FoundTruth:
    return read_image_truth(found, manifest, CalibrationSettings(**limits))


def refused(found: ImageSet, manifest: ModelManifest, **limits: int) -> str:
    with pytest.raises(ConfigurationError) as problem:
        read(found, manifest, **limits)
    return str(problem.value)


def table(folder: Path, text: str, name: str = "labels.csv") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder / name


def mask(file: Path, numbers: object, mode: str = "L") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(np.array(numbers, np.uint8), "L")
    if mode == "P":
        image.putpalette([255, 0, 0] * 256)
    (image if mode in {"L", "P"} else image.convert(mode)).save(file)
    return file


@pytest.mark.parametrize(
    ("manifest", "text", "items"),
    [
        (TEXT, "file,text\na.png,12\nb.png, AB 3\n", ["12", "AB 3"]),
        (TEXT, "text,file\n12,photos/a.png\n0,b.png\n", ["12", "0"]),
        (CLASSES, "image,label\nb.png,cat\na.png,dog\n", ["dog", "cat"]),
        (FLAG, "file,label\na.png,0\nb.png,1\n", [False, True]),
        (VALUES, "file,height,width\na.png,1,2\nb.png,3,4\n", [[2, 1], [4, 3]]),
    ],
)
def test_a_table_has_a_row_for_each_image(tmp_path: Path, manifest: ModelManifest, text: str, items: object) -> None:
    table(tmp_path, text)
    folder = tmp_path / "photos" if "photos" in text else tmp_path
    found = read(replace(images(folder), data=tmp_path), manifest).items
    assert found is not None
    plain = [each.is_anomalous if isinstance(each, AnomalyVerdict) else each for each in found]
    assert [each.tolist() if isinstance(each, np.ndarray) else each for each in plain] == items


def test_tabs_other_places_and_rows_of_other_images(tmp_path: Path) -> None:
    table(tmp_path, "file\ttext\na.png\t1,5\ngone.png\t7\n", "labels.tsv")
    found = read(images(tmp_path / "images"), TEXT)
    assert found.items == ["1,5", None]
    assert "labels.tsv has 1 images that are not in the data, such as 'gone.png'" in found.remarks[0]
    assert "1 images have no annotation in" in found.remarks[1]
    named = table(tmp_path / "x", "file,text\na.png,2\nb.png,3\n", "mine.csv")
    assert read(images(tmp_path / "images", annotations=named), TEXT).items == ["2", "3"]
    (tmp_path / "elsewhere").mkdir()
    assert read(images(tmp_path / "elsewhere"), TEXT).items is None


@pytest.mark.parametrize(
    ("manifest", "text", "problem"),
    [
        (TEXT, "file,words\na.png,1\n", "its first row must name the columns file and text or label"),
        (TEXT, "file,text\na.png\n", "row 2 has 1 columns"),
        (TEXT, "file,text\nx.png,1\n", "has no row for 'a.png' and 1 others"),
        (CLASSES, "file,label\na.png,cat\n", "has no row for 'b.png' and 0 others; write one for each image"),
        (FLAG, "file,label\na.png,0\nb.png,maybe\n", "'maybe' says neither normal nor anomalous; write 0 or 1"),
        (VALUES, "file,width,height\na.png,1,x\nb.png,1,1\n", "'1, x' is no number"),
        (VALUES, "file,width,height\na.png,1,inf\nb.png,1,1\n", "'1, inf' is not finite"),
        (TEXT, "", "its first row must name"),
    ],
)
def test_tables_that_do_not_fit_are_refused(tmp_path: Path, manifest: ModelManifest, text: str, problem: str) -> None:
    file = table(tmp_path, text)
    told = refused(images(tmp_path), manifest)
    assert problem in told
    assert str(file) in told


def test_a_table_that_is_too_large_is_refused(tmp_path: Path) -> None:
    table(tmp_path, "file,text\na.png,1\n")
    assert "it has more than 4 bytes" in refused(images(tmp_path), TEXT, annotations_bytes=4)


@pytest.mark.parametrize("mode", ["L", "P"])
def test_masks_have_the_numbers_of_classes(tmp_path: Path, mode: str) -> None:
    mask(tmp_path / "masks" / "val" / "a.png", [[0, 1, 1], [1, 255, 0]], mode)
    found = read(images(tmp_path / "images" / "val", "a.jpg", "b.jpg"), MASKS)
    assert found.items is not None
    runs = found.items[0]
    assert isinstance(runs, ClassRuns)
    numbers = np.repeat(runs.classes, np.diff(runs.edges)).reshape(3, 2).T
    assert numbers.tolist() == [[0, 1, 1], [1, NOT_JUDGED, 0]]
    assert found.items[1] is None
    assert "1 images have no annotation in" in found.remarks[0]


def test_a_mask_is_turned_as_its_image_is(tmp_path: Path) -> None:
    (tmp_path / "masks").mkdir()
    (tmp_path / "masks" / "a.png").write_bytes(stored_turned(np.array([[0, 1, 1], [1, 255, 0]], np.uint8), 6))
    spec = replace(INPUT, preprocess=Preprocess(("jpeg",)))
    found = read(images(tmp_path, "a.jpg"), replace(MASKS, inputs=(spec,))).items
    assert found is not None
    numbers = np.repeat(found[0].classes, np.diff(found[0].edges)).reshape(3, 2).T
    assert numbers.tolist() == [[0, 1, 1], [1, NOT_JUDGED, 0]]
    stored = replace(spec, preprocess=Preprocess(("jpeg",), orientation="stored"))
    assert "it has 2 x 3 pixels, its image 3 x 2" in refused(
        images(tmp_path, "a.jpg"), replace(MASKS, inputs=(stored,))
    )


def test_masks_of_one_class_have_a_background(tmp_path: Path) -> None:
    mask(tmp_path / "masks" / "a.png", [[0, 255, 1], [0, 0, 0]])
    found = read(images(tmp_path, "a.jpg"), replace(MASKS, labels=("road",))).items
    assert found is not None
    assert set(found[0].classes.tolist()) == {0, NO_CLASS}
    elsewhere = images(tmp_path / "images", "a.jpg", annotations=tmp_path / "masks")
    assert read(elsewhere, MASKS).items is not None


def test_masks_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    file = mask(tmp_path / "masks" / "a.png", [[0, 2, 1], [1, 0, 0]])
    assert f"{file}: has the class 2, but the model has 2" in refused(images(tmp_path, "a.jpg"), MASKS)
    mask(file, [[0, 1], [1, 0]])
    assert "it has 2 x 2 pixels, its image 3 x 2" in refused(images(tmp_path, "a.jpg"), MASKS)
    mask(file, [[0, 1, 1], [1, 0, 0]], "RGB")
    assert "its pixels are colours (RGB), not numbers of classes" in refused(images(tmp_path, "a.jpg"), MASKS)
    file.write_bytes(b"no png")
    assert "is no mask of classes" in refused(images(tmp_path, "a.jpg"), MASKS)


def test_annotations_that_are_named_must_be_there_and_be_known(tmp_path: Path) -> None:
    assert "does not exist" in refused(images(tmp_path, annotations=tmp_path / "absent.json"), TEXT)
    (tmp_path / "notes.txt").write_text("")
    assert "has no texts of these images" in refused(images(tmp_path, annotations=tmp_path / "notes.txt"), TEXT)
    assert "has no boxes of these images" in refused(
        images(tmp_path, annotations=tmp_path / "notes.txt"), model("object-detection")
    )
    assert "has no truth of these images" in refused(
        images(tmp_path, annotations=tmp_path / "notes.txt"), model("embedding")
    )
