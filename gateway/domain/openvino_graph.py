"""Graph of an OpenVINO IR file (.xml with .bin) in ONNX's operators, with the small constants that sizes come from.

Weights are not read, nor the sizes that ports state: OpenVINO computes them again. An operator that is not translated
is of the kind `openvino::NAME`, which ends every proof. Source: the operation sets of OpenVINO 2026.4.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import BinaryIO
from xml.parsers import expat

import numpy as np

from gateway.domain.onnx_graph import FLOATS_LIMIT, INTEGERS_LIMIT, LIST_LIMIT, NODES_LIMIT
from gateway.domain.rows.graph import Attribute, Constant, Graph, ModelGraph, Node
from gateway.domain.rows.shaping import WHOLE_END

XML_LIMIT = 64 * 2**20
"""Most bytes of an .xml that is read; a language model with 7,000 operators has 5 MiB."""
OPSETS = frozenset(f"opset{number}" for number in range(1, 18))
"""Operation sets whose operators are translated."""
ONNX_OPSET = 20
"""Opset of ONNX whose forms the translations have."""
_TYPES: Mapping[str, str] = dict(
    zip(
        ("boolean", "u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "f16", "f32", "f64"),
        ("u1", "u1", "i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4", "<f8"),
        strict=True,
    )
)
"""Types of elements that are read, as they are in the .bin."""
_PADDING = {"": "", "explicit": "", "notset": "", "valid": "VALID", "same_upper": "SAME", "same_lower": "SAME"}
_NO_BODY = Graph({}, (), {}, ())


def _renamed(names: str) -> dict[str, str]:
    return {(name := pair.partition("="))[0].lower(): name[2] or name[0] for pair in names.split()}


_PLAIN = _renamed(
    "ReLU=Relu Clamp=Clip Negative=Neg HSwish=HardSwish HSigmoid=HardSigmoid HardSigmoid Ceiling=Ceil LogicalNot=Not "
    "Acos Acosh Asin Asinh Atan Atanh Cos Cosh Sin Sinh Tan Tanh Abs Floor Round Sqrt Exp Log Sign Sigmoid Elu Selu "
    "Erf Mish Gelu Swish Softplus Softsign BitwiseNot IsNaN IsInf IsFinite=IsNaN ShapeOf=Shape ConvertLike=CastLike "
    "Identity Range CumSum Tile GroupNormalization GridSample "
    "MVN=openvino::MVN NormalizeL2=openvino::NormalizeL2 LRN=openvino::LRN"
)
"""Operators with ONNX's inputs, or with a rule of their own, none of whose attributes is needed."""
_NUMPY = _renamed(
    "Add Subtract=Sub Multiply=Mul Divide=openvino::Divide Power=Pow Maximum=Max Minimum=Min FloorMod=Mod Equal "
    "NotEqual=Equal Greater GreaterEqual=GreaterOrEqual Less LessEqual=LessOrEqual LogicalAnd=And LogicalOr=Or "
    "LogicalXor=Xor BitwiseAnd BitwiseOr BitwiseXor Select=Where SquaredDifference=Sub "
    "Mod=openvino::Mod FakeQuantize=openvino::FakeQuantize"
)
"""Operators whose inputs are broadcast."""
_REDUCTIONS = _renamed(
    "ReduceL1 ReduceL2 ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceLogicalAnd=ReduceMin "
    "ReduceLogicalOr=ReduceMax"
)
_NUMBERED: Mapping[str, tuple[str, str, str, str]] = {
    "softmax": ("Softmax", "axis", "axis", "1"),
    "logsoftmax": ("LogSoftmax", "axis", "axis", "1"),
    "concat": ("Concat", "axis", "axis", ""),
    "topk": ("TopK", "axis", "axis", ""),
    "gatherelements": ("GatherElements", "axis", "axis", ""),
    "depthtospace": ("DepthToSpace", "blocksize", "block_size", "1"),
    "spacetodepth": ("SpaceToDepth", "blocksize", "block_size", "1"),
    "reversesequence": ("ReverseSequence", "batch_axis", "batch_axis", "0"),
}
"""Operators with one number that is needed: ONNX's name, its attribute, that of OpenVINO, and the default."""
_AXIS_LAST = {"gather": "Gather", "scatterelementsupdate": "ScatterElements"}
"""Operators whose last input is the axis."""


