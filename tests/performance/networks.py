"""The networks that are measured, built here from seeded weights: nothing is downloaded, nothing is copied.

Their answers mean nothing; what a run costs does not depend on the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

OPENED = "-open"
"""End of the names of models with open height and width."""
FRAME_150_KB, FRAME_2_7_MB = (224, 224, 3), (720, 1280, 3)
"""Camera frames as UINT8: 150,528 and 2,764,800 bytes."""


Entry = tuple[str, str, tuple[int, ...]]
"""The input: name, datatype, shape of one row."""


@dataclass(frozen=True, slots=True)
class Network:
    """A model of one input and one output: its file, one row of its input, multiply-adds of a run, weights."""

    name: str
    what: str
    content: bytes = field(repr=False)
    input: str
    datatype: str
    shape: tuple[int, ...]
    macs: int
    parameters: int

    def row(self) -> np.ndarray[Any, Any]:
        """Return one row that no compression and no cache can profit from, the same at each call."""
        generator = np.random.default_rng(1)
        if self.datatype == "UINT8":
            return generator.integers(0, 256, self.shape, dtype=np.uint8)
        return generator.random(self.shape, dtype=np.float32)


def built() -> dict[str, Network]:
    """Return all networks by name."""
    frames = (("frame-150k", FRAME_150_KB), ("frame-2.7m", FRAME_2_7_MB))
    cut = (corner(name + end, shape, opened=bool(end)) for name, shape in frames for end in ("", OPENED))
    networks = (tiny(), mobilenet(), *cut)
    return {network.name: network for network in networks}


def tiny(width: int = 16, classes: int = 4) -> Network:
    """Return x [rows, width] → y [rows, classes], one Gemm."""
    graph = _Graph()
    graph.dense("x", width, classes)
    return graph.network("tiny", f"dense {width} → {classes}", entry=("x", "FP32", (width,)), classes=classes)


def corner(name: str, shape: tuple[int, int, int], *, opened: bool = False) -> Network:
    """Return frame [rows, height, width, 3] UINT8 → brightness [rows, 1] of its first 8 × 8 pixels: next to no work.

    `opened`: height and width are of any size.
    """
    graph = _Graph()
    bounds = {key: graph.weights(np.array(value, "<i8")) for key, value in {"from": [0, 0], "to": [8, 8]}.items()}
    cut = graph.node("Slice", ["frame", bounds["from"], bounds["to"], graph.weights(np.array([1, 2], "<i8"))])
    mean = graph.node("ReduceMean", [graph.node("Cast", [cut], to=1)], axes=[1, 2, 3], keepdims=0)
    graph.node("Unsqueeze", [mean, graph.weights(np.array([1], "<i8"))])
    what = f"mean of one corner of {' × '.join(map(str, shape))} bytes"
    sides = ("height", "width") if opened else shape[:2]
    return graph.network(name, what, entry=("frame", "UINT8", shape), classes=1, declared=(*sides, shape[2]))


def meter_reader() -> Network:
    """Return the shipped model, whose variants are files of their own: digits of 8 × 8 pixels."""
    return Network("meter-reader", "shipped, digits of 8 × 8 pixels", b"", "image", "FP32", (1, 1, 8, 8), 0, 0)


# Expansion, channels, repetitions, first stride: Sandler et al. 2018, table 2, times 1.4 rounded to eights.
_BLOCKS = (
    (1, 24, 1, 1),
    (6, 32, 2, 2),
    (6, 48, 3, 2),
    (6, 88, 4, 2),
    (6, 136, 3, 1),
    (6, 224, 3, 2),
    (6, 448, 1, 1),
)


def mobilenet(side: int = 224, classes: int = 1000) -> Network:
    """Return MobileNetV2 1.4: image [rows, 3, 224, 224] FP32 → scores [rows, 1000]; 582 million multiply-adds."""
    graph = _Graph()
    graph.side = side
    value, channels = graph.convolution("image", 3, 48, kernel=3, stride=2), 48
    for expansion, width, repetitions, first_stride in _BLOCKS:
        for index in range(repetitions):
            value = graph.inverted_residual(value, channels, expansion, width, 1 if index else first_stride)
            channels = width
    value = graph.convolution(value, channels, 1792)
    pooled = graph.node("Flatten", [graph.node("GlobalAveragePool", [value])])
    graph.dense(pooled, 1792, classes)
    entry = ("image", "FP32", (3, side, side))
    return graph.network("mobilenet", "MobileNetV2 1.4", entry=entry, classes=classes)


class _Graph:
    """Nodes and weights as they are added; `side` follows the feature map through the strides."""

    def __init__(self) -> None:
        self._generator = np.random.default_rng(0)
        self._nodes: list[Any] = []
        self._weights: list[Any] = []
        self.side = self.macs = self.parameters = 0

    def node(self, op: str, inputs: list[str], **attributes: Any) -> str:
        from onnx import helper

        self._nodes.append(helper.make_node(op, inputs, [f"v{len(self._nodes)}"], **attributes))
        return f"v{len(self._nodes) - 1}"

    def weights(self, array: np.ndarray[Any, Any]) -> str:
        from onnx import numpy_helper

        self._weights.append(numpy_helper.from_array(array, f"w{len(self._weights)}"))
        self.parameters += array.size if array.dtype == np.float32 else 0
        return f"w{len(self._weights) - 1}"

    def drawn(self, *shape: int, fan_in: int) -> str:
        """Draw normal weights of variance 2 / fan-in, so that values neither vanish nor grow from layer to layer."""
        return self.weights(self._generator.standard_normal(shape, np.float32) * np.float32(np.sqrt(2 / fan_in)))

    def dense(self, value: str, width: int, classes: int) -> str:
        self.macs += width * classes
        weights, bias = self.drawn(width, classes, fan_in=width), self.weights(np.zeros(classes, np.float32))
        return self.node("Gemm", [value, weights, bias])

    def convolution(
        self,
        value: str,
        channels: int,
        width: int,
        *,
        kernel: int = 1,
        stride: int = 1,
        group: int = 1,
        relu: bool = True,
    ) -> str:
        """Add a convolution with folded batch norm, and ReLU6."""
        self.side //= stride
        fan_in = channels // group * kernel**2
        self.macs += self.side**2 * width * fan_in
        inputs = [value, self.drawn(width, channels // group, kernel, kernel, fan_in=fan_in)]
        inputs.append(self.weights(np.zeros(width, np.float32)))
        pads, strides = [kernel // 2] * 4, [stride] * 2
        made = self.node("Conv", inputs, kernel_shape=[kernel] * 2, pads=pads, strides=strides, group=group)
        bounds = [self.weights(np.array(bound, np.float32)) for bound in (0, 6)] if relu else []
        return self.node("Clip", [made, *bounds]) if relu else made

    def inverted_residual(self, value: str, channels: int, expansion: int, width: int, stride: int) -> str:
        hidden = channels * expansion
        inner = self.convolution(value, channels, hidden) if expansion > 1 else value
        inner = self.convolution(inner, hidden, hidden, kernel=3, stride=stride, group=hidden)
        inner = self.convolution(inner, hidden, width, relu=False)
        return self.node("Add", [value, inner]) if stride == 1 and channels == width else inner

    def network(
        self, name: str, what: str, *, entry: Entry, classes: int, declared: tuple[int | str, ...] = ()
    ) -> Network:
        """Return the network from `entry`, with the shape `declared`, to the last node's value, y [rows, classes]."""
        from onnx import TensorProto, helper

        tensor, datatype, shape = entry
        kinds: Mapping[str, int] = {"FP32": TensorProto.FLOAT, "UINT8": TensorProto.UINT8}
        self._nodes[-1].output[0] = "y"
        graph = helper.make_graph(
            self._nodes,
            name,
            [helper.make_tensor_value_info(tensor, kinds[datatype], ["rows", *(declared or shape)])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", classes])],
            self._weights,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        content = bytes(model.SerializeToString())
        return Network(name, what, content, tensor, datatype, (1, *shape), self.macs, self.parameters)
