"""Graph of an OpenVINO IR file (.xml with .bin) in ONNX's operators, with the small constants that sizes come from.

Weights are not read, nor the sizes that ports state: OpenVINO computes them again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from typing import BinaryIO
from xml.parsers import expat

import numpy as np

from gateway.serving.domain.onnx_graph import FLOATS_LIMIT, INTEGERS_LIMIT, NODES_LIMIT
from gateway.serving.domain.openvino_operators import ONNX_OPSET, IrGraph, IrLayer, integers_of
from gateway.serving.domain.rows.graph import Constant, Graph, ModelGraph

XML_LIMIT = 32 * 2**20
"""Most bytes of an .xml that is read."""
_TYPES: Mapping[str, str] = dict(
    zip(
        ("boolean", "u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "f16", "f32", "f64"),
        ("u1", "u1", "i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4", "<f8"),
        strict=True,
    )
)
"""Types of elements that are read, as they are in the .bin."""


def read_openvino_graph(xml: BinaryIO, weights: BinaryIO) -> ModelGraph:
    """Read the graph from the .xml, and constants from the .bin, a seekable stream.

    Raises ValueError if it is damaged or exceeds the limits of this module. Raises OSError.
    """
    document, content = _IrDocument(), xml.read(XML_LIMIT + 1)
    if len(content) > XML_LIMIT:
        raise ValueError(f"the .xml has more than {XML_LIMIT} bytes")
    parser = expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler = document.start, document.end
    parser.StartDoctypeDeclHandler = document.doctype
    try:
        parser.Parse(content, True)
        return _IrReader(document, weights).model()
    except (expat.ExpatError, LookupError) as error:
        raise ValueError(f"the .xml is damaged: {type(error).__name__}: {error}") from error


class _IrDocument:
    """Layers of the outermost graph by their identifier, and the output that feeds each input."""

    def __init__(self) -> None:
        self.layers: dict[str, IrLayer] = {}
        self.edges: dict[tuple[str, str], tuple[str, str]] = {}
        self._path: list[str] = []
        self._last = IrLayer({})

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self._path.append(tag)
        if len(self._path) == 1 and (tag != "net" or attributes["version"] not in {"10", "11"}):
            raise ValueError("it is not an OpenVINO IR of version 10 or 11")
        match self._path[1:] if len(self._path) <= 5 else ():
            case ["layers", "layer"]:
                key = attributes["id"]
                if key in self.layers or len(self.layers) >= NODES_LIMIT:
                    raise ValueError(f"two layers are called {key:.80}, or there are more than {NODES_LIMIT}")
                self._last = self.layers[key] = IrLayer(attributes)
            case ["layers", "layer", "data"]:
                self._last.data = self._last.data or attributes
            case ["layers", "layer", "input", "port"]:
                self._last.inputs.append(attributes["id"])
            case ["layers", "layer", "output", "port"]:
                self._last.outputs[attributes["id"]] = _names(attributes.get("names", ""))
            case ["edges", "edge"]:
                to = attributes["to-layer"], attributes["to-port"]
                if to in self.edges:
                    raise ValueError(f"two edges lead to port {to[1]:.80} of layer {to[0]:.80}")
                self.edges[to] = attributes["from-layer"], attributes["from-port"]

    def end(self, tag: str) -> None:
        self._path.pop()

    def doctype(self, *_declared: object) -> None:
        raise ValueError("the .xml has a DOCTYPE, which OpenVINO does not write")


class _IrReader:
    """Reader of the layers, constants first."""

    def __init__(self, document: _IrDocument, weights: BinaryIO) -> None:
        self._document, self._weights = document, weights
        self._names: dict[tuple[str, str], str] = {}
        self._inputs: dict[str, tuple[int | None, ...] | None] = {}
        self._aliases: dict[str, str] = {}
        self._made = IrGraph()

    def model(self) -> ModelGraph:
        layers = self._document.layers
        for key, layer in layers.items():
            if layer.kind == "parameter":
                self._parameter(key, layer)
            elif layer.kind == "const":
                (port,) = layer.outputs
                self._names[key, port] = name = self._made.fresh()
                self._made.constants[name] = self._constant(layer.data)
                self._made.shapes[name] = self._made.constants[name].shape
        used, outputs = set(self._document.edges.values()), []
        for key, layer in layers.items():
            given = tuple(self._fed(key, port) for port in layer.inputs)
            if layer.kind == "result":
                outputs.append(given[0])
                given_names = _names(layer.attributes.get("output_names", ""))
                own = layers[self._document.edges[key, layer.inputs[0]][0]].outputs
                names = {*given_names, *own[self._document.edges[key, layer.inputs[0]][1]]} or {
                    layer.attributes["name"]
                }
                for name in names:
                    self._call(name, given[0])
            elif layer.kind not in {"parameter", "const"}:
                made = tuple(
                    self._name(key, port) if place == 0 or (key, port) in used or layer.kind != "maxpool" else ""
                    for place, port in enumerate(layer.outputs)
                )
                self._made.add(layer, given, made)
        graph = Graph(self._inputs, tuple(outputs), self._made.constants, tuple(self._made.nodes))
        return ModelGraph(graph, {"": ONNX_OPSET}, aliases=self._aliases)

    def _name(self, layer: str, port: str) -> str:
        return self._names.setdefault((layer, port), f"{layer}\0{port}")

    def _fed(self, layer: str, port: str) -> str:
        return self._name(*self._document.edges[layer, port]) if (layer, port) in self._document.edges else ""

    def _call(self, name: str, tensor: str) -> None:
        if self._aliases.get(name, name if name in self._inputs else tensor) != tensor:
            raise ValueError(f"two tensors are called {name!r:.80}")
        if name != tensor:
            self._aliases[name] = tensor

    def _parameter(self, key: str, layer: IrLayer) -> None:
        ((port, shape),) = layer.outputs.items()
        name, *others = sorted(shape) or [layer.attributes["name"]]
        if name in self._inputs or name in self._aliases:
            raise ValueError(f"two inputs are called {name!r:.80}")
        text = layer.data["shape"]
        sizes = [each.strip() for each in text.split(",")] if text.strip() else []
        self._inputs[name] = None if "..." in sizes else tuple(int(size) if size.isdigit() else None for size in sizes)
        self._names[key, port] = name
        for other in others:
            self._call(other, name)

    def _constant(self, data: Mapping[str, str]) -> Constant:
        shape, kind = integers_of(data["shape"]), data["element_type"]
        floats = "f" in kind
        count, dtype = prod(shape), np.dtype(_TYPES.get(kind, "u1"))
        if min(shape, default=0) < 0:
            raise ValueError(f"a constant has the shape {shape!s:.80}")
        if kind not in _TYPES or count > (FLOATS_LIMIT if floats else INTEGERS_LIMIT):
            return Constant(shape, floats=floats)
        offset, size = int(data["offset"]), int(data["size"]) if count else 0  # OpenVINO writes a byte for none
        if size != count * dtype.itemsize or not 0 <= offset < 2**63:
            raise ValueError(f"a constant of {count} elements has {size} bytes at {offset}")
        self._weights.seek(offset)
        content = self._weights.read(size)
        if len(content) != size:
            raise ValueError(f"the .bin ends before byte {offset + size}, where a constant ends")
        return Constant(shape, tuple(np.frombuffer(content, dtype).tolist()), floats=floats)


def _names(text: str) -> list[str]:
    return [each.replace("\\,", ",") for each in re.split(r"(?<!\\),", text) if each]