def read_openvino_graph(xml: BinaryIO, weights: BinaryIO) -> ModelGraph:
    """Read the graph from the .xml, and constants from the .bin, a seekable stream.

    Raises ValueError if it is damaged or exceeds the limits of this module. Raises OSError.
    """
    document, content = _Document(), xml.read(XML_LIMIT + 1)
    if len(content) > XML_LIMIT:
        raise ValueError(f"the .xml has more than {XML_LIMIT} bytes")
    parser = expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler = document.start, document.end
    parser.StartDoctypeDeclHandler = document.doctype
    try:
        parser.Parse(content, True)
        return _Reader(document, weights).model()
    except (expat.ExpatError, LookupError) as error:
        raise ValueError(f"the .xml is damaged: {type(error).__name__}: {error}") from error


@dataclass(slots=True)
class _Layer:
    """Element <layer>: its attributes, those of <data>, ports of inputs, and names of the tensors of its outputs."""

    attributes: Mapping[str, str]
    data: Mapping[str, str] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    outputs: dict[str, list[str]] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """Return the type in lower case, as OpenVINO compares it."""
        return self.attributes["type"].lower()


class _Document:
    """Layers of the outermost graph by their identifier, and the output that feeds each input."""

    def __init__(self) -> None:
        self.layers: dict[str, _Layer] = {}
        self.edges: dict[tuple[str, str], tuple[str, str]] = {}
        self._path: list[str] = []
        self._last = _Layer({})

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self._path.append(tag)
        if len(self._path) == 1 and (tag != "net" or attributes["version"] not in {"10", "11"}):
            raise ValueError("it is not an OpenVINO IR of version 10 or 11")
        match self._path[1:] if len(self._path) <= 5 else ():
            case ["layers", "layer"]:
                key = attributes["id"]
                if key in self.layers or len(self.layers) >= NODES_LIMIT:
                    raise ValueError(f"two layers are called {key:.80}, or there are more than {NODES_LIMIT}")
                self._last = self.layers[key] = _Layer(attributes)
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


