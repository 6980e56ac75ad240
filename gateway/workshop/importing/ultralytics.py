"""Source `ultralytics`: exports of Ultralytics to ONNX, OpenVINO and TFLite, with the metadata that it adds.

Several exports of one model become its variants. The heads are those of `[task]`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
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
    precision_finding,
    shapes,
    taken,
    to_add,
    variant_of,
)
from gateway.workshop.importing.pixels import PixelSteps, image_spec, preprocess_keys
from gateway.workshop.importing.single import plain_name
from gateway.workshop.importing.source import Documents, SourceModel
from gateway.workshop.importing.ultralytics_metadata import TASKS, ExportMetadata, export_values, read_metadata

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
        for model in _in_order(documents)
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


def _in_order(documents: Documents) -> list[SourceModel]:
    """Return the model files, ONNX first: its tensors have names."""
    return sorted(documents.models.values(), key=lambda model: (model.runtime != "onnx", model.path))


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
            if mine.datatype is not their.datatype or not _alike(mine.shape, their.shape):
                return None
            if mine.name != their.name:
                bind[mine.name] = Binding(their.name)
    return bind


def _alike(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return len(shape) == len(other) and all(
        ROWS in pair or len(set(pair)) == 1 for pair in zip(shape, other, strict=True)
    )
