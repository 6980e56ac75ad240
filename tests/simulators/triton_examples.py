"""Configurations of Triton's quick start and client examples, as in its documentation, and their models."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ROLES = ("INPUT", "OUTPUT")
SIMPLE = """\
name: "simple"
platform: "onnxruntime_onnx"
max_batch_size: 8
input [
  { name: "INPUT0"  data_type: TYPE_INT32  dims: [ 16 ] },
  { name: "INPUT1"  data_type: TYPE_INT32  dims: [ 16 ] }
]
output [
  { name: "OUTPUT0"  data_type: TYPE_INT32  dims: [ 16 ] },
  { name: "OUTPUT1"  data_type: TYPE_INT32  dims: [ 16 ] }
]
"""
SIMPLE_STRING = re.sub("simple", "simple_string", SIMPLE).replace("TYPE_INT32", "TYPE_STRING")
DENSENET = """\
name: "densenet_onnx"
platform: "onnxruntime_onnx"
max_batch_size : 0
input [
  {
    name: "data_0"
    data_type: TYPE_FP32
    format: FORMAT_NCHW
    dims: [ 3, 224, 224 ]
    reshape { shape: [ 1, 3, 224, 224 ] }
  }
]
output [
  {
    name: "fc6_1"
    data_type: TYPE_FP32
    dims: [ 1000 ]
    reshape { shape: [ 1, 1000, 1, 1 ] }
    label_filename: "densenet_labels.txt"
  }
]
"""


def write_simple(root: Path) -> None:
    """Write a model with two inputs of 16 integers per row, their sum and their difference."""
    sides = [
        [helper.make_tensor_value_info(f"{role}{k}", TensorProto.INT32, ["n", 16]) for k in (0, 1)] for role in ROLES
    ]
    nodes = [
        helper.make_node(operator, ["INPUT0", "INPUT1"], [f"OUTPUT{k}"]) for k, operator in enumerate(("Add", "Sub"))
    ]
    save(helper.make_graph(nodes, "simple", sides[0], sides[1]), root / "simple" / "1" / "model.onnx")
    (root / "simple" / "config.pbtxt").write_text(SIMPLE)


def write_densenet(root: Path) -> None:
    """Write a model with the shapes of DenseNet, one convolution and labels."""
    weights = np.random.default_rng(0).normal(size=(1000, 3, 1, 1)).astype(np.float32)
    nodes = [helper.make_node("GlobalAveragePool", ["data_0"], ["p"]), helper.make_node("Conv", ["p", "w"], ["fc6_1"])]
    x = helper.make_tensor_value_info("data_0", TensorProto.FLOAT, [1, 3, 224, 224])
    y = helper.make_tensor_value_info("fc6_1", TensorProto.FLOAT, [1, 1000, 1, 1])
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(weights, "w")])
    save(graph, root / "densenet_onnx" / "1" / "model.onnx")
    (root / "densenet_onnx" / "config.pbtxt").write_text(DENSENET)
    (root / "densenet_onnx" / "densenet_labels.txt").write_text("".join(f"class {k}\n" for k in range(1000)))


def write_texts(root: Path) -> None:
    """Write a model that copies strings, with a text input and output of one row."""
    x, y = (helper.make_tensor_value_info(f"text_{role}", TensorProto.STRING, ["n"]) for role in ("input", "output"))
    node = helper.make_node("Identity", ["text_input"], ["text_output"])
    save(helper.make_graph([node], "g", [x], [y]), root / "texts" / "1" / "model.onnx")


def write_optional(root: Path) -> None:
    """Write y = x · gain + offsets, with initializers that are inputs too; `offsets` differ in their elements."""
    sides = {"x": [3], "gain": [], "offsets": [3], "y": [3]}
    infos = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in sides.items()}
    nodes = [helper.make_node("Mul", ["x", "gain"], ["p"]), helper.make_node("Add", ["p", "offsets"], ["y"])]
    values = [numpy_helper.from_array(np.array(2, np.float32), "gain")]
    values += [numpy_helper.from_array(np.array([0, 1, 2], np.float32), "offsets")]
    inputs = [infos[name] for name in ("x", "gain", "offsets")]
    save(helper.make_graph(nodes, "g", inputs, [infos["y"]], values), root / "gained" / "1" / "model.onnx")
    (root / "gained" / "config.pbtxt").write_text(
        """max_batch_size: 0
        input { name: "x" data_type: TYPE_FP32 dims: [ 3 ] }
        input { name: "gain" data_type: TYPE_FP32 optional: true }
        parameters { key: "metadata" value { string_value: "{'task': 'detect', 'names': {0: 'gr\\303\\274n'}}" } }
        """
    )


def write_external(file: Path, value: float, location: str = "weights.bin") -> Path:
    """Write y = x · W of 64 columns. W, all `value`, is in a separate file, as exporters save large models."""
    weights = numpy_helper.from_array(np.full((64, 64), value, np.float32), "w")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 64]) for name in "xy")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [weights])
    save(graph, file, save_as_external_data=True, location=location, size_threshold=0)
    return file


def save(graph: onnx.GraphProto, file: Path, **options: Any) -> None:
    """Save a graph in a version that several years of runtimes support."""
    file.parent.mkdir(parents=True, exist_ok=True)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, file, **options)
