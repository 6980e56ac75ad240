"""Model files as their author has them: signature, precision, labels and what else the file tells about itself."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gateway.common.domain.errors import ConfigurationError, VariantError
from gateway.common.domain.manifest import ROWS, TensorSpec
from gateway.common.domain.model_files import SAVED_MODEL, near_model
from gateway.common.domain.onnx_file import read_onnx
from gateway.common.domain.runtimes import BY_SUFFIX
from gateway.common.domain.verdict import Signature
from gateway.common.store.plain import open_plain
from gateway.serving.domain.onnx_graph import read_onnx_graph
from gateway.serving.domain.onnx_header import OnnxHeader, read_onnx_header
from gateway.serving.domain.openvino_graph import read_openvino_graph
from gateway.serving.domain.rows.graph import Graph
from gateway.serving.runtimes.litert_tables import first_graph, weight_bytes
from gateway.serving.runtimes.llamacpp import is_adapter, precision_of
from gateway.serving.runtimes.settings import TrialSettings
from gateway.serving.runtimes.trial import inspect_file
from gateway.serving.store.references import references
from gateway.workshop.making.input_scale import image_inputs, scaled_range
from gateway.workshop.making.labels import CHARACTERS, onnx_labels, tflite_labels
from gateway.workshop.making.settings import WorkshopSettings

QUANTIZED = ("QuantizeLinear", "DequantizeLinear", "QLinear", "DynamicQuantizeLinear", "ConvInteger", "MatMulInteger")
"""Beginnings of the names of ONNX operators that compute in 8 bits."""
DOMAINS = frozenset({"ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training", "com.microsoft", "com.ms.internal"})
"""Domains of the operators that ONNX Runtime brings, next to ONNX's own."""
_ULTRALYTICS = "docs.ultralytics.com"
_ONNX_FLOATS: Mapping[int, str] = {1: "fp32", 10: "fp16", 16: "bf16"}
"""Precision by TensorProto.DataType."""
_LITERT_TYPES: Mapping[str, str] = {"FLOAT32": "fp32", "FLOAT16": "fp16", "BFLOAT16": "bf16", "INT8": "int8"}
_OPENVINO_TYPES: Mapping[bytes, str] = {b"f32": "fp32", b"f16": "fp16", b"bf16": "bf16", b"i8": "int8", b"u8": "int8"}
_CONSTANT = re.compile(rb'<data[^>]{0,400}?element_type="(\w{2,8})"[^>]{0,4000}?size="(\d{1,15})"')


@dataclass(frozen=True, slots=True)
class ModelFile:
    """Model file with what it tells. `others`: files to which it refers, relative to its folder.

    `value_range` is the range of pixels that the exporter or the graph tells, or "". `range_why` is the reason.
    `size_px` is the (height, width) that the exporter noted. `remarks` are facts for people. `adapters` of a language
    model are files of their own; such a file has no tensors of its own.
    """

    path: Path
    runtime: str
    signature: Signature
    precision: str = "fp32"
    others: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    labels_why: str = ""
    value_range: str = ""
    range_why: str = ""
    size_px: tuple[int, int] | None = None
    remarks: tuple[str, ...] = ()
    adapters: tuple[Path, ...] = ()


async def read_model_file(path: Path, trial: TrialSettings, settings: WorkshopSettings) -> ModelFile:
    """Return a model file; a child process opens it. Raises ConfigurationError with the file and what to do."""
    runtime = runtime_of(path)
    try:
        if runtime == "llamacpp" and is_adapter(path):
            return ModelFile(path, runtime, Signature((), ()), "adapter")
        others = references(path.parent, path.name)
        header, operators = _read_onnx(path) if runtime == "onnx" else (OnnxHeader(), frozenset[str]())
        signature = await inspect_file(runtime, path, trial)
    except OSError as error:
        raise ConfigurationError(f"cannot be read: {error.strerror or error}", file=str(path)) from error
    except (VariantError, ValueError) as error:
        raise ConfigurationError(_explained(str(error)), file=str(path)) from error
    check_sizes(signature, path)
    if runtime == "llamacpp":
        return ModelFile(path, runtime, signature, precision_of(path), others)
    graph = read_graph(path, runtime)
    value_range, why = next((part for name in image_inputs(graph) if (part := scaled_range(graph, name))[0]), ("", ""))
    remarks = _remarks(signature, header, operators)
    found = ModelFile(path, runtime, signature, others=others, value_range=value_range, range_why=why, remarks=remarks)
    if runtime == "onnx":
        return _with_header(found, header, operators, settings)
    if runtime == "litert":
        labels, why = tflite_labels(path, settings)
        return replace(found, precision=_litert_precision(path), labels=labels, labels_why=why)
    return replace(found, precision=_openvino_precision(path, settings))


def runtime_of(path: Path) -> str:
    """Return the runtime by the file's suffix. Raises ConfigurationError."""
    runtime = BY_SUFFIX.get(path.suffix)
    if runtime is None:
        known = ", ".join(BY_SUFFIX)
        name = SAVED_MODEL if (path / SAVED_MODEL).is_file() else path.name
        problem = near_model(name) or f"is no model by its suffix; name a {known} file (of OpenVINO the .xml)"
        raise ConfigurationError(problem, file=str(path))
    return runtime


