"""Accuracy of quantized variants in terms of their task, from files of annotations to the manifest."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from onnx import helper, numpy_helper

from tests.simulators.models_made import save, shaped
from tests.simulators.square_detector import COLOURS, coco_of, draw_squares, square_detector, yolo_of
from tests.simulators.workshop_tools import by_name, manifest_of, models, new, quantized

pytestmark = pytest.mark.timeout(180)
IMAGES = 120
ONLY = ("--only", "onnx-int8,openvino-fp16", "--max-loss", 0.03)


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a version of a detector of squares."""
    folder = tmp_path_factory.mktemp("detector")
    return new(folder / "models", save(square_detector(), folder / "squares.onnx"), labels=COLOURS)


@pytest.fixture
def version(detector: Path, tmp_path: Path) -> Path:
    """Return a copy of the version, to be changed."""
    return Path(shutil.copytree(detector, tmp_path / "models" / "m" / "1"))


def test_boxes_of_coco_decide_which_variant_of_a_detector_is_kept(tmp_path: Path) -> None:
    version = new(tmp_path / "models", save(square_detector(mixed=True), tmp_path / "squares.onnx"), labels=COLOURS)
    data = tmp_path / "data"
    drawn = draw_squares(data / "images", IMAGES)
    (data / "annotations.json").write_text(coco_of(drawn))
    told = quantized(version, data, *ONLY, "--plot", tmp_path / "squares.svg")
    assert told["accuracy_is"] == "map-50"
    assert told["accuracy_words"] == "mAP at IoU 0.5, annotated boxes, 60 held-out samples"
    found = by_name(told)
    assert found["onnx-fp32"]["accuracy"] == pytest.approx(1.0)
    assert found["openvino-fp16"]["kept"]
    # 8 bits for coordinates up to 64 and scores up to 1 in one layer leave four levels of scores.
    assert 0.5 < found["onnx-int8"]["accuracy"] < 0.97
    assert "not written: it loses 0." in found["onnx-int8"]["note"]
    text = (version / "manifest.toml").read_text()
    assert f"# measured: {told['accuracy_words']}\naccuracy = 1.0\n" in text
    assert told["accuracy_words"] in (tmp_path / "squares.svg").read_text()
    assert [variant.name for variant in manifest_of(version).variants] == ["onnx-fp32", "openvino-fp16"]
    assert models("check", version).returncode == 0


def test_boxes_of_yolo_and_of_the_float_variant_tell_the_same_of_a_detector_that_is_right(
    version: Path, tmp_path: Path
) -> None:
    drawn = draw_squares(tmp_path / "yolo" / "images", IMAGES)
    draw_squares(tmp_path / "plain", IMAGES)
    (tmp_path / "yolo" / "labels").mkdir()
    for name, squares in drawn.items():
        (tmp_path / "yolo" / "labels" / name).with_suffix(".txt").write_text(yolo_of(squares))
    annotated = quantized(version, tmp_path / "yolo", *ONLY)
    alone = quantized(version, tmp_path / "plain", *ONLY)
    assert alone["accuracy_words"] == "mAP at IoU 0.5 against onnx-fp32, 60 held-out samples"
    assert by_name(annotated)["onnx-int8"]["kept"], "scores are joined with boxes behind the last weights"
    accuracies = [{name: each["accuracy"] for name, each in by_name(told).items()} for told in (annotated, alone)]
    assert accuracies[0] == pytest.approx(accuracies[1])


def test_the_table_shows_the_metric_and_other_figures(tmp_path: Path) -> None:
    weights = numpy_helper.from_array(np.array([[1.0], [2.0], [-1.0]], np.float32), "w")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    folder = new(
        tmp_path / "models",
        save(shaped({"x": ["n", 3]}, {"y": ["n", 1]}, node, initializer=[weights]), tmp_path / "m.onnx"),
    )
    rows = np.random.default_rng(5).normal(size=(200, 3))
    truth = rows @ [1, 2, -1] + 0.5
    table = [",".join(map(str, [*row, value])) for row, value in zip(rows, truth, strict=True)]
    (tmp_path / "rows.csv").write_text("\n".join(["a,b,c,target", *table]))
    done = models("quantize", folder, "--calibration", tmp_path / "rows.csv", "--only", "openvino-fp16")
    assert done.returncode == 0, done.stderr
    header, _, own, *_ = done.stdout.splitlines()
    assert [cell.strip() for cell in header.split("┃")][:4] == ["variant", "accuracy", "loss", "MAE"]
    assert own.split("│")[3].strip() == "0.5"
    assert "accuracy  explained deviation (D²), annotated values, 100 held-out samples" in done.stdout


def test_annotations_of_an_author_do_not_replace_the_golden_set(version: Path, tmp_path: Path) -> None:
    draw_squares(tmp_path / "first", IMAGES)
    quantized(version, tmp_path / "first", "--only", "openvino-fp16")
    (version / ".quantized" / "record.json").unlink()  # from now on, the golden set is an author's
    golden = (version / "golden.npz").read_bytes()
    drawn = draw_squares(tmp_path / "second", IMAGES, seed=1)
    (tmp_path / "truth.json").write_text(coco_of(drawn))
    told = quantized(version, tmp_path / "second", *ONLY, "--annotations", tmp_path / "truth.json")
    assert told["accuracy_words"] == "mAP at IoU 0.5, annotated boxes, 60 held-out samples"
    assert (version / "golden.npz").read_bytes() == golden
    assert "openvino-fp16 is not made: the release has one of its author" in told["remarks"]
    assert by_name(told)["openvino-fp16"]["accuracy"] == pytest.approx(1.0)
    assert models("check", version).returncode == 0


@pytest.mark.parametrize(
    ("names", "options", "problem"),
    [
        (("rot", "gruen", "blau"), [], "are none of the model's labels (red, green, blue); rename them"),
        (COLOURS, ["--annotations", "absent.json"], "does not exist; name the annotations"),
        (COLOURS, ["--annotations", __file__], "has no boxes of these images in a known form"),
    ],
)
def test_annotations_that_do_not_fit_are_refused(
    version: Path, tmp_path: Path, names: tuple[str, ...], options: list[str], problem: str
) -> None:
    drawn = draw_squares(tmp_path / "data", 6)
    (tmp_path / "data" / "truth.json").write_text(coco_of(drawn, names))
    before = (version / "manifest.toml").read_bytes()
    done = models("quantize", version, "--calibration", tmp_path / "data", *options)
    assert done.returncode == 2
    assert problem in done.stderr
    assert done.stderr.count("\n") == 1
    assert (version / "manifest.toml").read_bytes() == before


def test_a_model_of_key_points_gets_a_task(tmp_path: Path) -> None:
    file = save(shaped({"images": ["n", 3, 64, 64]}, {"output0": ["n", 56, 84]}), tmp_path / "pose.onnx")
    done = models("new", file, "--models", tmp_path / "models", "--json")
    assert done.returncode == 0, done.stderr
    manifest = manifest_of(Path(json.loads(done.stdout)["folder"]))
    assert (manifest.task, (manifest.task_options or {})["values"]) == ("keypoints", 3)
    assert models("new", file, "--models", tmp_path / "models", "--task", "poses").returncode == 2
