"""Sources of imports as other projects lay them out: model files made with `onnx.helper`, documents written by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from gateway.common.domain.manifest import TensorSpec
from gateway.common.domain.onnx_file import read_onnx
from gateway.common.domain.tensor import DATATYPES
from gateway.common.domain.verdict import Signature
from gateway.serving.domain.onnx_header import read_onnx_header
from gateway.workshop.importing.collect import ImportSettings, read_documents, source_folder
from gateway.workshop.importing.source import Documents, SourceModel

IMAGE_PX = 8
CLASSES = ("cat", "dog", "eel")
RANDOM = np.random.default_rng(11)
WEIGHTS = RANDOM.normal(size=(3, 3)).astype(np.float32)
TRITON = """
name: "sums"
platform: "onnxruntime_onnx"
max_batch_size: 16
input [ { name: "x" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 3 ] label_filename: "labels.txt" } ]
instance_group [ { count: 2 kind: KIND_CPU } ]
dynamic_batching { max_queue_delay_microseconds: 500 }
"""
ML_MODEL = """artifact_path: sums
flavors:
  onnx:
    code: null
    data: model.onnx
    onnx_version: 1.16.0
    providers:
    - CUDAExecutionProvider
    - CPUExecutionProvider
  python_function:
    data: model.onnx
    env:
      conda: conda.yaml
      virtualenv: python_env.yaml
    loader_module: mlflow.onnx
mlflow_version: 2.14.1
model_uuid: 0f7c3b0a5d
signature:
  inputs: '[{"type": "tensor", "tensor-spec": {"dtype": "float32", "shape": [-1,
    3]}, "name": "x"}]'
  outputs: '[{"type": "tensor", "tensor-spec": {"dtype": "float32", "shape": [-1, 3]},
    "name": "y"}]'
  params: null
utc_time_created: '2026-11-20 10:11:12.131415'
"""


def write_sums(file: Path, *, rows: int | str = "rows", columns: int = 3, weights: type = np.float32) -> None:
    """Write y = x · WEIGHTS, [rows, 3] FP32; weights of another type are cast."""
    value = helper.make_tensor_value_info
    held = numpy_helper.from_array(WEIGHTS[:columns].astype(weights), "w")
    nodes = [
        helper.make_node("Cast", ["w"], ["v"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["x", "v"], ["y"]),
    ]
    tensors = [value("x", TensorProto.FLOAT, [rows, columns])], [value("y", TensorProto.FLOAT, [rows, 3])]
    save(file, helper.make_graph(nodes, "sums", *tensors, [held]))


def write_classifier(file: Path, *, metadata: Mapping[str, str] | None = None, channels: int | str = 3) -> None:
    """Write an image classifier `pixel_values` to `logits`: the mean of each channel times WEIGHTS."""
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("ReduceMean", ["pixel_values"], ["means"], axes=[2, 3], keepdims=0),
        helper.make_node("MatMul", ["means", "w"], ["logits"]),
    ]
    image = value("pixel_values", TensorProto.FLOAT, ["rows", channels, "height", "width"])
    scores = value("logits", TensorProto.FLOAT, ["rows", 3])
    save(file, helper.make_graph(nodes, "net", [image], [scores], [numpy_helper.from_array(WEIGHTS, "w")]), metadata)


def write_detector(file: Path, *, metadata: Mapping[str, str], boxes: int = 12, columns: int = 7) -> None:
    """Write a head of YOLOv8: `images` [1, 3, 8, 8] to `output0` [1, columns, boxes]."""
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["mean"], axes=[1, 2, 3], keepdims=1),
        helper.make_node("Squeeze", ["mean", "axis"], ["cell"]),
        helper.make_node("Mul", ["cell", "table"], ["output0"]),
    ]
    table = np.ones((1, columns, boxes), np.float32)
    table[:, :4] = 6.0  # a white image has a box around its centre
    held = [
        numpy_helper.from_array(np.array([3], np.int64), "axis"),
        numpy_helper.from_array(table, "table"),
    ]
    image = value("images", TensorProto.FLOAT, [1, 3, IMAGE_PX, IMAGE_PX])
    head = value("output0", TensorProto.FLOAT, [1, columns, boxes])
    save(file, helper.make_graph(nodes, "yolo", [image], [head], held), metadata)


def save(
    file: Path, graph: onnx.GraphProto, metadata: Mapping[str, str] | None = None, producer: str = "", ml: int = 3
) -> None:
    """Write a graph as a model; opset 17 has the attribute `axes` of ReduceMean."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", ml)]
    model = helper.make_model(graph, opset_imports=opsets, producer_name=producer, ir_version=8)
    helper.set_model_props(model, dict(metadata or {}))
    file.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, file)


