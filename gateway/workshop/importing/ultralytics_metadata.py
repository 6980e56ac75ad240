"""Metadata that Ultralytics adds to its exports.

Source: docs.ultralytics.com, "Export"; ultralytics 8.3 `engine/exporter.py`. An ONNX file has it as texts of Python
values, a folder `*_openvino_model` as `metadata.yaml`.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from gateway.common.domain.errors import ConfigurationError
from gateway.workshop.importing.source import Documents, SourceModel, joined
from gateway.workshop.importing.yaml_document import read_yaml

METADATA = "metadata.yaml"
SIGN = "docs.ultralytics.com"
"""Text in the metadata by which an export is recognised."""
LABELS_LIMIT = 100_000
SIDE_LIMIT_PX = 16_384
KEYPOINTS_LIMIT = 1000
TASKS: Mapping[str, str] = {
    "detect": "object-detection",
    "segment": "instance-segmentation",
    "pose": "keypoints",
    "obb": "oriented-boxes",
    "classify": "image-classification",
}


@dataclass(frozen=True, slots=True)
class ExportMetadata:
    """Metadata of an export.

    `task` in its own terms, names of classes, (height, width) in pixels, whether the model suppresses boxes itself, and
    the number of keypoints with that of their values.
    """

    task: str
    labels: tuple[str, ...]
    size: tuple[int, int]
    suppressed: bool = False
    precision: str = ""
    keypoints: tuple[int, int] | None = None


def read_metadata(values: Mapping[str, Any], file: str) -> ExportMetadata:
    """Return the metadata. Raises ConfigurationError for a task or a value that is not known."""
    task = values.get("task")
    if not isinstance(task, str) or task not in TASKS:
        raise ConfigurationError(f"must be one of {', '.join(TASKS)}, not {task!r:.80}", file=file, key="task")
    arguments = values.get("args")
    arguments = arguments if isinstance(arguments, dict) else {}
    return ExportMetadata(
        task=task,
        labels=_labels(values.get("names"), file),
        size=_size(values.get("imgsz"), file),
        suppressed=arguments.get("nms") is True or values.get("nms") is True,
        precision=_precision(arguments),
        keypoints=_keypoints(values.get("kpt_shape"), file) if task == "pose" else None,
    )


def _keypoints(value: Any, file: str) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(each, int) for each in value):
        raise ConfigurationError(f"must be [points, values], not {value!r:.80}", file=file, key="kpt_shape")
    if not 0 < value[0] <= KEYPOINTS_LIMIT or value[1] not in {2, 3}:
        problem = f"must be 1 to {KEYPOINTS_LIMIT} points of 2 or 3 values, not {value!r:.80}"
        raise ConfigurationError(problem, file=file, key="kpt_shape")
    return value[0], value[1]


def _precision(arguments: Mapping[str, Any]) -> str:
    """Return the precision by the arguments of the export; "" if they do not tell it."""
    for key, precision in (("int8", "int8"), ("half", "fp16")):
        if arguments.get(key) is True:
            return precision
    return "fp32" if arguments.get("half") is False else ""


def export_values(documents: Documents, model: SourceModel) -> Mapping[str, Any]:
    """Return the metadata of a model file: its own, or that of the metadata.yaml next to it; {} if there is none."""
    if SIGN in model.header.metadata.get("docs", "") or "Ultralytics" in model.header.metadata.get("author", ""):
        return {key: _literal(text) for key, text in model.header.metadata.items()}
    nearby = joined(str(PurePosixPath(model.path).parent), METADATA)
    if nearby in documents.files and "ltralytics" in documents.text(nearby):
        return read_yaml(documents.text(nearby), nearby)
    return {}


def _literal(text: str) -> Any:
    """Return the value of a Python literal; other text stays as it is."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def _labels(names: Any, file: str) -> tuple[str, ...]:
    """Return the names of the classes by their numbers, which must be 0, 1, 2 and so on."""
    found = dict(enumerate(names)) if isinstance(names, list) else names
    if not isinstance(found, dict) or len(found) > LABELS_LIMIT:
        raise ConfigurationError("must name the classes by their numbers", file=file, key="names")
    by_number = {str(number): str(name) for number, name in found.items()}
    if set(by_number) != set(map(str, range(len(found)))):
        raise ConfigurationError(f"must number {len(found)} classes from 0 without gaps", file=file, key="names")
    return tuple(by_number[str(number)] for number in range(len(found)))


def _size(value: Any, file: str) -> tuple[int, int]:
    sizes = [value, value] if isinstance(value, int) else value
    if not isinstance(sizes, list) or len(sizes) != 2 or not all(_is_side(side) for side in sizes):
        raise ConfigurationError(f"must be [height, width] in pixels, not {value!r:.80}", file=file, key="imgsz")
    return sizes[0], sizes[1]


def _is_side(side: Any) -> bool:
    return isinstance(side, int) and not isinstance(side, bool) and 0 < side <= SIDE_LIMIT_PX
