"""Releases are written whole, and what is written is what the gateway reads."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest import Binding, TensorSpec
from gateway.common.domain.manifest_toml import read_manifest
from gateway.common.domain.tensor import Datatype
from gateway.serving.store.library import scan
from gateway.workshop.importing import release_writer
from gateway.workshop.importing.imported import ImportedModel, ImportedVariant, check_name, fitting_labels
from gateway.workshop.importing.release_writer import check_names, release_text, settled, write_releases
from gateway.workshop.making.toml_text import toml_value
from tests.simulators.import_sources import write_sums

X = TensorSpec("x", Datatype.FP32, (-1, 3))
Y = TensorSpec("y", Datatype.FP32, (-1, 3), postprocess="softmax")
VARIANT = ImportedVariant("onnx-fp32", "model.onnx", "onnx", "fp32")
MODEL = ImportedModel("sums", "1", (X,), (Y,), (VARIANT,), labels=("a", 'b"\x7f\n', "ü"))


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    write_sums(folder / "model.onnx")
    return folder


def test_a_release_is_whole(source, tmp_path):
    into = tmp_path / "models"
    assert write_releases([MODEL, replace(MODEL, version="2")], source, into, "source") == [
        into / "sums" / "1",
        into / "sums" / "2",
    ]
    releases = scan(into)
    assert [(each.name, each.version, each.problem) for each in releases] == [("sums", "1", ""), ("sums", "2", "")]
    assert releases[0].manifest.labels == MODEL.labels
    assert sorted(entry.name for entry in into.iterdir()) == ["sums"]


def test_what_is_written_is_read(source):
    image = TensorSpec("image", Datatype.FP32, (-1, 3, 8, 8), "NCHW")
    bind = {"x": Binding("own x", shape=(-1, 3, 1)), "image": Binding("i", "NHWC")}
    model = replace(
        MODEL,
        inputs=(X, image),
        variants=(replace(VARIANT, bind=bind),),
        batch=False,
        max_batch_rows=7,
        preprocess={"image": {"decode": ["jpeg"], "resize": [8, 8], "scale": 0.5, "mean": [0.1, 0.2, 0.3]}},
    )
    manifest = read_manifest(release_text(model, {"onnx-fp32": [release_writer.UNKNOWN]}, "so\nurce"), "m")
    assert manifest.variants[0].bind == bind
    assert (manifest.batch, manifest.max_batch_rows) == (False, 7)
    assert manifest.inputs[1].preprocess.mean == (0.1, 0.2, 0.3)


def test_a_table_of_the_task():
    text = release_text(
        replace(MODEL, task="object-detection", task_options={"head": "yolov8"}), {"onnx-fp32": []}, "x"
    )
    manifest = read_manifest(
        text.replace("artifacts = []", f"artifacts = [{{path='a', sha256='{'0' * 64}', bytes=0}}]"), "m"
    )
    assert (manifest.task, manifest.task_options) == ("object-detection", {"head": "yolov8"})


def test_a_task_that_is_not_known_is_written_as_text():
    model = settled(replace(MODEL, task="crystal-ball", task_options={"depth": 3}))
    assert (model.task, model.task_options) == ("crystal-ball", None)
    assert "is no known kind" in model.findings[-1].text


def test_a_manifest_that_is_not_read_is_an_error():
    with pytest.raises(ConfigurationError, match=r"sums/1/manifest.toml"):
        settled(replace(MODEL, inputs=(replace(X, name=""),)))


def test_nothing_is_replaced(source, tmp_path):
    write_releases([MODEL], source, tmp_path, "source")
    with pytest.raises(ConfigurationError, match="sums/1: exists"):
        write_releases([replace(MODEL, version="2"), MODEL], source, tmp_path, "source")
    assert not (tmp_path / "sums" / "2").exists()


def test_two_releases_of_one_name_are_an_error(tmp_path):
    with pytest.raises(ConfigurationError, match="has sums version 1 twice"):
        check_names([MODEL, MODEL], tmp_path)


@pytest.mark.parametrize("failing", ["model.onnx", "manifest.toml"])
def test_a_failure_leaves_nothing(source, tmp_path, monkeypatch, failing):
    into, real = tmp_path / "models", os.fsync

    def fsync(descriptor):
        if Path(f"/proc/self/fd/{descriptor}").readlink().name == failing:
            raise OSError(28, "No space left on device", failing)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(ConfigurationError, match="cannot be copied: No space left on device"):
        write_releases([MODEL], source, into, "source")
    assert not into.exists()


def test_a_file_that_disappears_is_named(source, tmp_path):
    (source / "model.onnx").unlink()
    with pytest.raises(ConfigurationError, match=r"model.onnx: cannot be copied: No such file"):
        write_releases([MODEL], source, tmp_path / "models", "source")


@pytest.mark.parametrize("name", ["a/b", "..", "", ".x", "a b", "a" * 129, "a\n"])
def test_names_that_no_folder_can_have(name):
    with pytest.raises(ConfigurationError, match="cannot be a folder's name"):
        check_name(name, "name")


@pytest.mark.parametrize(("shape", "fits"), [((-1, 2), True), ((-1, -1), True), ((-1, 3), False), ((-1,), True)])
def test_labels_fit_an_output(shape, fits):
    labels, (finding,) = fitting_labels(("a", "b"), (TensorSpec("y", Datatype.FP32, shape),), "labels.txt")
    assert labels == (("a", "b") if fits else ())
    assert finding.what == "labels.txt"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (1.5, "1.5"),
        ("a\x7f", '"a\\u007f"'),
        ([1, 2], "[1, 2]"),
        ({"a b": 1}, '{"a b" = 1}'),
        ([], "[]"),
    ],
)
def test_values_of_toml(value, text):
    assert toml_value(value) == text