def ultralytics_metadata(task: str = "detect", **others: str) -> dict[str, str]:
    """Return the metadata that Ultralytics adds to an ONNX file: texts of Python values."""
    return {
        "description": "Ultralytics YOLO11n model",
        "author": "Ultralytics",
        "version": "8.3.40",
        "docs": "https://docs.ultralytics.com",
        "stride": "32",
        "task": task,
        "batch": "1",
        "imgsz": f"[{IMAGE_PX}, {IMAGE_PX}]",
        "names": repr(dict(enumerate(CLASSES))),
        "args": "{'batch': 1, 'half': False, 'dynamic': False, 'simplify': True, 'nms': False}",
        **others,
    }


def write_triton(root: Path, *, config: str = TRITON, versions: Sequence[str] = ("1", "2")) -> Path:
    """Write a repository with the model `sums`."""
    folder = root / "sums"
    for version in versions:
        write_sums(folder / version / "model.onnx")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.pbtxt").write_text(config)
    (folder / "labels.txt").write_text("\n".join(CLASSES))
    return root


def write_openvino_server(root: Path, **config: object) -> Path:
    """Write `config.json` with the model `sums` in the folder `models/sums`, with the versions 1 and 2."""
    for version in ("1", "2"):
        write_sums(root / "models" / "sums" / version / "sums.onnx")
    entry = {"name": "sums", "base_path": "models/sums", **config}
    (root / "config.json").write_text(json.dumps({"model_config_list": [{"config": entry}]}, indent=2))
    return root


def write_mlflow(root: Path, text: str = ML_MODEL) -> Path:
    """Write the folder of an MLflow model."""
    write_sums(root / "model.onnx")
    (root / "MLmodel").write_text(text)
    return root


def write_hugging_face(root: Path, *, config: Mapping[str, object] = {}, processor: Mapping[str, object] = {}) -> Path:
    """Write an export of an image classifier as Optimum does."""
    write_classifier(root / "onnx" / "model.onnx", channels="channels")
    labels = {str(number): name for number, name in enumerate(CLASSES)}
    whole = {"architectures": ["ViTForImageClassification"], "model_type": "vit", "id2label": labels, **config}
    (root / "config.json").write_text(json.dumps(whole))
    steps = {
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "image_processor_type": "ViTImageProcessor",
        "resample": 2,
        "rescale_factor": 1 / 255,
        "size": {"height": IMAGE_PX, "width": IMAGE_PX},
        **processor,
    }
    (root / "preprocessor_config.json").write_text(json.dumps(steps))
    return root


def documents_of(source: Path) -> Documents:
    """Return a source as values without a runtime: tensors as the `onnx` package reads them."""
    documents = read_documents(source, ImportSettings())
    folder = source_folder(source)
    models = {path: _model(folder, path) for path in documents.files if path.endswith(".onnx")}
    return replace(documents, models=models)


def _model(folder: Path, path: str) -> SourceModel:
    graph = onnx.load(folder / path).graph
    with (folder / path).open("rb") as stream:
        header, operators = read_onnx_header(stream), read_onnx(stream).operators
    signature = Signature(*(tuple(_spec(value) for value in values) for values in (graph.input, graph.output)))
    return SourceModel(path, "onnx", signature, (), header, operators)


def _spec(value: onnx.ValueInfoProto) -> TensorSpec:
    tensor = value.type.tensor_type
    name = TensorProto.DataType.Name(tensor.elem_type)
    label = {"FLOAT": "FP32", "STRING": "BYTES", "FLOAT16": "FP16", "DOUBLE": "FP64"}.get(name, name)
    return TensorSpec(value.name, DATATYPES[label], tuple(each.dim_value or -1 for each in tensor.shape.dim))
