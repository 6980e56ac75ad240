"""Operators of OpenVINO in the forms of ONNX's, for which the proof of rows has rules.

An operator that is not translated is of the kind `openvino::NAME`, which ends every proof. Source: the operation sets
of OpenVINO 2026.4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gateway.serving.domain.onnx_graph import LIST_LIMIT
from gateway.serving.domain.rows.graph import Attribute, Constant, Graph, Node
from gateway.serving.domain.rows.shaping import WHOLE_END

OPSETS = frozenset(f"opset{number}" for number in range(1, 18))
"""Operation sets whose operators are translated."""
ONNX_OPSET = 20
"""Opset of ONNX whose forms the translations have."""
_PADDING = {"": "", "explicit": "", "notset": "", "valid": "VALID", "same_upper": "SAME", "same_lower": "SAME"}
_NO_BODY = Graph({}, (), {}, ())


def _renamed(names: str) -> dict[str, str]:
    return {(name := pair.partition("="))[0].lower(): name[2] or name[0] for pair in names.split()}


_PLAIN = _renamed(
    "ReLU=Relu Clamp=Clip Negative=Neg HSwish=HardSwish HSigmoid=HardSigmoid HardSigmoid Ceiling=Ceil LogicalNot=Not "
    "Acos Acosh Asin Asinh Atan Atanh Cos Cosh Sin Sinh Tan Tanh Abs Floor Round Sqrt Exp Log Sign Sigmoid Elu Selu "
    "Erf Mish Gelu Swish Softplus Softsign BitwiseNot IsNaN IsInf IsFinite=IsNaN ShapeOf=Shape ConvertLike=CastLike "
    "Identity Range CumSum Tile GroupNormalization GridSample NormalizeL2=openvino::NormalizeL2 LRN=openvino::LRN"
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


@dataclass(slots=True)
class IrLayer:
    """Element <layer>: its attributes, those of <data>, ports of inputs, and names of the tensors of its outputs."""

    attributes: Mapping[str, str]
    data: Mapping[str, str] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    outputs: dict[str, list[str]] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """Return the type in lower case, as OpenVINO compares it."""
        return self.attributes["type"].lower()


@dataclass(slots=True)
class IrGraph:
    """Graph that is being made. `shapes`: those of constants, converted ones included."""

    constants: dict[str, Constant] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    names: int = 0

    def fresh(self) -> str:
        """Return a new name, which no XML can contain."""
        self.names += 1
        return f"\0{self.names}"

    def add(self, layer: IrLayer, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        """Add the nodes of a layer, whose tensors have these names."""
        op, before = _IrTranslation(self, layer, inputs, outputs), len(self.nodes)
        try:
            op.only_if(layer.attributes["version"] in OPSETS)
            _TRANSLATIONS[layer.kind](op)
        except (_UntranslatedError, LookupError, ValueError, TypeError):
            del self.nodes[before:]
            op.end(f"openvino::{layer.attributes['type']}", body=_NO_BODY)


class _UntranslatedError(Exception):
    """ONNX has no such operator, or not with these attributes."""


@dataclass(frozen=True, slots=True)
class _IrTranslation:
    """A layer with the names of its tensors, and the nodes that it becomes."""

    made: IrGraph
    layer: IrLayer
    inputs: Sequence[str]
    outputs: Sequence[str]

    def add(
        self, kind: str, inputs: Sequence[str], outputs: Sequence[str] = (), /, **attributes: Attribute | None
    ) -> str:
        """Add a node, and return the name of its result. An attribute None is left out."""
        results = tuple(outputs) or (self.made.fresh(),)
        given = {name: each for name, each in attributes.items() if each is not None}
        self.made.nodes.append(Node(kind, self.layer.attributes["name"], tuple(inputs), results, given))
        return results[0]

    def end(self, kind: str, inputs: Sequence[str] | None = None, /, **attributes: Attribute | None) -> None:
        """Add the node that makes the layer's results, of all its inputs if none are named."""
        self.add(kind, self.inputs if inputs is None else inputs, self.outputs, **attributes)

    def number(self, *numbers: int, scalar: bool = False) -> str:
        """Return the name of a new constant."""
        name = self.made.fresh()
        self.made.constants[name] = Constant(() if scalar else (len(numbers),), numbers)
        return name

    def integers(self, index: int) -> tuple[int, ...]:
        """Return an input that is a constant of integers."""
        found = self.made.constants[self.inputs[index]]
        if found.numbers is None or found.floats:
            raise _UntranslatedError
        return tuple(int(each) for each in found.numbers)

    def text(self, name: str, default: str = "") -> str:
        return self.layer.data.get(name, default).lower()

    def flag(self, name: str, default: str = "false") -> bool:
        return self.text(name, default) in {"true", "1"}

    def listed(self, name: str) -> tuple[int, ...]:
        return integers_of(self.layer.data.get(name, ""))

    def only_if(self, holds: bool) -> _IrTranslation:
        """Return itself. Raises _UntranslatedError unless it holds."""
        if not holds:
            raise _UntranslatedError
        return self

    @property
    def version(self) -> int:
        return int(self.layer.attributes["version"].removeprefix("opset"))


