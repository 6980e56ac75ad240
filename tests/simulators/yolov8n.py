"""YOLOv8n by its published architecture, with random weights: it costs what the real one costs and finds nothing.

Input `images` [1, 3, side, side], output `output0` [1, 4 + classes, n] with boxes as centre and size in pixels and
classes after the sigmoid; n is 8400 for 640 pixels. Normalisation is part of the convolutions, as in exported models.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from gateway.common.domain.tensor import Array

BINS = 16
"""Distances of which each side of a box is a weighted mean."""


@dataclass(frozen=True, slots=True)
class Feature:
    """Tensor [1, channels, side, side] of the graph."""

    name: str
    channels: int
    side: int


@dataclass(slots=True)
class Network:
    """Graph under construction, with the number of multiplications and additions of its convolutions."""

    generator: np.random.Generator
    nodes: list[NodeProto] = field(default_factory=list)
    weights: list[TensorProto] = field(default_factory=list)
    operations: int = 0

    def add(self, kind: str, *inputs: str, **attributes: object) -> str:
        """Add a node with one output. Return the output's name."""
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def constant(self, values: Array) -> str:
        """Add values to the graph. Return their name."""
        name = f"weights_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def convolution(self, feature: Feature, channels: int, kernel: int = 1, stride: int = 1) -> Feature:
        """Add a convolution."""
        shape, side = (channels, feature.channels, kernel, kernel), feature.side // stride
        spread = (2 / (feature.channels * kernel * kernel)) ** 0.5
        weight = self.constant(self.generator.normal(0, spread, shape).astype(np.float32))
        bias, padding = self.constant(np.zeros(channels, np.float32)), [kernel // 2] * 4
        self.operations += 2 * int(np.prod(shape)) * side * side
        name = self.add(
            "Conv", feature.name, weight, bias, strides=[stride] * 2, pads=padding, kernel_shape=[kernel] * 2
        )
        return Feature(name, channels, side)

    def block(self, feature: Feature, channels: int, kernel: int = 1, stride: int = 1) -> Feature:
        """Add a convolution with SiLU."""
        out = self.convolution(feature, channels, kernel, stride)
        return Feature(self.add("Mul", out.name, self.add("Sigmoid", out.name)), channels, out.side)

    def joined(self, *features: Feature) -> Feature:
        """Add the concatenation of channels."""
        name = self.add("Concat", *(each.name for each in features), axis=1)
        return Feature(name, sum(each.channels for each in features), features[0].side)

    def c2f(self, feature: Feature, channels: int, repeats: int = 1, *, shortcut: bool = False) -> Feature:
        """Add a block C2f: halves of the channels, of which one passes `repeats` bottlenecks."""
        half, whole = channels // 2, self.block(feature, channels)
        names = [f"{whole.name}_{part}" for part in range(2)]
        self.nodes.append(helper.make_node("Split", [whole.name], names, axis=1, num_outputs=2))
        parts = [Feature(name, half, whole.side) for name in names]
        for _ in range(repeats):
            out = self.block(self.block(parts[-1], half, 3), half, 3)
            added = self.add("Add", parts[-1].name, out.name) if shortcut else out.name
            parts.append(Feature(added, half, whole.side))
        return self.block(self.joined(*parts), channels)

    def sppf(self, feature: Feature) -> Feature:
        """Add a block SPPF: three poolings one after the other, and their concatenation."""
        parts = [self.block(feature, feature.channels // 2)]
        for _ in range(3):
            pooled = self.add("MaxPool", parts[-1].name, kernel_shape=[5, 5], pads=[2] * 4)
            parts.append(Feature(pooled, parts[-1].channels, feature.side))
        return self.block(self.joined(*parts), feature.channels)

    def doubled(self, feature: Feature) -> Feature:
        """Add a resize to twice the sides."""
        scales = self.constant(np.array([1, 1, 2, 2], np.float32))
        return Feature(self.add("Resize", feature.name, "", scales, mode="nearest"), feature.channels, feature.side * 2)


def yolov8n(side: int = 640, classes: int = 80) -> tuple[ModelProto, int]:
    """Return the model and the number of its operations: 8.7 · 10⁹ for 640 pixels and 80 classes."""
    network = Network(np.random.default_rng(8))
    levels = _pyramid(network, Feature("images", 3, side))
    sides, scores = (
        network.add("Concat", *(_flat(network, level, hidden, out) for level in levels), axis=2)
        for hidden, out in ((64, 4 * BINS), (max(levels[0].channels, min(classes, 100)), classes))
    )
    boxes = _boxes(network, sides, [level.side for level in levels], side)
    output = helper.make_node("Concat", [boxes, network.add("Sigmoid", scores)], ["output0"], axis=1)
    count = sum(level.side**2 for level in levels)
    graph = helper.make_graph(
        [*network.nodes, output],
        "yolov8n",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, (1, 3, side, side))],
        [helper.make_tensor_value_info("output0", TensorProto.FLOAT, (1, 4 + classes, count))],
        network.weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return model, network.operations


def _pyramid(network: Network, image: Feature) -> tuple[Feature, Feature, Feature]:
    """Add backbone and neck. Return the features with strides of 8, 16 and 32 pixels."""
    stem = network.c2f(network.block(network.block(image, 16, 3, 2), 32, 3, 2), 32, shortcut=True)
    fine = network.c2f(network.block(stem, 64, 3, 2), 64, 2, shortcut=True)
    middle = network.c2f(network.block(fine, 128, 3, 2), 128, 2, shortcut=True)
    coarse = network.sppf(network.c2f(network.block(middle, 256, 3, 2), 256, shortcut=True))
    middle = network.c2f(network.joined(network.doubled(coarse), middle), 128)
    fine = network.c2f(network.joined(network.doubled(middle), fine), 64)
    middle = network.c2f(network.joined(network.block(fine, 64, 3, 2), middle), 128)
    coarse = network.c2f(network.joined(network.block(middle, 128, 3, 2), coarse), 256)
    return fine, middle, coarse


def _flat(network: Network, level: Feature, hidden: int, channels: int) -> str:
    """Add one branch of the head for one level: [1, channels, boxes]."""
    out = network.convolution(network.block(network.block(level, hidden, 3), hidden, 3), channels)
    return network.add("Reshape", out.name, network.constant(np.array([1, channels, -1])))


def _boxes(network: Network, sides: str, levels: list[int], image_side: int) -> str:
    """Add the decoding of distances [1, 64, n] to centres and sizes [1, 4, n]."""
    bins = network.add("Reshape", sides, network.constant(np.array([1, 4, BINS, -1])))
    weighted = network.add(
        "Mul", network.add("Softmax", bins, axis=2), network.constant(np.arange(BINS, dtype=np.float32)[:, np.newaxis])
    )
    distances = network.add("ReduceSum", weighted, network.constant(np.array([2])), keepdims=0)
    cells = [np.stack(np.meshgrid(*[np.arange(level) + 0.5] * 2)).reshape(2, -1) for level in levels]
    strides = np.repeat([image_side / level for level in levels], [level * level for level in levels])
    names = [f"{distances}_{part}" for part in range(2)]
    network.nodes.append(helper.make_node("Split", [distances], names, axis=1, num_outputs=2))
    centres = network.constant(np.concatenate(cells, axis=1).astype(np.float32)[np.newaxis])
    first, last = network.add("Sub", centres, names[0]), network.add("Add", centres, names[1])
    middle = network.add("Mul", network.add("Add", first, last), network.constant(np.float32([0.5])))
    both = network.add("Concat", middle, network.add("Sub", last, first), axis=1)
    return network.add("Mul", both, network.constant(strides.astype(np.float32)))
