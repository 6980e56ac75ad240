"""ONNX fp32 graph -> LiteRT: float, and int8 throughout (int8 input and output, convolutions per channel)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from models.recipes.recipe import Floats, Recipe

if TYPE_CHECKING:
    import tensorflow as tf


def channels_last(recipe: Recipe, rows: Floats) -> Floats:
    """Return rows of the manifest's layout in the layout of the LiteRT variant."""
    if recipe.layout == recipe.litert_layout:
        return rows
    return np.ascontiguousarray(rows.transpose([recipe.layout.index(axis) for axis in recipe.litert_layout]))


def write_fp32(recipe: Recipe, fp32: Path, calibration: Floats, path: Path) -> None:
    """Write the float model with a resizable batch."""
    _save(recipe, _converter(recipe, fp32), path)


def write_int8(recipe: Recipe, fp32: Path, calibration: Floats, path: Path) -> None:
    """Quantise to int8 throughout, calibrated on training rows in the manifest's layout."""
    import tensorflow as tf

    rows = channels_last(recipe, calibration)
    converter = _converter(recipe, fp32)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: ([row[None]] for row in rows)
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    converter.inference_input_type = converter.inference_output_type = tf.int8
    # tflite-runtime 2.14, on devices that have nothing newer, knows one scale per dense layer and says nothing.
    converter._experimental_disable_per_channel_quantization_for_dense_layers = True
    _save(recipe, converter, path)


def _converter(recipe: Recipe, fp32: Path) -> Any:
    import tensorflow as tf

    return tf.lite.TFLiteConverter.from_concrete_functions(*_traced(recipe, onnx.load(fp32).graph))


def _save(recipe: Recipe, converter: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_renamed(recipe, converter.convert()))


def _traced(recipe: Recipe, graph: onnx.GraphProto) -> tuple[list[Any], Any]:
    import tensorflow as tf

    sizes = dict(zip(recipe.layout[1:], recipe.shape, strict=True))
    shape = [None, *(sizes[axis] for axis in recipe.litert_layout[1:])]
    weights = {weight.name: numpy_helper.to_array(weight) for weight in graph.initializer}

    def forward(value: tf.Tensor) -> dict[str, tf.Tensor]:
        if recipe.litert_layout == "NLC":  # one-dimensional convolutions run as two-dimensional ones of height 1
            value = tf.reshape(value, [-1, 1, *shape[1:]])
        for node in graph.node:
            attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
            value = OPERATORS[node.op_type](value, attributes, [weights[name] for name in node.input[1:]])
        return {recipe.output: value}

    module = tf.Module()
    module.forward = tf.function(forward, input_signature=[tf.TensorSpec(shape, tf.float32, recipe.input)])
    return [module.forward.get_concrete_function()], module


def _convolve(value: tf.Tensor, attributes: dict[str, Any], weights: list[Floats]) -> tf.Tensor:
    import tensorflow as tf

    kernel, bias = weights
    if kernel.ndim == 3:
        kernel = kernel[:, :, None]
    pads = attributes["pads"]
    if any(pads):
        value = tf.pad(value, [[0, 0], [pads[0], pads[2]], [pads[1], pads[3]], [0, 0]])
    strides = ([1, *attributes["strides"]])[-2:]
    return tf.nn.conv2d(value, kernel.transpose(2, 3, 1, 0), strides, "VALID") + bias


def _relu(value: tf.Tensor, attributes: dict[str, Any], weights: list[Floats]) -> tf.Tensor:
    import tensorflow as tf

    return tf.nn.relu(value)


def _max_pool(value: tf.Tensor, attributes: dict[str, Any], weights: list[Floats]) -> tf.Tensor:
    import tensorflow as tf

    return tf.nn.max_pool2d(value, attributes["kernel_shape"], attributes["strides"], "VALID")


def _average(value: tf.Tensor, attributes: dict[str, Any], weights: list[Floats]) -> tf.Tensor:
    import tensorflow as tf

    return tf.reduce_mean(value, axis=[1, 2], keepdims=True)


def _flatten(value: tf.Tensor, attributes: dict[str, Any], weights: list[Floats]) -> tf.Tensor:
    import tensorflow as tf

    if value.shape[1:3] != [1, 1]:
        raise ValueError("flatten only a 1x1 map: with more, channels-last order differs from the trained one")
    return tf.reshape(value, [-1, value.shape[-1]])


def _gemm(value: tf.Tensor, attributes: dict[str, Any], weights: list[Floats]) -> tf.Tensor:
    import tensorflow as tf

    return tf.matmul(value, weights[0], transpose_b=bool(attributes.get("transB", 0))) + weights[1]


OPERATORS: Mapping[str, Callable[..., tf.Tensor]] = {
    "Transpose": lambda value, attributes, weights: value,  # rows x channels to channels x rows: already so here
    "Conv": _convolve,
    "Relu": _relu,
    "MaxPool": _max_pool,
    "GlobalAveragePool": _average,
    "Flatten": _flatten,
    "Gemm": _gemm,
}


def _renamed(recipe: Recipe, model: bytes) -> bytes:
    """Give input and output tensors the manifest's names instead of `PartitionedCall:0`."""
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    tree = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(model, 0))
    main = tree.subgraphs[0]
    main.tensors[main.inputs[0]].name = recipe.input
    main.tensors[main.outputs[0]].name = recipe.output
    builder = flatbuffers.Builder(len(model))
    builder.Finish(tree.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())