def integers_of(text: str) -> tuple[int, ...]:
    """Return the integers of an attribute. Raises ValueError."""
    if len(text) > 20 * LIST_LIMIT:
        raise ValueError(f"a list has more than {LIST_LIMIT} numbers")
    return tuple(map(int, text.split(","))) if text.strip() else ()


def _broadcast(op: _IrTranslation) -> None:
    kind = _NUMPY[op.layer.kind]
    op.only_if(op.text("auto_broadcast", "numpy") == "numpy")
    if op.layer.kind == "divide" and not op.flag("m_pythondiv", "true"):
        kind = "Div"  # else integers are rounded down
    if op.layer.kind == "notequal":
        op.end("Not", [op.add(kind, op.inputs)])
    elif op.layer.kind == "squareddifference":
        op.end("Mul", [op.add(kind, op.inputs)] * 2)
    else:
        op.end(kind)


def _numbered(kind: str, attribute: str, own: str = "", default: str = "") -> Callable[[_IrTranslation], None]:
    """Return the translation of an operator of which one number is needed."""
    return lambda op: op.end(kind, **{attribute: int(op.text(own or attribute, default))})


def _prelu(op: _IrTranslation) -> None:
    shape = op.made.shapes[op.inputs[1]]  # one axis: along that of the channels
    op.end("openvino::PReLU" if len(shape) == 1 and shape != (1,) else "PRelu")


def _convert(op: _IrTranslation) -> None:
    kind = op.text("destination_type")
    if op.inputs[0] in op.made.shapes:
        op.made.shapes[op.outputs[0]] = op.made.shapes[op.inputs[0]]
    types = {"f32": 1, "f64": 11, "i32": 6, "i64": 7}  # narrower ones change numbers
    op.end("Cast" if kind in types else "openvino::Convert", to=types.get(kind))


def _attention(op: _IrTranslation) -> None:
    products = op.only_if(3 <= len(op.inputs) <= 5).add("MatMul", op.inputs[:2], transB=1)
    for each in op.inputs[3:]:  # a mask, and a scale
        products = op.add("Add", [products, each])
    if op.flag("causal"):
        products = op.add("Trilu", [products])
    op.end("MatMul", [op.add("Softmax", [products], axis=-1), op.inputs[2]])


def _windows(op: _IrTranslation) -> dict[str, Attribute]:
    op.only_if(op.text("rounding_type", "floor") in {"floor", "ceil"})
    return {
        **{name: op.listed(name) for name in ("strides", "dilations", "output_padding")},
        "kernel_shape": op.listed("kernel"),
        "pads": op.listed("pads_begin") + op.listed("pads_end"),
        "auto_pad": _PADDING[op.text("auto_pad")],
        "ceil_mode": int(op.text("rounding_type") == "ceil"),
    }