def check_sizes(signature: Signature, path: Path) -> None:
    """Check that there are inputs and outputs, and that no dimension is 0. Raises ConfigurationError."""
    if not signature.inputs or not signature.outputs:
        problem = "has no inputs" if not signature.inputs else "has no outputs"
        raise ConfigurationError(f"{problem}, so that no request can be answered; export it again", file=str(path))
    for spec in (*signature.inputs, *signature.outputs):
        if 0 in spec.shape:
            problem = f"{spec.name!r} has the shape {list(spec.shape)}: a dimension of 0 holds nothing; export it again"
            raise ConfigurationError(problem, file=str(path))


def _read_onnx(path: Path) -> tuple[OnnxHeader, frozenset[str]]:
    with open_plain(path) as stream:
        return read_onnx_header(stream), read_onnx(stream).operators


def _explained(problem: str) -> str:
    """Return a runtime's message with a remedy where it is about an operator that it does not have."""
    missing = re.search(r"([\w.]*):(\w+)\(-?\d+\) is not a registered", problem)
    if missing:
        name = f"{missing[1]}::{missing[2]}" if missing[1] else missing[2]
        return (
            f"no runtime that is installed here has the operator {name}; export the model without it, or install a "
            f"newer runtime ({problem:.300})"
        )
    return problem


def _remarks(signature: Signature, header: OnnxHeader, operators: frozenset[str]) -> tuple[str, ...]:
    foreign = sorted(name for name in operators if "::" in name and name.partition("::")[0] not in DOMAINS)
    opsets = ", ".join(f"{domain or 'ONNX'} {version}" for domain, version in sorted(header.opsets.items()))
    axes = sorted({_axis(spec, place) for spec in signature.inputs for place in _open(spec)})
    remarks = (
        f"exporter: {header.producer}" if header.producer else "",
        f"opset: {opsets}" if opsets else "",
        f"open dimensions: {', '.join(axes)}" if axes else "",
        f"operators that ONNX does not define: {', '.join(foreign)}" if foreign else "",
    )
    return tuple(filter(None, remarks))


def _open(spec: TensorSpec) -> list[int]:
    return [place for place, size in enumerate(spec.shape) if size == ROWS]


def _axis(spec: TensorSpec, place: int) -> str:
    name = spec.axes[place] if spec.axes else ""
    return f"{spec.name}[{place}]" + (f" ({name})" if name else "")


def _with_header(
    found: ModelFile, header: OnnxHeader, operators: frozenset[str], settings: WorkshopSettings
) -> ModelFile:
    labels, why = onnx_labels(header, settings)
    is_int8 = any(name.rpartition("::")[2].startswith(QUANTIZED) for name in operators)
    weights = {_ONNX_FLOATS[kind]: count for kind, count in header.weights.items() if kind in _ONNX_FLOATS}
    is_known = _ULTRALYTICS in header.metadata.get("docs", "")
    value_range, range_why = found.value_range, found.range_why
    if is_known or CHARACTERS in header.metadata:
        value_range, range_why = "unit" if is_known else "signed-unit", "the exporter's metadata"
    return replace(
        found,
        precision="int8" if is_int8 else _largest(weights),
        labels=labels,
        labels_why=why,
        value_range=value_range,
        range_why=range_why,
        size_px=_size(header.metadata.get("imgsz", "")) if is_known else None,
    )


def read_graph(path: Path, runtime: str) -> Graph:
    """Return the graph of a model file; an empty one if it cannot be read."""
    try:
        if runtime == "litert":
            return first_graph(path)
        with open_plain(path) as stream:
            if runtime == "onnx":
                return read_onnx_graph(stream).graph
            with open_plain(path.with_suffix(".bin")) as weights:
                return read_openvino_graph(stream, weights).graph
    except (OSError, ValueError, VariantError):
        return Graph({}, (), {}, ())


def _size(text: str) -> tuple[int, int] | None:
    sizes = re.fullmatch(r"\[(\d{1,5}), ?(\d{1,5})\]", text)
    return (int(sizes[1]), int(sizes[2])) if sizes else None


def _largest(weights: Mapping[str, int]) -> str:
    return max(weights, key=lambda precision: weights[precision], default="fp32")


def _litert_precision(path: Path) -> str:
    try:
        found = weight_bytes(path)
    except VariantError:
        return "fp32"  # tflite-runtime has no reader of the file's tables
    return _largest({_LITERT_TYPES[kind]: size for kind, size in found.items() if size and kind in _LITERT_TYPES})


def _openvino_precision(path: Path, settings: WorkshopSettings) -> str:
    with open_plain(path) as stream:
        text = stream.read(settings.xml_limit_bytes)
    if b'type="FakeQuantize"' in text:
        return "int8"
    weights: dict[str, int] = {}
    for kind, size in _CONSTANT.findall(text):
        if kind in _OPENVINO_TYPES:
            precision = _OPENVINO_TYPES[kind]
            weights[precision] = weights.get(precision, 0) + int(size)
    return _largest(weights)