class _Reader:
    """Reader of the layers, constants first."""

    def __init__(self, document: _Document, weights: BinaryIO) -> None:
        self._document, self._weights = document, weights
        self._names: dict[tuple[str, str], str] = {}
        self._inputs: dict[str, tuple[int | None, ...] | None] = {}
        self._aliases: dict[str, str] = {}
        self.constants: dict[str, Constant] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.nodes: list[Node] = []
        self._made = 0

    def model(self) -> ModelGraph:
        layers = self._document.layers
        for key, layer in layers.items():
            if layer.kind == "parameter":
                self._parameter(key, layer)
            elif layer.kind == "const":
                (port,) = layer.outputs
                self._names[key, port] = name = self.fresh()
                self.constants[name] = self._constant(layer.data)
                self.shapes[name] = self.constants[name].shape
        used, outputs = set(self._document.edges.values()), []
        for key, layer in layers.items():
            given = tuple(self._fed(key, port) for port in layer.inputs)
            if layer.kind == "result":
                outputs.append(given[0])
                told = _names(layer.attributes.get("output_names", ""))
                own = layers[self._document.edges[key, layer.inputs[0]][0]].outputs
                names = {*told, *own[self._document.edges[key, layer.inputs[0]][1]]} or {layer.attributes["name"]}
                for name in names:
                    self._call(name, given[0])
            elif layer.kind not in {"parameter", "const"}:
                made = tuple(
                    self._name(key, port) if place == 0 or (key, port) in used or layer.kind != "maxpool" else ""
                    for place, port in enumerate(layer.outputs)
                )
                self._translate(layer, given, made)
        graph = Graph(self._inputs, tuple(outputs), self.constants, tuple(self.nodes))
        return ModelGraph(graph, {"": ONNX_OPSET}, aliases=self._aliases)

    def fresh(self) -> str:
        """Return a new name, which no XML can contain."""
        self._made += 1
        return f"\0{self._made}"

    def _name(self, layer: str, port: str) -> str:
        return self._names.setdefault((layer, port), f"{layer}\0{port}")

    def _fed(self, layer: str, port: str) -> str:
        return self._name(*self._document.edges[layer, port]) if (layer, port) in self._document.edges else ""

    def _call(self, name: str, tensor: str) -> None:
        if self._aliases.get(name, name if name in self._inputs else tensor) != tensor:
            raise ValueError(f"two tensors are called {name!r:.80}")
        if name != tensor:
            self._aliases[name] = tensor

    def _parameter(self, key: str, layer: _Layer) -> None:
        ((port, told),) = layer.outputs.items()
        name, *others = sorted(told) or [layer.attributes["name"]]
        if name in self._inputs or name in self._aliases:
            raise ValueError(f"two inputs are called {name!r:.80}")
        text = layer.data["shape"]
        sizes = [each.strip() for each in text.split(",")] if text.strip() else []
        self._inputs[name] = None if "..." in sizes else tuple(int(size) if size.isdigit() else None for size in sizes)
        self._names[key, port] = name
        for other in others:
            self._call(other, name)

    def _constant(self, data: Mapping[str, str]) -> Constant:
        shape, kind = _integers(data["shape"]), data["element_type"]
        floats = "f" in kind
        count, dtype = prod(shape), np.dtype(_TYPES.get(kind, "u1"))
        if min(shape, default=0) < 0:
            raise ValueError(f"a constant has the shape {shape!s:.80}")
        if kind not in _TYPES or count > (FLOATS_LIMIT if floats else INTEGERS_LIMIT):
            return Constant(shape, floats=floats)
        offset, size = int(data["offset"]), int(data["size"])
        if size != count * dtype.itemsize or not 0 <= offset < 2**63:
            raise ValueError(f"a constant of {count} elements has {size} bytes at {offset}")
        self._weights.seek(offset)
        content = self._weights.read(size)
        if len(content) != size:
            raise ValueError(f"the .bin ends before byte {offset + size}, where a constant ends")
        return Constant(shape, tuple(np.frombuffer(content, dtype).tolist()), floats=floats)

    def _translate(self, layer: _Layer, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
        op, before = _Translation(self, layer, inputs, outputs), len(self.nodes)
        try:
            op.require(layer.attributes["version"] in OPSETS)
            _TRANSLATIONS[layer.kind](op)
        except (_UntranslatedError, LookupError, ValueError, TypeError):
            del self.nodes[before:]
            op.end(f"openvino::{layer.attributes['type']}", inputs, body=_NO_BODY)


class _UntranslatedError(Exception):
    """ONNX has no such operator, or not with these attributes."""


@dataclass(frozen=True, slots=True)
class _Translation:
    """A layer with the names of its tensors, and the nodes that it becomes."""

    reader: _Reader
    layer: _Layer
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def add(self, kind: str, inputs: Sequence[str], **attributes: Attribute) -> str:
        """Add a node, and return the name of its result."""
        made = self.reader.fresh()
        self._append(kind, inputs, (made,), attributes)
        return made

    def end(self, kind: str, inputs: Sequence[str], **attributes: Attribute) -> None:
        """Add the node that makes the layer's results."""
        self._append(kind, inputs, self.outputs, attributes)

    def _append(
        self, kind: str, inputs: Sequence[str], outputs: tuple[str, ...], attributes: Mapping[str, Attribute]
    ) -> None:
        self.reader.nodes.append(Node(kind, self.layer.attributes["name"], tuple(inputs), outputs, attributes))

    def number(self, *numbers: int, scalar: bool = False) -> str:
        """Return the name of a new constant."""
        name = self.reader.fresh()
        self.reader.constants[name] = Constant(() if scalar else (len(numbers),), numbers)
        return name

    def integers(self, index: int) -> tuple[int, ...]:
        """Return an input that is a constant of integers."""
        found = self.reader.constants[self.inputs[index]]
        if found.numbers is None or found.floats:
            raise _UntranslatedError
        return tuple(int(each) for each in found.numbers)

    def text(self, name: str, default: str = "") -> str:
        """Return an attribute."""
        return self.layer.data.get(name, default).lower()

    def flag(self, name: str, default: str = "false") -> bool:
        """Return an attribute that is true or false."""
        return self.text(name, default) in {"true", "1"}

    def listed(self, name: str) -> tuple[int, ...]:
        """Return an attribute that is a list of integers."""
        return _integers(self.layer.data.get(name, ""))

    def require(self, holds: bool) -> None:
        """End the translation unless it holds."""
        if not holds:
            raise _UntranslatedError

    @property
    def version(self) -> int:
        """Return the number of the operation set."""
        return int(self.layer.attributes["version"].removeprefix("opset"))


def _names(text: str) -> list[str]:
    return [each.replace("\\,", ",") for each in re.split(r"(?<!\\),", text) if each]


def _integers(text: str) -> tuple[int, ...]:
    if len(text) > 20 * LIST_LIMIT:
        raise ValueError(f"a list has more than {LIST_LIMIT} numbers")
    return tuple(map(int, text.split(","))) if text.strip() else ()


def _broadcast(op: _Translation) -> None:
    kind = _NUMPY[op.layer.kind]
    op.require(op.text("auto_broadcast", "numpy") == "numpy")
    if op.layer.kind == "divide" and not op.flag("m_pythondiv", "true"):
        kind = "Div"  # else integers are rounded down
    if op.layer.kind == "notequal":
        op.end("Not", [op.add(kind, op.inputs)])
    elif op.layer.kind == "squareddifference":
        op.end("Mul", [op.add(kind, op.inputs)] * 2)
    else:
        op.end(kind, op.inputs)


def _numbered(op: _Translation) -> None:
    kind, attribute, own, default = _NUMBERED[op.layer.kind]
    op.end(kind, op.inputs, **{attribute: int(op.text(own, default))})


def _prelu(op: _Translation) -> None:
    shape = op.reader.shapes[op.inputs[1]]
    op.end("openvino::PReLU" if len(shape) == 1 and shape != (1,) else "PRelu", op.inputs)


def _convert(op: _Translation) -> None:
    kind = op.text("destination_type")
    if op.inputs[0] in op.reader.shapes:
        op.reader.shapes[op.outputs[0]] = op.reader.shapes[op.inputs[0]]
    types = {"f32": 1, "f64": 11, "i32": 6, "i64": 7}
    op.end("Cast" if kind in types else "openvino::Convert", op.inputs, to=types.get(kind, 0))


def _mat_mul(op: _Translation) -> None:
    op.end("MatMul", op.inputs, transA=int(op.flag("transpose_a")), transB=int(op.flag("transpose_b")))


def _attention(op: _Translation) -> None:
    op.require(3 <= len(op.inputs) <= 5)
    products = op.add("MatMul", op.inputs[:2], transB=1)
    for each in op.inputs[3:]:  # a mask, and a scale
        products = op.add("Add", [products, each])
    if op.flag("causal"):
        products = op.add("Trilu", [products])
    op.end("MatMul", [op.add("Softmax", [products], axis=-1), op.inputs[2]])


def _windows(op: _Translation) -> dict[str, Attribute]:
    op.require(op.text("rounding_type", "floor") in {"floor", "ceil"})
    return {
        **{name: op.listed(name) for name in ("strides", "dilations", "output_padding")},
        "kernel_shape": op.listed("kernel"),
        "pads": op.listed("pads_begin") + op.listed("pads_end"),
        "auto_pad": _PADDING[op.text("auto_pad")],
        "ceil_mode": int(op.text("rounding_type") == "ceil"),
    }


def _convolution(op: _Translation) -> None:
    image, weights = op.inputs[:2]
    attributes = _windows(op)
    if op.layer.kind.startswith("group"):  # [groups, first, second, …] becomes [groups × first, second, …]
        sizes = op.add("Concat", [op.number(-1), op.add("Shape", [weights], start=2)], axis=0)
        if "backprop" in op.layer.kind:
            attributes["group"] = op.reader.shapes[weights][0]
        weights = op.add("Reshape", [weights, sizes])
    if len(op.inputs) > 2:
        attributes["output_shape"] = op.integers(2)
    is_back = "backprop" in op.layer.kind
    op.require(not is_back or len(op.inputs) > 2 or not attributes["auto_pad"])
    op.end("ConvTranspose" if is_back else "Conv", [image, weights], **attributes)


def _reduce(op: _Translation) -> None:
    kept = int(op.flag("keep_dims"))
    op.end(_REDUCTIONS[op.layer.kind], op.inputs, keepdims=kept, noop_with_empty_axes=1)


def _axis_last(op: _Translation) -> None:
    op.require(op.text("batch_dims", "0") == "0" and op.text("reduction", "none") == "none")
    (axis,) = op.integers(len(op.inputs) - 1)
    op.end(_AXIS_LAST[op.layer.kind], op.inputs[:-1], axis=axis)


def _gather_nd(op: _Translation) -> None:
    same = int(op.text("batch_dims", "0"))
    op.require(op.version >= 8 or same == 0)
    op.end("GatherND", op.inputs, batch_dims=same)


def _one_hot(op: _Translation) -> None:
    op.require(all(name in op.reader.constants for name in op.inputs[2:4]))
    op.end("OneHot", op.inputs[:3], axis=int(op.text("axis")))


def _reshape(op: _Translation) -> None:
    op.end("Reshape", op.inputs, allowzero=int(not op.flag("special_zero")))


def _transpose(op: _Translation) -> None:
    order = op.integers(1)
    op.end("Transpose", op.inputs[:1], **({"perm": order} if order else {}))


def _squeeze(op: _Translation) -> None:
    op.require(not op.flag("allow_axis_skip"))
    axes = op.integers(1) if len(op.inputs) > 1 else ()  # empty: every axis of size 1
    op.end(op.layer.attributes["type"].capitalize(), op.inputs if axes else op.inputs[:1])


def _broadcast_to(op: _Translation) -> None:
    op.require(len(op.inputs) == 2 and op.text("mode", "numpy") in {"numpy", "bidirectional"})
    op.end("Expand", op.inputs)


def _split(op: _Translation) -> None:
    (axis,), is_even = op.integers(1), op.layer.kind == "split"
    lengths = () if is_even else op.integers(2)
    if -1 not in lengths:
        op.end("Split", op.inputs[:1] if is_even else op.inputs[::2], axis=axis)
    rest = lengths.index(-1) if -1 in lengths else 0
    for place, output in enumerate(op.outputs if -1 in lengths else ()):
        before, after = sum(lengths[:place]), sum(lengths[place + 1 :])
        start = before if place <= rest else -after - lengths[place]
        end = before + lengths[place] if place < rest else -after or WHOLE_END
        cut = [op.inputs[0], op.number(start), op.number(end), op.number(axis)]
        op.reader.nodes.append(Node("Slice", op.layer.attributes["name"], tuple(cut), (output,)))


def _slice(op: _Translation) -> None:
    data, start, end, step, *axes = op.inputs
    op.end("Slice", [data, start, end, axes[0] if axes else "", step])


def _strided_slice(op: _Translation) -> None:
    """Translate to a chain along one axis each."""
    value, begin, end = op.inputs[:3]
    op.require(not any(op.listed("ellipsis_mask")))
    count = next(len(op.integers(index)) for index in range(1, len(op.inputs)) if op.inputs[index] in op.reader.shapes)
    steps = op.integers(3) if len(op.inputs) > 3 else (1,) * count
    masks = (op.listed(f"{name}_mask") for name in ("begin", "end", "new_axis", "shrink_axis"))
    axis = 0
    for place, flags in enumerate(zip(*((*mask, *(0,) * count)[:count] for mask in masks), strict=True)):
        no_begin, no_end, is_new, is_shrunk = flags
        one, step = op.number(place), steps[place]
        if is_new:
            value = op.add("Unsqueeze", [value, op.number(axis)])
        elif is_shrunk:
            op.require(not no_begin)
            value = op.add("Gather", [value, op.add("Gather", [begin, op.number(place, scalar=True)])], axis=axis)
            continue
        else:
            far = WHOLE_END if step > 0 else -WHOLE_END
            start = op.number(0 if step > 0 else WHOLE_END) if no_begin else op.add("Gather", [begin, one])
            stop = op.number(far) if no_end else op.add("Gather", [end, one])
            value = op.add("Slice", [value, start, stop, op.number(axis), op.number(step)])
        axis += 1
    op.end("Identity", [value])


def _pad(op: _Translation) -> None:
    data, before, after, *value = op.inputs
    op.end("Pad", [data, op.add("Concat", [before, after], axis=0), *value])


def _interpolate(op: _Translation) -> None:
    op.require(op.version >= 4 and not any(op.listed("pads_begin") + op.listed("pads_end")))
    by_scales, is_new = op.text("shape_calculation_mode") == "scales", op.version >= 11
    amount = op.inputs[1 if is_new or not by_scales else 2]
    axes = {"axes": op.integers(2 if is_new else 3)} if len(op.inputs) > (2 if is_new else 3) else {}
    given = [op.inputs[0], "", amount] if by_scales else [op.inputs[0], "", "", amount]
    op.end("Resize", given, mode=op.text("mode"), **axes)


def _recurrent(op: _Translation) -> None:
    x, state, *cell, lengths, weights, recurrence, bias = op.inputs
    every = op.reader.fresh()
    inputs = (x, weights, recurrence, bias, lengths, state, *cell)
    own: dict[str, Attribute] = {"hidden_size": int(op.text("hidden_size")), "direction": op.text("direction")}
    kind = op.layer.kind.removesuffix("sequence").upper()
    name = op.layer.attributes["name"]
    op.reader.nodes.append(Node(kind, name, inputs, (every, *op.outputs[1:]), {**own, "layout": 1}))
    op.reader.nodes.append(Node("Transpose", name, (every,), op.outputs[:1], {"perm": (0, 2, 1, 3)}))


_TRANSLATIONS: Mapping[str, Callable[[_Translation], None]] = {
    **dict.fromkeys(_PLAIN, lambda op: op.end(_PLAIN[op.layer.kind], op.inputs)),
    **dict.fromkeys(_NUMPY, _broadcast),
    **dict.fromkeys(_REDUCTIONS, _reduce),
    **dict.fromkeys(_NUMBERED, _numbered),
    **dict.fromkeys(_AXIS_LAST, _axis_last),
    "prelu": _prelu,
    "convert": _convert,
    "matmul": _mat_mul,
    "scaleddotproductattention": _attention,
    "convolution": _convolution,
    "groupconvolution": _convolution,
    "convolutionbackpropdata": _convolution,
    "groupconvolutionbackpropdata": _convolution,
    "maxpool": lambda op: op.end("MaxPool", op.inputs, **_windows(op)),
    "avgpool": lambda op: op.end("AveragePool", op.inputs, **_windows(op)),
    "batchnorminference": lambda op: op.end("BatchNormalization" if op.version >= 5 else "", op.inputs),
    "gathernd": _gather_nd,
    "onehot": _one_hot,
    "einsum": lambda op: op.end("Einsum", op.inputs, equation=op.layer.data["equation"]),
    "reshape": _reshape,
    "transpose": _transpose,
    "squeeze": _squeeze,
    "unsqueeze": _squeeze,
    "broadcast": _broadcast_to,
    "split": _split,
    "variadicsplit": _split,
    "slice": _slice,
    "stridedslice": _strided_slice,
    "pad": _pad,
    "interpolate": _interpolate,
    "lstmsequence": _recurrent,
    "grusequence": _recurrent,
    "rnnsequence": _recurrent,
}
"""Translation of each operator, by its type in lower case."""