def _convolution(op: _IrTranslation) -> None:
    image, weights, *_ = op.inputs
    attributes, is_back = _windows(op), "backprop" in op.layer.kind
    if op.layer.kind.startswith("group"):  # [groups, first, second, …] becomes [groups × first, second, …]
        attributes["group"] = op.made.shapes[weights][0] if is_back else 1
        sizes = op.add("Concat", [op.number(-1), op.add("Shape", [weights], start=2)], axis=0)
        weights = op.add("Reshape", [weights, sizes])
    if len(op.inputs) > 2:
        attributes["output_shape"] = op.integers(2)
    op.only_if(not is_back or len(op.inputs) > 2 or not attributes["auto_pad"])
    op.end("ConvTranspose" if is_back else "Conv", [image, weights], **attributes)


def _axis_last(op: _IrTranslation) -> None:
    (axis,) = op.integers(len(op.inputs) - 1)
    op.only_if(op.text("batch_dims", "0") == "0" and op.text("reduction", "none") == "none")
    op.end("Gather" if op.layer.kind == "gather" else "ScatterElements", op.inputs[:-1], axis=axis)


def _squeeze(op: _IrTranslation) -> None:
    axes = op.integers(1) if len(op.inputs) > 1 else ()  # none: every axis of size 1
    op.only_if(not op.flag("allow_axis_skip")).end("Squeeze", op.inputs if axes else op.inputs[:1])


def _lengths(op: _IrTranslation) -> None:
    """Translate VariadicSplit, with slices if a length is left open."""
    (axis,), lengths = op.integers(1), op.integers(2)
    if -1 not in lengths:
        return op.end("Split", op.inputs[::2], axis=axis)
    for place, (length, output) in enumerate(zip(lengths, op.outputs, strict=True)):
        before, after = sum(lengths[:place]), sum(lengths[place + 1 :])
        start = before if -1 not in lengths[:place] else -after - length
        end = before + length if -1 in lengths[place + 1 :] else -after or WHOLE_END
        op.add("Slice", [op.inputs[0], op.number(start), op.number(end), op.number(axis)], [output])
    return None


def _strided_slice(op: _IrTranslation) -> None:
    """Translate to a chain of operators along one axis each."""
    (value, begin, end), axis = op.inputs[:3], 0
    count = len(op.made.constants[next(each for each in op.inputs[1:] if each in op.made.shapes)].numbers or ())
    steps = op.integers(3) if len(op.inputs) > 3 else (1,) * count
    masks = (op.listed(f"{name}_mask") for name in ("begin", "end", "new_axis", "shrink_axis", "ellipsis"))
    for place, flags in enumerate(zip(*((*mask, *(0,) * count)[:count] for mask in masks), strict=True)):
        no_begin, no_end, is_new, is_shrunk, is_rest = flags
        op.only_if(not is_rest and not (is_shrunk and no_begin))
        far = WHOLE_END if steps[place] > 0 else -WHOLE_END
        if is_new:
            value = op.add("Unsqueeze", [value, op.number(axis)])
        elif is_shrunk:
            value = op.add("Gather", [value, op.add("Gather", [begin, op.number(place, scalar=True)])], axis=axis)
            continue
        else:
            start = op.number(max(0, -far)) if no_begin else op.add("Gather", [begin, op.number(place)])
            stop = op.number(far) if no_end else op.add("Gather", [end, op.number(place)])
            value = op.add("Slice", [value, start, stop, op.number(axis), op.number(steps[place])])
        axis += 1
    op.end("Identity", [value])


def _interpolate(op: _IrTranslation) -> None:
    op.only_if(op.version >= 4 and not any(op.listed("pads_begin") + op.listed("pads_end")))
    by_scales, (data, *amounts) = op.text("shape_calculation_mode") == "scales", op.inputs
    place = 2 if op.version >= 11 else 3
    given = [data, "", amounts[by_scales and place - 2]] if by_scales else [data, "", "", amounts[0]]
    op.end("Resize", given, mode=op.text("mode"), axes=op.integers(place) if len(op.inputs) > place else None)


