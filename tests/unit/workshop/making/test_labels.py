"""Labels from files, metadata and archives."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import pytest

from gateway.common.domain.errors import ConfigurationError
from gateway.serving.domain.onnx_header import OnnxHeader
from gateway.workshop.making.labels import onnx_labels, read_labels, tflite_labels
from gateway.workshop.making.settings import WorkshopSettings

SETTINGS = WorkshopSettings()
NARROW = WorkshopSettings(labels_limit_bytes=64, labels_limit=4, label_limit_chars=8)


@pytest.mark.parametrize(
    ("name", "text", "labels"),
    [
        ("labels.txt", "cat\ndog\n\n", ("cat", "dog")),
        ("labels.txt", "\ufeffcat\r\n\r\ndog\r\n", ("cat", "", "dog")),
        ("labels.txt", " \nchat noir\n", (" ", "chat noir")),
        ("labels.json", '["cat", "dog"]', ("cat", "dog")),
        ("labels.json", '{"1": "dog", "0": "cat"}', ("cat", "dog")),
    ],
)
def test_files_of_labels(tmp_path: Path, name: str, text: str, labels: tuple[str, ...]) -> None:
    (tmp_path / name).write_text(text, newline="")
    assert read_labels(tmp_path / name, SETTINGS) == labels


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("labels.txt", b"", "holds no label"),
        ("labels.txt", b"\xff\xfe", "holds no labels"),
        ("labels.txt", b"a\n" * 5, "holds 5 labels, at most 4"),
        ("labels.txt", b"a long label\n", "a label of 12 characters"),
        ("labels.txt", b"x" * 65, "more than 64 bytes"),
        ("labels.json", b"[1, 2]", "neither a list of texts"),
        ("labels.json", b'{"0": "a", "2": "b"}', "must be 0 to 1"),
        ("labels.json", b'{"zero": "a"}', "holds no labels"),
        ("labels.json", b"[" * 60, "holds no labels"),
    ],
)
def test_files_that_hold_no_labels_are_refused(tmp_path: Path, name: str, content: bytes, problem: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigurationError, match=problem) as refused:
        read_labels(tmp_path / name, NARROW)
    assert str(tmp_path / name) in str(refused.value)


def test_an_absent_file_is_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"labels\.txt: cannot be read: No such file"):
        read_labels(tmp_path / "labels.txt", SETTINGS)


@pytest.mark.parametrize(
    ("header", "labels"),
    [
        (OnnxHeader(metadata={"names": "{0: 'person', 1: \"driver's cab\"}"}), ("person", "driver's cab")),
        (OnnxHeader(metadata={"names": "{1: 'a', 2: 'b'}"}), ()),
        (OnnxHeader(metadata={"names": "__import__('os').getcwd()"}), ()),
        (OnnxHeader(metadata={"names": "["}), ()),
        (OnnxHeader(metadata={"names": "{" * 400}), ()),
        (OnnxHeader(metadata={"names": "[1, 2]"}), ()),
        (OnnxHeader(metadata={"character": "a\nb\n \n"}), ("a", "b")),
        (OnnxHeader(classes=("low", "high")), ("low", "high")),
        (OnnxHeader(), ()),
    ],
)
def test_labels_of_onnx_files(header: OnnxHeader, labels: tuple[str, ...]) -> None:
    found, why = onnx_labels(header, SETTINGS)
    assert found == labels
    assert bool(why) == bool(labels)


def archived(**texts: str) -> bytes:
    """Return a file with an archive at its end, as TFLite metadata are stored."""
    content = io.BytesIO()
    content.write(b"\x1c\0\0\0TFL3" + bytes(100))
    with zipfile.ZipFile(content, "a") as archive:
        for name, text in texts.items():
            archive.writestr(f"{name}.txt", text)
    return content.getvalue()


def test_labels_of_tflite_files_are_in_the_archive_at_their_end(tmp_path: Path) -> None:
    file = tmp_path / "model.tflite"
    file.write_bytes(archived(anchors="1\n2\n", labelmap="background\ncat\n"))
    assert tflite_labels(file, SETTINGS) == (("background", "cat"), "'labelmap.txt' in the file's archive")


@pytest.mark.parametrize(
    "content", [b"", b"TFL3" * 100, archived(), archived(labels="x" * 100), archived(labels="a")[:-30]]
)
def test_a_tflite_file_without_labels_has_none(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "model.tflite"
    file.write_bytes(content)
    assert tflite_labels(file, NARROW) == ((), "")


def test_json_of_many_digits_is_refused(tmp_path: Path) -> None:
    (tmp_path / "labels.json").write_text(json.dumps({"9" * 5000: "a"}))
    with pytest.raises(ConfigurationError, match="holds no labels"):
        read_labels(tmp_path / "labels.json", SETTINGS)
