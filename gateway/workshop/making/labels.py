"""Labels of classes: from text files, from the metadata of ONNX files and from archives at the end of TFLite files."""

from __future__ import annotations

import ast
import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from gateway.common.domain.errors import ConfigurationError
from gateway.common.store.plain import open_plain
from gateway.serving.domain.onnx_header import OnnxHeader
from gateway.workshop.making.settings import WorkshopSettings

_NAMES, CHARACTERS = "names", "character"
"""Metadata of ONNX files: Ultralytics' classes, and PaddleOCR's characters, one in each line."""


def read_labels(file: Path, settings: WorkshopSettings) -> tuple[str, ...]:
    """Return the labels of a file: JSON (a list, or an object by index), else one in each line.

    Raises ConfigurationError.
    """
    try:
        with open_plain(file) as stream:
            content = stream.read(settings.labels_limit_bytes + 1)
        if len(content) > settings.labels_limit_bytes:
            raise ConfigurationError(f"has more than {settings.labels_limit_bytes} bytes; shorten it", file=str(file))
        labels = _parsed(content.decode("utf-8-sig"), is_json=file.suffix.lower() == ".json")
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}; name a file with one label in each line"
        raise ConfigurationError(problem, file=str(file)) from error
    except (ValueError, RecursionError) as error:
        cause = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else error
        raise ConfigurationError(f"holds no labels: {cause}; write one in each line", file=str(file)) from error
    if problem := labels_problem(labels, settings):
        raise ConfigurationError(problem, file=str(file))
    return labels


def labels_problem(labels: tuple[str, ...], settings: WorkshopSettings) -> str:
    """Return why these cannot be the labels of a model, or ""."""
    if not labels:
        return "holds no label; write one in each line"
    if len(labels) > settings.labels_limit:
        return f"holds {len(labels)} labels, at most {settings.labels_limit} are allowed"
    long = next((label for label in labels if len(label) > settings.label_limit_chars), None)
    if long is not None:
        return f"has a label of {len(long)} characters, at most {settings.label_limit_chars} are allowed"
    return ""


def onnx_labels(header: OnnxHeader, settings: WorkshopSettings) -> tuple[tuple[str, ...], str]:
    """Return the labels in an ONNX file and their origin; none if there are none that can be read."""
    found = (
        (_names(header.metadata.get(_NAMES, "")), f"metadata {_NAMES!r} of the file"),
        (_lines(header.metadata.get(CHARACTERS, "")), f"metadata {CHARACTERS!r} of the file"),
        (header.classes, "the classes in the classifier's operator"),
    )
    return next(((labels, why) for labels, why in found if labels and not labels_problem(labels, settings)), ((), ""))


def tflite_labels(file: Path, settings: WorkshopSettings) -> tuple[tuple[str, ...], str]:
    """Return the labels in the archive at the end of a TFLite file, and their origin; none without such an archive."""
    try:
        with open_plain(file) as stream, zipfile.ZipFile(stream) as archive:
            entries = archive.infolist()[: settings.zip_entries_limit]
            texts = [entry for entry in entries if PurePosixPath(entry.filename).suffix == ".txt"]
            for entry in sorted(texts, key=lambda entry: "label" not in entry.filename.lower()):
                labels = _entry_labels(archive, entry, settings)
                if labels and not labels_problem(labels, settings):
                    return labels, f"{PurePosixPath(entry.filename).name!r} in the file's archive"
    except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error):
        return (), ""  # no archive, or a damaged one: the model itself is complete without it
    return (), ""


def _entry_labels(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, settings: WorkshopSettings) -> tuple[str, ...]:
    if entry.file_size > settings.labels_limit_bytes:
        return ()
    with archive.open(entry) as member:
        return _lines(member.read(settings.labels_limit_bytes).decode())


def _parsed(text: str, *, is_json: bool) -> tuple[str, ...]:
    if not is_json:
        return _lines(text)
    found = json.load(io.StringIO(text))
    if isinstance(found, Mapping):
        return _by_index(found)
    if not isinstance(found, list) or not all(isinstance(label, str) for label in found):
        raise ValueError("the JSON is neither a list of texts nor an object of texts by index")
    return tuple(found)


def _by_index(found: Mapping[object, object]) -> tuple[str, ...]:
    """Return labels by index 0, 1, 2, …. Raises ValueError if an index is missing."""
    names = {int(str(index)): str(name) for index, name in found.items()}
    if sorted(names) != list(range(len(names))):
        raise ValueError(f"the indices of labels must be 0 to {len(names) - 1}")
    return tuple(names[index] for index in range(len(names)))


def _lines(text: str) -> tuple[str, ...]:
    lines = text.split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    return tuple(line.rstrip("\r") for line in lines)


def _names(text: str) -> tuple[str, ...]:
    """Return Ultralytics' classes: a Python dictionary by index, written as text."""
    try:
        found = ast.literal_eval(text) if text else {}
        return _by_index(found) if isinstance(found, Mapping) else ()
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return ()