def _recurrent(op: _IrTranslation) -> None:
    x, state, *cell, lengths, weights, recurrence, bias = op.inputs
    own: dict[str, Attribute] = {"hidden_size": int(op.text("hidden_size")), "direction": op.text("direction")}
    inputs, outputs = [x, weights, recurrence, bias, lengths, state, *cell], [op.made.fresh(), *op.outputs[1:]]
    every = op.add(op.layer.kind.removesuffix("sequence").upper(), inputs, outputs, layout=1, **own)
    op.add("Transpose", [every], op.outputs[:1], perm=(0, 2, 1, 3))


_TRANSLATIONS: Mapping[str, Callable[[_IrTranslation], None]] = {
    **dict.fromkeys(_PLAIN, lambda op: op.end(_PLAIN[op.layer.kind])),
    **dict.fromkeys(_NUMPY, _broadcast),
    **dict.fromkeys(
        _REDUCTIONS,
        lambda op: op.end(_REDUCTIONS[op.layer.kind], keepdims=int(op.flag("keep_dims")), noop_with_empty_axes=1),
    ),
    **dict.fromkeys(
        ("convolution", "groupconvolution", "convolutionbackpropdata", "groupconvolutionbackpropdata"), _convolution
    ),
    **dict.fromkeys(("lstmsequence", "grusequence", "rnnsequence"), _recurrent),
    **dict.fromkeys(("gather", "scatterelementsupdate"), _axis_last),
    "softmax": _numbered("Softmax", "axis", default="1"),
    "logsoftmax": _numbered("LogSoftmax", "axis", default="1"),
    "concat": _numbered("Concat", "axis"),
    "topk": _numbered("TopK", "axis"),
    "gatherelements": _numbered("GatherElements", "axis"),
    "depthtospace": _numbered("DepthToSpace", "blocksize", "block_size", "1"),
    "spacetodepth": _numbered("SpaceToDepth", "blocksize", "block_size", "1"),
    "reversesequence": _numbered("ReverseSequence", "batch_axis", default="0"),
    "prelu": _prelu,
    "convert": _convert,
    "matmul": lambda op: op.end("MatMul", transA=int(op.flag("transpose_a")), transB=int(op.flag("transpose_b"))),
    "scaleddotproductattention": _attention,
    "maxpool": lambda op: op.end("MaxPool", **_windows(op)),
    "avgpool": lambda op: op.end("AveragePool", **_windows(op)),
    "batchnorminference": lambda op: op.only_if(op.version >= 5).end("BatchNormalization"),
    "gathernd": lambda op: op.only_if(op.version >= 8 or op.text("batch_dims", "0") == "0").end(
        "GatherND", batch_dims=int(op.text("batch_dims", "0"))
    ),
    "onehot": lambda op: op.only_if(all(name in op.made.constants for name in op.inputs[2:4])).end(
        "OneHot", op.inputs[:3], axis=int(op.text("axis"))
    ),
    "reverse": lambda op: op.only_if(op.text("mode") == "index").end("openvino::Reverse"),
    "mvn": lambda op: op.only_if(len(op.inputs) == 2).end("openvino::MVN"),
    "einsum": lambda op: op.end("Einsum", equation=op.layer.data["equation"]),
    "reshape": lambda op: op.end("Reshape", allowzero=int(not op.flag("special_zero"))),
    "transpose": lambda op: op.end("Transpose", op.inputs[:1], perm=op.integers(1) or None),
    "squeeze": _squeeze,
    "unsqueeze": lambda op: op.end("Unsqueeze"),
    "broadcast": lambda op: op.only_if(
        len(op.inputs) == 2 and op.text("mode", "numpy") in {"numpy", "bidirectional"}
    ).end("Expand"),
    "split": lambda op: op.end("Split", op.inputs[:1], axis=op.integers(1)[0]),
    "variadicsplit": _lengths,
    "slice": lambda op: op.end("Slice", [*op.inputs[:3], *(op.inputs[4:] or [""]), op.inputs[3]]),
    "stridedslice": _strided_slice,
    "pad": lambda op: op.end("Pad", [op.inputs[0], op.add("Concat", op.inputs[1:3], axis=0), *op.inputs[3:]]),
    "interpolate": _interpolate,
}
"""Translation of each operator, by its type in lower case."""
