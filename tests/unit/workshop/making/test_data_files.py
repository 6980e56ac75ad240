"""Samples from images, .npz, .csv and .jsonl, alone and in folders."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest import ModelManifest, Preprocess, TensorSpec, Window
from gateway.common.domain.tensor import Datatype
from gateway.serving.pipelines.golden import stored
from gateway.workshop.making.data_files import read_samples
from gateway.workshop.making.samples import SampleSet
from gateway.workshop.making.settings import CalibrationSettings
from tests.simulators.images_made import stored_turned

OUTPUTS = (TensorSpec("y", Datatype.FP32, (-1, 2)),)
TABLE = ModelManifest(
    "m", "1", (TensorSpec("x", Datatype.FP32, (-1, 3)),), OUTPUTS, (), labels=("low", "high"), batch=True
)
SERIES = replace(TABLE, inputs=(TensorSpec("x", Datatype.FP32, (-1, 2, 3)),), window=Window(("a", "b", "c"), 2, 1, 10))
PICTURE = replace(
    TABLE,
    inputs=(TensorSpec("x", Datatype.FP32, (-1, 1, 4, 4), "NCHW", preprocess=Preprocess(("png",), "gray", (4, 4))),),
)
COLUMNS = replace(TABLE, inputs=(TensorSpec("a", Datatype.FP32, (-1, 1)), TensorSpec("b", Datatype.INT64, (-1, 1))))


def read(data: Path, manifest: ModelManifest = TABLE, *, seed: int = 0, **limits: int) -> SampleSet:
    return read_samples(data, manifest, CalibrationSettings(**limits), seed, lambda: None)


def refused(data: Path, manifest: ModelManifest = TABLE, **limits: int) -> str:
    with pytest.raises(ConfigurationError) as found:
        read(data, manifest, **limits)
    assert str(data.parent) in str(found.value)
    return str(found.value)


def written(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def picture(file: Path, grey: int, size: int = 8) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((size, size), grey, np.uint8)).save(file)


@pytest.mark.parametrize(
    ("text", "values", "labels"),
    [
        ("1,2,3\n4,5,6\n", [[1, 2, 3], [4, 5, 6]], None),
        ("a,b,c,label\n1,2,3,high\n4,5,6,low\n", [[1, 2, 3], [4, 5, 6]], [1, 0]),
        ("time,a,b,c,Class\n0,1,2,3,low\n\n1,4,5,6,low\n", [[1, 2, 3], [4, 5, 6]], [0, 0]),
        ("1,2,3,high\n4,5,6,low\n", [[1, 2, 3], [4, 5, 6]], [1, 0]),
        ("\ufeffc1,c2,c3\r\n1e3,-2,.5\r\n", [[1000, -2, 0.5]], None),
    ],
)
def test_tables(tmp_path: Path, text: str, values: object, labels: object) -> None:
    found = read(written(tmp_path / "t.csv", text))
    assert found.inputs["x"].tolist() == values
    assert found.inputs["x"].dtype == np.float32
    assert (found.labels if found.labels is None else found.labels.tolist()) == labels


def test_frames_of_a_stream_are_the_first_in_their_order(tmp_path: Path) -> None:
    few = CalibrationSettings(calibration_rows=2, heldout_rows=2)
    for number in range(9):
        written(tmp_path / "tables" / f"{number}.csv", f"{number},0,0\n")
        picture(tmp_path / "images" / f"{number}.png", number)
    for folder, manifest in (("tables", TABLE), ("images", PICTURE)):
        found = read_samples(tmp_path / folder, manifest, few, 0, lambda: None, in_order=True)
        assert found.inputs["x"].reshape(4, -1)[:, 0].tolist() == [0, 1, 2, 3]


def test_columns_of_several_inputs_have_their_names(tmp_path: Path) -> None:
    found = read(written(tmp_path / "t.csv", "b,label,a\n7,low,0.5\n8,high,1.5\n"), COLUMNS)
    assert (found.inputs["a"].tolist(), found.inputs["b"].tolist()) == ([[0.5], [1.5]], [[7], [8]])
    assert found.inputs["b"].dtype == np.int64


def test_a_series_becomes_windows_with_the_class_of_most_of_their_rows(tmp_path: Path) -> None:
    rows = ["c,a,b,label", "3,1,2,low", "6,4,5,low", "9,7,8,high", "12,10,11,high", "15,13,14,low"]
    found = read(written(tmp_path / "t.csv", "\n".join(rows)), SERIES)
    assert found.inputs["x"].tolist() == [[[1, 2, 3], [4, 5, 6]], [[7, 8, 9], [10, 11, 12]]]
    assert found.labels is not None
    assert found.labels.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("text", "manifest", "problem"),
    [
        ("", TABLE, "has no rows"),
        ("1,2\n3,4\n", TABLE, "2 columns of values (without names), but the model takes 3"),
        ("a,b,c,d\n1,2,3,4\n", TABLE, "4 columns of values (a, b, c, d), but the model takes 3"),
        ("a,b,c\n1,2,3\n1,x,3\n", TABLE, "row 2 has no number in each of its 3 columns"),
        ("a,b,c\n1,2\n", TABLE, "columns"),
        ("a,b,c,label\n1,2,3,middle\n", TABLE, "'middle' is none of the model's labels"),
        ("a,b,c\n1,2,3\n", SERIES, "1 rows, fewer than one window of 2"),
        ("a,c\n1,3\n", COLUMNS, "must be called a, b"),
        ("a,b,c\n1,2,3\n", PICTURE, "give .npz"),
    ],
)
def test_tables_that_do_not_fit_are_refused(tmp_path: Path, text: str, manifest: ModelManifest, problem: str) -> None:
    assert problem in refused(written(tmp_path / "t.csv", text), manifest)


def test_arrays_are_named_as_inputs_or_as_in_a_golden_set(tmp_path: Path) -> None:
    rows = np.arange(6, dtype=np.float64).reshape(2, 3)
    np.savez(tmp_path / "plain.npz", x=rows, label=np.array([1, 0]))
    np.savez(tmp_path / "golden.npz", **{"input.x": rows, "target": np.array(["low", "high"])})
    plain = read(tmp_path / "plain.npz", replace(TABLE, labels=()))
    golden = read(tmp_path / "golden.npz")
    assert plain.inputs["x"].tolist() == golden.inputs["x"].tolist() == rows.tolist()
    assert plain.labels is not None
    assert golden.labels is not None
    assert (plain.labels.tolist(), golden.labels.tolist()) == ([1, 0], [0, 1])
    assert plain.digest != golden.digest


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        ({"x": np.zeros((2, 4))}, "has the shape [2, 4], but samples of this input are [samples, 3]"),
        ({"x": np.zeros((0, 3))}, "has no samples"),
        ({"z": np.zeros((2, 3))}, "holds no array 'x'; it holds z"),
        ({"x": np.array([["a", "b", "c"]])}, "cannot be used"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path: Path, arrays: dict[str, np.ndarray], problem: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    assert problem in refused(tmp_path / "a.npz")


def test_an_npz_with_pickles_or_damage_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([{}], object))
    assert "pickle" in refused(tmp_path / "a.npz")
    (tmp_path / "a.npz").write_bytes(b"PK\x03\x04" + bytes(50))
    assert "cannot be used" in refused(tmp_path / "a.npz")


def test_images_of_a_folder_for_each_class_pass_the_manifests_preprocess(tmp_path: Path) -> None:
    for grey, name in ((10, "low"), (200, "high")):
        for index in range(2):
            picture(tmp_path / "data" / name / f"{index}.png", grey)
    picture(tmp_path / "data" / ".hidden" / "x.png", 1)
    found = read(tmp_path / "data", PICTURE)
    assert found.inputs["x"].shape == (4, 1, 4, 4)
    assert found.labels is not None
    assert [(grey, label) for grey, label in zip(found.inputs["x"][:, 0, 0, 0], found.labels, strict=True)] == [
        (200, 1),
        (200, 1),
        (10, 0),
        (10, 0),
    ]


def test_images_in_one_folder_have_no_classes(tmp_path: Path) -> None:
    picture(tmp_path / "data" / "photos" / "a.png", 1)
    picture(tmp_path / "data" / "photos" / "b.png", 2)
    assert read(tmp_path / "data", PICTURE).labels is None
    picture(tmp_path / "data" / "c.png", 3)
    assert "only some files have classes" in refused(tmp_path / "data", PICTURE)


def test_of_many_images_some_are_drawn_by_the_seed(tmp_path: Path) -> None:
    for grey in range(40):
        picture(tmp_path / f"{grey:02}.png", grey)
    drawn = [read(tmp_path, PICTURE, seed=seed, calibration_rows=4, heldout_rows=4) for seed in (1, 1, 2)]
    assert [(len(each), each.found) for each in drawn] == [(8, 40)] * 3
    assert drawn[0].digest == drawn[1].digest != drawn[2].digest


def test_of_many_rows_some_are_drawn(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((100, 3)))
    found = read(tmp_path / "a.npz", calibration_rows=4, heldout_rows=4)
    assert (len(found), found.found) == (8, 100)


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["a.png", "b.csv"], "mixes .csv and images"),
        (["README.md"], "holds no samples; put .csv"),
        ([], "holds no samples"),
    ],
)
def test_folders_that_hold_no_samples_are_refused(tmp_path: Path, names: list[str], problem: str) -> None:
    (tmp_path / "data").mkdir()
    for name in names:
        (tmp_path / "data" / name).write_text("")
    assert problem in refused(tmp_path / "data")


def test_other_files_are_refused(tmp_path: Path) -> None:
    assert "does not exist" in refused(tmp_path / "absent")
    assert "no file of samples by its suffix" in refused(written(tmp_path / "a.txt", "1"))
    assert "is not a png image" in refused(written(tmp_path / "a.png", "1"), PICTURE)
    assert "takes no encoded images" in refused(written(tmp_path / "a.png", "1"))
    assert "more than 4 bytes; divide it" in refused(written(tmp_path / "a.csv", "1,2,3"), file_limit_bytes=4)


TASKED = replace(TABLE, labels=(), outputs=(TensorSpec("y", Datatype.FP32, (-1, 1)),))
VALUE = replace(TASKED, task="tabular-regression", task_options={})
FLAG = replace(TASKED, task="anomaly-detection", task_options={"score": "y", "threshold": 1})
TEXT = replace(PICTURE, task="text-recognition", task_options={"charset": "1"})
DETECTOR = replace(
    PICTURE, outputs=(TensorSpec("y", Datatype.FP32, (-1, 6, 21)),), task="object-detection", task_options={}
)
FORECAST = replace(
    SERIES, labels=(), outputs=(TensorSpec("y", Datatype.FP32, (-1, 1)),), task="time-series-forecasting"
)


def flags(found: SampleSet) -> list[bool]:
    return [each.is_anomalous for each in found.truth or ()]


@pytest.mark.parametrize("name", ["target", "value", "label", "y"])
def test_a_column_or_an_array_has_the_truth_of_a_regression(tmp_path: Path, name: str) -> None:
    manifest = replace(VALUE, task_options={"names": ["y"]}) if name == "y" else VALUE
    rows = read(written(tmp_path / "t.csv", f"a,b,c,{name}\n1,2,3,0.5\n4,5,6,-7\n"), manifest)
    assert rows.inputs["x"].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert [each.tolist() for each in rows.truth or ()] == [[[0.5]], [[-7]]]
    assert rows.labels is None
    assert [each.tolist() for each in rows.taken(np.array([1])).truth or ()] == [[[-7]]]
    if name != "y":
        np.savez(tmp_path / "t.npz", x=np.zeros((2, 3)), **{name: np.array([0.5, -7])})
        assert [each.tolist() for each in read(tmp_path / "t.npz", VALUE).truth or ()] == [[[0.5]], [[-7]]]


def test_anomalies_are_0_and_1_or_folders(tmp_path: Path) -> None:
    assert flags(read(written(tmp_path / "t.csv", "a,b,c,label\n1,2,3,0\n4,5,6,1\n"), FLAG)) == [False, True]
    np.savez(tmp_path / "t.npz", x=np.zeros((2, 3)), label=np.array([False, True]))
    assert flags(read(tmp_path / "t.npz", FLAG)) == [False, True]
    for folder in ("good", "scratch"):
        written(tmp_path / "data" / folder / "t.csv", "1,2,3\n")
    assert flags(read(tmp_path / "data", FLAG)) == [False, True]
    (tmp_path / "data" / "good").rename(tmp_path / "data" / "fine")
    assert "'fine' says neither normal nor anomalous" in refused(tmp_path / "data", FLAG)


def test_a_window_is_anomalous_if_one_of_its_rows_is(tmp_path: Path) -> None:
    manifest = replace(SERIES, labels=(), outputs=FLAG.outputs, task=FLAG.task, task_options=FLAG.task_options)
    rows = ["a,b,c,label", "1,2,3,0", "4,5,6,1", "7,8,9,0", "1,1,1,0"]
    assert flags(read(written(tmp_path / "t.csv", "\n".join(rows)), manifest)) == [True, False]


def test_a_forecast_is_compared_with_the_rows_after_the_window(tmp_path: Path) -> None:
    manifest = replace(
        FORECAST, outputs=(TensorSpec("y", Datatype.FP32, (-1, 1, 1)),), task_options={"channels": ["b"]}
    )
    text = "a,b,c\n1,10,3\n1,20,3\n1,30,3\n1,40,3\n"
    found = read(written(tmp_path / "t.csv", text), manifest).truth
    assert found is not None
    assert found[0].tolist() == [[30]]
    assert found[1] is None
    scaled = replace(manifest, task_options={"channels": ["b"], "scale": [2.0]})
    assert read(tmp_path / "t.csv", scaled).truth is None


def test_images_keep_their_places_and_their_annotations_are_no_samples(tmp_path: Path) -> None:
    for name in ("a", "b"):
        picture(tmp_path / "images" / f"{name}.png", 1, size=16)
        picture(tmp_path / "masks" / f"{name}.png", 1, size=16)
    written(tmp_path / "labels.csv", "file,text\na.png,1\nb.png,11\n")
    found = read(tmp_path, TEXT)
    assert (len(found), found.truth) == (2, ("1", "11"))
    assert [(frame.width, frame.scale_x) for frame in found.frames] == [(16, 0.25)] * 2
    assert found.taken(np.array([1])).truth == ("11",)
    assert len(found.taken(np.array([1])).frames) == 1


def test_folders_of_a_detector_are_no_classes(tmp_path: Path) -> None:
    for name in ("train", "val"):
        picture(tmp_path / "images" / name / "a.png", 1)
        written(tmp_path / "labels" / name / "a.txt", "1 0.5 0.5 0.5 0.5\n")
    found = read(tmp_path / "images", DETECTOR)
    assert found.labels is None
    assert [each.classes.tolist() for each in found.truth or ()] == [[1], [1]]


def test_annotations_that_are_named_take_the_place_of_folders(tmp_path: Path) -> None:
    for name in ("low", "high"):
        picture(tmp_path / "data" / name / f"{name}.png", 1)
    file = written(tmp_path / "labels.csv", "file,label\nlow.png,high\nhigh.png,high\n")
    named = read_samples(tmp_path / "data", PICTURE, CalibrationSettings(), 0, lambda: None, annotations=file)
    assert named.labels is not None
    assert named.labels.tolist() == [1, 1]


def test_labels_of_images_may_be_in_a_table(tmp_path: Path) -> None:
    picture(tmp_path / "a.png", 1)
    picture(tmp_path / "b.png", 1)
    written(tmp_path / "labels.csv", "file,label\na.png,high\nb.png,low\n")
    found = read(tmp_path, PICTURE)
    assert found.labels is not None
    assert found.labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        ({"target": np.zeros(3)}, "the truth has 3 samples, the inputs have 2"),
        ({"target": np.zeros((2, 2))}, "the truth of a sample has 2 values, but the result [1]"),
        ({"target": np.array([1.0, np.nan])}, "the truth must be finite numbers"),
    ],
)
def test_truth_that_does_not_fit_is_refused(tmp_path: Path, arrays: dict[str, np.ndarray], problem: str) -> None:
    np.savez(tmp_path / "t.npz", x=np.zeros((2, 3)), **arrays)
    assert problem in refused(tmp_path / "t.npz", VALUE)


def test_annotations_are_named_for_images_only(tmp_path: Path) -> None:
    file = written(tmp_path / "t.csv", "1,2,3\n")
    with pytest.raises(
        ConfigurationError, match="--annotations is for images; tables and arrays have the truth in them"
    ):
        read_samples(file, VALUE, CalibrationSettings(), 0, lambda: None, annotations=tmp_path)


MASKED = replace(PICTURE, inputs=(*PICTURE.inputs, TensorSpec("mask", Datatype.UINT8, (-1, 4), default=1.0)))


def body(rows: list[list[float]], **changes: object) -> str:
    tensor = {"name": "x", "datatype": "FP32", "shape": [len(rows), 3], "data": np.ravel(rows).tolist(), **changes}
    return json.dumps({"id": "7", "inputs": [tensor]})


def test_recorded_requests(tmp_path: Path) -> None:
    lines = [body([[1, 2, 3], [4, 5, 6]]), "", body([[7, 8, 9]], data=[[7, 8, 9]])]
    (tmp_path / "calls.jsonl").write_text("\n".join(lines))
    assert read(tmp_path / "calls.jsonl").inputs["x"].tolist() == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    single = replace(TABLE, batch=False, inputs=(TensorSpec("x", Datatype.FP32, (1, 3)),))
    (tmp_path / "calls.jsonl").write_text("\n".join([body([[1, 2, 3]])] * 2))
    assert read(tmp_path / "calls.jsonl", single).inputs["x"].shape == (2, 1, 3)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2: Expecting"),
        ("[]", "line 2: it is no body"),
        ('{"inputs": []}', "line 2: the request has no input 'x'"),
        (body([[1, 2, 3]], data=[1]), "line 2: cannot reshape"),
        (body([[1, 2, 3]], datatype="FP64"), "line 2: input 'x' has the datatype 'FP64', not FP32"),
        (body([[1, 2, 3]], shape=[1, 1, 3]), "line 2: input 'x' has the shape [1, 1, 3], expected [-1, 3]"),
        (body([[1, 2, 3]]).replace('"data"', '"parameters"'), "line 2: input 'x' has no data in JSON"),
        (body([[1, 2, 3]], data=["a", 2, 3]), "line 2: could not convert"),
    ],
)
def test_requests_that_are_none_are_refused_with_their_line(tmp_path: Path, line: str, words: str) -> None:
    (tmp_path / "calls.jsonl").write_text(f"{body([[1, 2, 3]])}\n{line}\n")
    assert words in refused(tmp_path / "calls.jsonl")
    (tmp_path / "calls.jsonl").write_text("\n")
    assert "has no requests" in refused(tmp_path / "calls.jsonl")


def test_inputs_with_a_default_need_no_data(tmp_path: Path) -> None:
    Image.new("L", (4, 4)).save(tmp_path / "a.png")
    assert read(tmp_path, MASKED).inputs["mask"].tolist() == [[1, 1, 1, 1]]
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 1, 4, 4), np.float32))
    assert read(tmp_path / "a.npz", MASKED).inputs["mask"].shape == (2, 4)
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 1, 4, 4), np.float32), mask=np.full((2, 4), 3))
    assert read(tmp_path / "a.npz", MASKED).inputs["mask"].max() == 3
    pixels = {"name": "x", "datatype": "FP32", "shape": [2, 1, 4, 4], "data": [0.0] * 32}
    (tmp_path / "calls.jsonl").write_text(json.dumps({"inputs": [pixels]}))
    assert read(tmp_path / "calls.jsonl", MASKED).inputs["mask"].tolist() == [[1] * 4] * 2
    np.savez(tmp_path / "a.npz", mask=np.full((2, 4), 3))
    assert "holds no array 'x'; it holds mask" in refused(tmp_path / "a.npz", MASKED)


def test_tables_may_leave_out_inputs_with_a_default(tmp_path: Path) -> None:
    model = replace(TABLE, inputs=(TensorSpec("mode", Datatype.INT64, (-1, 1), default=2.0), *TABLE.inputs))
    found = read(written(tmp_path / "t.csv", "a,b,c,label\n1,2,3,high\n4,5,6,low\n"), model)
    assert {name: array.tolist() for name, array in found.inputs.items()} == {
        "x": [[1, 2, 3], [4, 5, 6]],
        "mode": [[2], [2]],
    }
    model = replace(COLUMNS, inputs=(COLUMNS.inputs[0], replace(COLUMNS.inputs[1], default=5.0)))
    assert read(written(tmp_path / "t.csv", "a\n0.5\n"), model).inputs["b"].tolist() == [[5]]
    assert read(written(tmp_path / "t.csv", "b,a\n7,0.5\n"), model).inputs["b"].tolist() == [[7]]
    assert "must be called a, b" in refused(written(tmp_path / "t.csv", "b,c\n7,0.5\n"), model)


def test_calibration_pictures_are_turned_upright(tmp_path: Path) -> None:
    pixels = np.arange(48, dtype=np.uint8).reshape(6, 8) * 5
    for folder, orientation in (("upright", 1), ("turned", 6)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.png").write_bytes(stored_turned(pixels, orientation))
    upright, turned = (read(tmp_path / folder, PICTURE) for folder in ("upright", "turned"))
    assert np.array_equal(upright.inputs["x"], turned.inputs["x"])
    assert [(frame.width, frame.height) for frame in turned.frames] == [(8, 6)]


def test_a_pipeline_gets_images_and_texts_as_they_are(tmp_path: Path) -> None:
    manifest = ModelManifest("p", "1", (TensorSpec("image", Datatype.BYTES, (-1,)),), (), ())
    for name, content in (("a.png", b"first\0"), ("b.jpg", b"second")):
        (tmp_path / name).write_bytes(content)
    (tmp_path / "labels.csv").write_text("file,label\na.png,cat\nb.jpg,dog\n")
    found = read_samples(tmp_path, manifest, CalibrationSettings(), 0, lambda: None).inputs["image"]
    assert found.tolist() == [b"first\0", b"second"]
    assert stored(found).tolist() == [b"first", b"second"]  # numpy does not keep trailing zeros
    np.savez(tmp_path / "t.npz", image=np.array(["grün", "x"]))
    found = read_samples(tmp_path / "t.npz", manifest, CalibrationSettings(), 0, lambda: None).inputs["image"]
    assert stored(found).tolist() == ["grün".encode(), b"x"]
    few = CalibrationSettings(calibration_rows=0, heldout_rows=32)
    np.savez(tmp_path / "many.npz", image=np.array([b"%d" % number for number in range(100)]))
    assert len(read_samples(tmp_path / "many.npz", manifest, few, 0, lambda: None)) == 32
    two = ModelManifest("p", "1", (*manifest.inputs, TensorSpec("x", Datatype.FP32, (-1,))), (), ())
    with pytest.raises(ConfigurationError, match=r"takes no encoded images alone; .* or give \.npz"):
        read_samples(tmp_path / "a.png", two, CalibrationSettings(), 0, lambda: None)
