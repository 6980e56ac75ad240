"""Stack of 11 convolutions with random weights, for accelerators: `python -m tests.simulators.convolutions FILE`.

Input `images` [rows, 3, 640, 640], output `scores` [rows, 10], FP32, ONNX.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from onnx import ModelProto, TensorProto, checker, helper, numpy_helper

SIDE = 640
CLASSES = 10
LAYERS = ((32, 2), (64, 2), (64, 1), (128, 2), (128, 1), (128, 1), (256, 2), (256, 1), (256, 1), (512, 2), (512, 1))
"""Channels and stride of each convolution of 3 × 3."""


def convolutions() -> ModelProto:
    """Return the model."""
    random, channels, last = np.random.default_rng(1), 3, "images"
    nodes, weights = [], []
    for number, (wider, stride) in enumerate(LAYERS):
        values = random.normal(0, (2 / (9 * channels)) ** 0.5, (wider, channels, 3, 3)).astype(np.float32)
        weights.append(numpy_helper.from_array(values, f"w{number}"))
        nodes.append(helper.make_node("Conv", [last, f"w{number}"], [f"c{number}"], strides=[stride] * 2, pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"c{number}"], [f"r{number}"]))
        channels, last = wider, f"r{number}"
    weights.append(numpy_helper.from_array(random.normal(0, 0.05, (channels, CLASSES)).astype(np.float32), "w"))
    nodes += [
        helper.make_node("GlobalAveragePool", [last], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["features"]),
        helper.make_node("MatMul", ["features", "w"], ["scores"]),
    ]
    images = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["n", 3, SIDE, SIDE])
    scores = helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", CLASSES])
    graph = helper.make_graph(nodes, "convolutions", [images], [scores], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    checker.check_model(model)
    return model


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(convolutions().SerializeToString())
