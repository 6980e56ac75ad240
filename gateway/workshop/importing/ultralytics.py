"""Source `ultralytics`: exports of Ultralytics to ONNX, OpenVINO and TFLite, with the metadata that it adds.

Several exports of one model become its variants. The heads are those of `[task]`. An ONNX file has the metadata as
texts of Python values, a folder `*_openvino_model` as `metadata.yaml`.

Source: docs.ultralytics.com, "Export"; ultralytics 8.3 `engine/exporter.py`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest import ROWS, Binding, TensorSpec
from gateway.common.domain.verdict import Signature
from gateway.serving.tasks.keypoints import COCO_KEYPOINTS
from gateway.workshop.importing.imported import (
    ImportedModel,
    ImportedSource,
    ImportedVariant,
    ImportFinding,
    fitting_labels,
    left_out,
    plain_name,
    precision_finding,
    shapes,
    taken,
    to_add,
    variant_of,
)
from gateway.workshop.importing.pixels import PixelSteps, image_spec, preprocess_keys
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


PADDING = 114
"""Grey around a letterbox in training and in `predict`."""
SUPPRESSED_COLUMNS = 6
"""Columns of a box after suppression in the model: two corners, score, class."""
_NORMALISED = frozenset({"litert"})
"""Runtimes whose exports have coordinates in 0..1."""


def is_ultralytics(documents: Documents) -> bool:
    """Return True if a model file of the source has the metadata of Ultralytics."""
    return any(export_values(documents, model) for model in documents.models.values())


def read_ultralytics(documents: Documents) -> ImportedSource:
    """Return the model; several exports of it are variants. Raises ConfigurationError if they differ."""
    exports = [
        (model, read_metadata(values, model.path))
        for model in sorted(documents.models.values(), key=lambda model: (model.runtime != "onnx", model.path))
        if (values := export_values(documents, model))
    ]
    if not exports:
        problem = "has no metadata of Ultralytics; export it again, or name another --from"
        raise ConfigurationError(problem, file=documents.name)
    first, metadata = exports[0]
    for model, more in exports[1:]:
        if more.labels != metadata.labels:
            raise ConfigurationError(f"has other classes than {first.path}; import each alone", file=model.path)
    others = sorted(documents.models.keys() - {model.path for model, _ in exports})
    remarks = tuple(left_out(path, "it has no metadata of Ultralytics; import it alone") for path in others)
    imported = _release(documents, exports)
    return ImportedSource((replace(imported, findings=(*imported.findings, *remarks)),))


def _release(documents: Documents, exports: Sequence[tuple[SourceModel, ExportMetadata]]) -> ImportedModel:
    first, metadata = exports[0]
    signature = first.tensors()
    variants, remarks = _variants(exports)
    steps = _steps(metadata)
    inputs, preprocess, found = _image_input(signature, steps)
    folder = PurePosixPath(first.path).parent.name or documents.name
    stem = folder.removesuffix("_openvino_model") if first.runtime == "openvino" else PurePosixPath(first.path).stem
    name, renamed = plain_name(stem)
    labels, remark = _checked_labels(metadata, signature)
    options, facts = _task(metadata, first.runtime, signature.outputs)
    return ImportedModel(
        name,
        "1",
        inputs,
        signature.outputs,
        variants,
        labels=labels,
        task=TASKS[metadata.task],
        task_options=options,
        preprocess=preprocess,
        findings=(*renamed, *facts, *remark, *shapes(Signature(inputs, signature.outputs)), *found, *remarks),
    )


def _steps(metadata: ExportMetadata) -> PixelSteps:
    """Return the steps of `predict`: classifiers see the centre, all others a letterbox; RGB from 0 to 1."""
    if metadata.task == "classify":
        return PixelSteps(metadata.size, "crop", scale=1 / 255)
    return PixelSteps(metadata.size, "letterbox", scale=1 / 255, pad_value=PADDING)


def _image_input(
    signature: Signature, steps: PixelSteps
) -> tuple[tuple[TensorSpec, ...], Mapping[str, Mapping[str, Any]], tuple[ImportFinding, ...]]:
    spec = image_spec(signature.inputs[0], steps) if len(signature.inputs) == 1 else None
    if spec is None:
        return signature.inputs, {}, (to_add("input.preprocess", "the input takes no images of imgsz; send tensors"),)
    keys = preprocess_keys(steps)
    fact = taken("imgsz", f"{keys['fit']} to {steps.size[0]} × {steps.size[1]} pixels, RGB, 0 to 1")
    return (spec,), {spec.name: keys}, (fact,)


def _checked_labels(
    metadata: ExportMetadata, signature: Signature
) -> tuple[tuple[str, ...], tuple[ImportFinding, ...]]:
    """Return the labels. Only the scores of a classifier are as many as they are."""
    if metadata.task == "classify":
        return fitting_labels(metadata.labels, signature.outputs, "names")
    return metadata.labels, (taken("names", f"labels: {len(metadata.labels)}"),)


def _task(
    metadata: ExportMetadata, runtime: str, outputs: Sequence[TensorSpec]
) -> tuple[Mapping[str, Any], tuple[ImportFinding, ...]]:
    """Return the options of the task. A head of boxes says whether the model suppresses them itself."""
    kind = TASKS[metadata.task]
    if metadata.task == "classify":
        return {}, (taken("task", kind),)
    head = "end-to-end" if metadata.suppressed or _is_final(outputs) else "yolov8"
    unit = {"coordinates": "normalised"} if runtime in _NORMALISED else {}
    points, remarks = _point_options(metadata)
    return {"head": head, **unit, **points}, (taken("task", f"{kind}, head {head}"), *remarks)


def _point_options(metadata: ExportMetadata) -> tuple[Mapping[str, Any], tuple[ImportFinding, ...]]:
    """Return the names of keypoints and the number of their values; exports have no names."""
    if metadata.keypoints is None:
        return {}, ()
    count, values = metadata.keypoints
    if count == len(COCO_KEYPOINTS):
        fact = taken("kpt_shape", f"{count} points, named as in COCO; correct the names if the model has others")
        return {"keypoints": COCO_KEYPOINTS, "values": values}, (fact,)
    names = [f"point-{number}" for number in range(count)]
    advice = f"the {count} points are called point-0 and so on; name them in [task] keypoints"
    return {"keypoints": names, "values": values}, (to_add("names of keypoints", advice),)


def _is_final(outputs: Iterable[TensorSpec]) -> bool:
    """Return True for [rows, boxes, 6]: YOLOv10 and YOLO26 suppress boxes without the option nms."""
    first = next(iter(outputs), None)
    return first is not None and len(first.shape) == 3 and first.shape[2] == SUPPRESSED_COLUMNS != first.shape[1]


def _variants(
    exports: Sequence[tuple[SourceModel, ExportMetadata]],
) -> tuple[tuple[ImportedVariant, ...], tuple[ImportFinding, ...]]:
    """Return each export as a variant, its tensors bound by their places; those that differ are left out."""
    variants: dict[str, ImportedVariant] = {}
    remarks = []
    first = exports[0][0]
    for model, metadata in exports:
        precision = model.precision or metadata.precision or "fp32"
        bind = _bindings(first.tensors(), model.tensors())
        name = f"{model.runtime}-{precision}"
        if bind is None or name in variants or (model.runtime in _NORMALISED) != (first.runtime in _NORMALISED):
            why = f"its tensors, its coordinates or its precision do not fit next to {first.path}; import it alone"
            remarks.append(left_out(model.path, why))
            continue
        variants[name] = replace(variant_of(model, name, bind), precision=precision)
        if not model.precision and not metadata.precision:
            remarks += precision_finding(model)
    return tuple(variants.values()), tuple(remarks)


def _bindings(signature: Signature, own: Signature) -> Mapping[str, Binding] | None:
    """Return the names in a file by those of the first one; None if the tensors differ."""
    pairs = [(signature.inputs, own.inputs), (signature.outputs, own.outputs)]
    if any(len(ours) != len(theirs) for ours, theirs in pairs):
        return None
    bind = {}
    for ours, theirs in pairs:
        for mine, their in zip(ours, theirs, strict=True):
            if mine.datatype is not their.datatype or not (
                len(mine.shape) == len(their.shape)
                and all(ROWS in pair or len(set(pair)) == 1 for pair in zip(mine.shape, their.shape, strict=True))
            ):
                return None
            if mine.name != their.name:
                bind[mine.name] = Binding(their.name)
    return bind
