"""ONNX files of models that authors have: classifiers of images, heads of detectors, rows of tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Shape = Sequence[int | str | None]


def shaped(
    inputs: Mapping[str, Shape], outputs: Mapping[str, Shape], *nodes: onnx.NodeProto, **graph: Any
) -> onnx.ModelProto:
    """Return a model of FP32 tensors with the given shapes; without `nodes`, each output is a constant."""
    made = list(nodes) or [_constant(name, shape) for name, shape in outputs.items()]
    sides = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)) for name, shape in side.items()]
        for side in (inputs, outputs)
    ]
    built = helper.make_graph(made, "made", *sides, **graph)
    return helper.make_model(built, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def image_classifier(
    classes: int = 3, *, side: int = 8, channels: int = 3, softmax: bool = False, seed: int = 20
) -> onnx.ModelProto:
    """Return a convolution, a mean and a dense layer: [rows, channels, side, side] to [rows, classes]."""
    random = np.random.default_rng(seed)
    weights = {
        "kernel": random.normal(size=(8, channels, 3, 3)).astype(np.float32),
        "dense": random.normal(size=(8, classes)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["image", "kernel"], ["map"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["map"], ["positive"]),
        helper.make_node("GlobalAveragePool", ["positive"], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["flat"]),
        helper.make_node("MatMul", ["flat", "dense"], ["logits" if softmax else "scores"]),
    ]
    nodes += [helper.make_node("Softmax", ["logits"], ["scores"])] if softmax else []
    return shaped(
        {"image": ["rows", channels, side, side]},
        {"scores": ["rows", classes]},
        *nodes,
        initializer=[numpy_helper.from_array(array, name) for name, array in weights.items()],
    )


def numbered_layer(number: int, side: int = 1024) -> onnx.ModelProto:
    """Return a dense layer of side² FP32 weights. Zeros give `number` in each element: an answer says whose it is."""
    weights = np.random.default_rng(number).normal(size=(side, side)).astype(np.float32)
    named = {"weights": weights, "bias": np.full(side, number, np.float32)}
    nodes = [
        helper.make_node("MatMul", ["x", "weights"], ["product"]),
        helper.make_node("Add", ["product", "bias"], ["y"]),
    ]
    initializer = [numpy_helper.from_array(array, name) for name, array in named.items()]
    return shaped({"x": ["rows", side]}, {"y": ["rows", side]}, *nodes, initializer=initializer)


def with_metadata(model: onnx.ModelProto, **metadata: str) -> onnx.ModelProto:
    """Return the model with entries of metadata."""
    helper.set_model_props(model, metadata)
    return model


def save(model: onnx.ModelProto, file: Path) -> Path:
    """Write a model, and return its file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(model.SerializeToString())
    return file


def _constant(name: str, shape: Shape) -> onnx.NodeProto:
    sizes = [size if isinstance(size, int) else 1 for size in shape]
    value = numpy_helper.from_array(np.full(sizes, 0.5, np.float32))
    return helper.make_node("Constant", [], [name], value=value)
