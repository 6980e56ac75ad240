"""Trained network -> ONNX fp32.

The fp32 graph is written layer by layer with `onnx.helper`, not by `torch.onnx.export`: the other exporters and the
reference runtime know exactly these operators, the exporter of torch 2.13 decomposes pooling into four nodes with
int64 constants, and it records source paths of the building machine in the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import onnx
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from models.recipes.recipe import Recipe
from models.recipes.training import Transpose

OPSET = 17
IR_VERSION = 8  # ONNX Runtime 1.12 and later read it; older Jetson images still carry 1.16


def _convolution(layer: nn.Conv1d | nn.Conv2d) -> dict[str, object]:
    return {
        "kernel_shape": list(layer.kernel_size),
        "strides": list(layer.stride),
        "pads": list(layer.padding) * 2,
        "dilations": list(layer.dilation),
        "group": layer.groups,
    }


def _pool(layer: nn.MaxPool2d) -> dict[str, object]:
    return {"kernel_shape": [layer.kernel_size] * 2, "strides": [layer.stride] * 2}


OPERATORS: Mapping[type[nn.Module], tuple[str, Callable[..., dict[str, object]]]] = {
    Transpose: ("Transpose", lambda layer: {"perm": [0, 2, 1]}),
    nn.Conv1d: ("Conv", _convolution),
    nn.Conv2d: ("Conv", _convolution),
    nn.ReLU: ("Relu", lambda layer: {}),
    nn.MaxPool2d: ("MaxPool", _pool),
    nn.AdaptiveAvgPool1d: ("GlobalAveragePool", lambda layer: {}),
    nn.Flatten: ("Flatten", lambda layer: {"axis": 1}),
    nn.Linear: ("Gemm", lambda layer: {"transB": 1}),
}


def write_fp32(recipe: Recipe, net: nn.Sequential, path: Path) -> None:
    """Write the network as ONNX with a dynamic batch; the output is logits."""
    nodes, weights, value = [], [], recipe.input
    for number, layer in enumerate(net):
        operator, attributes = OPERATORS[type(layer)]
        name = f"{operator.lower()}_{number}"
        result = recipe.output if number == len(net) - 1 else name
        own = [
            numpy_helper.from_array(tensor.detach().numpy(), f"{name}.{key}")
            for key, tensor in layer.named_parameters()
        ]
        inputs = [value, *(tensor.name for tensor in own)]
        nodes.append(helper.make_node(operator, inputs, [result], name, **attributes(layer)))
        weights += own
        value = result
    _save(recipe, nodes, weights, path)


def _save(recipe: Recipe, nodes: list[onnx.NodeProto], weights: list[onnx.TensorProto], path: Path) -> None:
    source = helper.make_tensor_value_info(recipe.input, TensorProto.FLOAT, ["rows", *recipe.shape])
    scores = helper.make_tensor_value_info(recipe.output, TensorProto.FLOAT, ["rows", len(recipe.labels)])
    graph = helper.make_graph(nodes, recipe.name, [source], [scores], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    onnx.checker.check_model(model, full_check=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
