"""Graphs of OpenVINO IR files: the proof says of them what it says of the ONNX file, and damaged ones are refused."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import openvino as ov
import openvino.opset13 as ops
import pytest
from onnx import TensorProto, helper, numpy_helper

from gateway.common.domain.errors import VariantError
from gateway.common.domain.manifest import Artifact
from gateway.common.domain.release import bare_variant
from gateway.common.domain.tensor import Array
from gateway.serving.domain.onnx_graph import read_onnx_graph
from gateway.serving.domain.openvino_graph import read_openvino_graph
from gateway.serving.domain.ports import RowInput, RowProof, RowTensors
from gateway.serving.domain.rows.graph import ModelGraph
from gateway.serving.domain.rows.proof import prove_rows
from gateway.serving.runtimes.openvino import _ports, row_graph

random = np.random.default_rng(35)


def floats(*shape: int) -> Array:
    return random.standard_normal(shape).astype(np.float32)


def integers(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


@dataclass(frozen=True)
class Made:
    """ONNX's operators as text, on `x` with rows first; the result is `y`. `proved`: rows are independent."""

    text: str
    shape: tuple[int, ...] = (4,)
    constants: dict[str, Array] = field(default_factory=dict)
    proved: bool = True


IMAGE = (3, 8, 8)
CASES = {
    "perceptron": Made(
        "a = Gemm(x, w, b) r = Relu(a) m = MatMul(r, v) y = Softmax<axis = 1>(m)",
        (4,),
        {"w": floats(4, 6), "b": floats(6), "v": floats(6, 3)},
    ),
    "convolutions": Made(
        "a = Conv<pads = [1, 1, 1, 1]>(x, w) n = BatchNormalization(a, s, s, s, v) r = Relu(n) "
        "p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(r) "
        'd = Conv<group = 8, auto_pad = "SAME_UPPER", strides = [2, 2]>(p, depthwise) '
        "q = AveragePool<kernel_shape = [2, 2]>(d) f = Flatten(q) y = MatMul(f, out)",
        IMAGE,
        {
            "w": floats(8, 3, 3, 3),
            "s": floats(8),
            "v": np.abs(floats(8)),
            "depthwise": floats(8, 1, 3, 3),
            "out": floats(8, 5),
        },
    ),
    "transposed convolution": Made(
        "y = ConvTranspose<strides = [2, 2], output_padding = [1, 1]>(x, w)", IMAGE, {"w": floats(3, 2, 3, 3)}
    ),
    "grouped transposed convolution": Made(
        "a = ConvTranspose<group = 3>(x, w) y = Reshape(a, t)",
        IMAGE,
        {"w": floats(3, 2, 3, 3), "t": integers(-1, 6, 100)},
    ),
    "attention": Made(
        "m = MatMul(x, w) h = Reshape(m, heads) q = Transpose<perm = [0, 2, 1, 3]>(h) "
        "k = Transpose<perm = [0, 2, 3, 1]>(h) p = MatMul(q, k) s = Softmax(p) v = MatMul(s, q) "
        "t = Transpose<perm = [0, 2, 1, 3]>(v) size = Shape(x) r = Reshape(t, size) n = Add(x, r) "
        "mean = ReduceMean<axes = [-1]>(n) c = Sub(n, mean) y = Mul(c, scale)",
        (5, 8),
        {"w": floats(8, 8), "heads": integers(0, 0, 2, 4), "scale": floats(8)},
    ),
    "sizes": Made(
        "size = Shape(x) n = Gather(size, zero) t = Concat<axis = 0>(n, rest) r = Reshape(x, t) "
        "c = Slice(r, from, to, axis) e = Expand(one, size) s = ReduceSum<keepdims = 0>(e, axis) y = Mul(c, n2) "
        "n2 = Reshape(s, column)",
        (6,),
        {
            "zero": integers(0),
            "rest": integers(2, 3),
            "from": integers(0),
            "to": integers(1),
            "axis": integers(1),
            "one": np.ones((1, 6), np.float32),
            "column": integers(-1, 1, 1),
        },
    ),
    "static quantisation": Made(
        "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) y = MatMul(d, w)",
        (4,),
        {"s": np.array(0.1, np.float32), "z": np.array(3, np.uint8), "w": floats(4, 2)},
    ),
    "split and concat": Made(
        "a, b, c = Split<axis = 1>(x, lengths) d = Concat<axis = 1>(c, a) g = Gather<axis = 1>(d, two) "
        "p = PRelu(g, slope) q = Pad(p, pads) t, i = TopK<axis = 1>(q, k) y = Clip(t)",
        (6,),
        {
            "lengths": integers(1, 2, 3),
            "two": integers(2, 0, -1),
            "slope": floats(3),
            "pads": integers(0, 1, 0, 2),
            "k": integers(2),
        },
    ),
    "resize": Made('y = Resize<mode = "nearest">(x, , scales)', IMAGE, {"scales": np.array([1, 1, 2, 2], np.float32)}),
    "maximum of all rows": Made(
        "m = ReduceMax<keepdims = 0>(x) l = Sub(m, eighty) y = Max(x, l)",
        (4,),
        {"eighty": np.array(80, np.float32)},
        proved=False,
    ),
    "sum over rows before": Made("y = CumSum(x, a)", (4,), {"a": np.array(0, np.int64)}, proved=False),
    "three constant rows": Made("y = Add(x, w)", (4,), {"w": floats(3, 4)}, proved=False),
    "reshape to one row": Made("y = Reshape(x, t)", (4,), {"t": integers(1, -1)}, proved=False),
    "softmax of rows": Made("y = Softmax<axis = 0>(x)", proved=False),
    "rows turned": Made("t = Transpose<perm = [1, 0]>(x) m = MatMul(x, t) y = MatMul(m, x)", proved=False),
    "last row": Made("l = Gather(x, i) y = Add(x, l)", (4,), {"i": integers(-1)}, proved=False),
    "number of rows": Made(
        "s = Shape(x) n = Gather(s, i) f = Cast<to = 1>(n) y = Div(x, f)", (4,), {"i": integers(0)}, proved=False
    ),
    "dynamic quantisation": Made(
        "q, s, z = DynamicQuantizeLinear(x) y = DequantizeLinear(q, s, z)", (4,), proved=False
    ),
}


def saved(folder: Path, made: Made) -> tuple[onnx.ModelProto, Path]:
    """Return the ONNX model, and the .xml of the converted one."""
    sizes = ",".join(map(str, ("N", *made.shape)))
    graph = onnx.parser.parse_graph(f"g (float[{sizes}] x) => (float[N] y) {{ {made.text} }}")
    graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in made.constants.items())
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, folder / "model.onnx")
    ov.save_model(ov.convert_model(folder / "model.onnx"), folder / "model.xml")
    return model, folder / "model.xml"


def graph_of(xml: Path) -> ModelGraph:
    with xml.open("rb") as document, xml.with_suffix(".bin").open("rb") as weights:
        return read_openvino_graph(document, weights)


def proof(model: ModelGraph, made: Made) -> RowProof:
    return prove_rows(model, RowTensors({"x": RowInput((-1, *made.shape))}, {"y": 0}))


@pytest.mark.parametrize("name", CASES)
def test_a_file_is_proved_as_its_onnx_file_is(tmp_path: Path, name: str) -> None:
    made = CASES[name]
    model, xml = saved(tmp_path, made)
    found = proof(graph_of(xml), made)
    assert found.is_proved == made.proved, found
    assert proof(read_onnx_graph(io.BytesIO(model.SerializeToString())), made).is_proved == made.proved


def test_every_name_of_a_port_finds_its_tensor(tmp_path: Path) -> None:
    _, xml = saved(tmp_path, Made("r = Relu(x) a, y = Split<axis = 1>(r)"))
    model = ov.convert_model(tmp_path / "model.onnx")
    model.inputs[0].get_tensor().set_names({"x", 'a,"<', "z\\n"})
    model.outputs[0].get_tensor().set_names({"o,1", "o2"})
    model.add_outputs(("r", 0))
    model.outputs[1].get_tensor().set_names(set())
    ov.save_model(model, xml)
    read = ov.Core().read_model(xml)
    graph = row_graph(bare_variant("model.xml", (Artifact("model.xml", "0" * 64, 1),)), tmp_path)
    (given,), results = _ports(read.inputs), _ports(read.outputs)
    assert (given.name, len(given.aliases), len(results)) == ('a,"<', 2, 2)
    for name in (given.name, *given.aliases):
        for result in [each for port in results for each in (port.name, *port.aliases)]:
            assert prove_rows(graph, RowTensors({name: RowInput((-1, 4))}, {result: 0})) == RowProof()
    assert "no input called 'q'" in prove_rows(graph, RowTensors({"q": RowInput((-1, 4))}, {})).reason


def whole(*numbers: int) -> Any:
    return ops.constant(np.array(numbers, np.int64))


def one(number: int) -> Any:
    return ops.constant(np.int64(number))


def masked(x: Any, begin: tuple[int, ...], end: tuple[int, ...], masks: tuple[list[int], ...]) -> Any:
    return ops.strided_slice(x, whole(*begin), whole(*end), whole(*(1 for _ in begin)), *masks)


def sequence(x: Any) -> Any:
    rows = ops.gather(ops.shape_of(x), whole(0), one(0))
    state = ops.broadcast(ops.constant(np.float32(0)), ops.concat([rows, whole(1, 3)], 0))
    lengths = ops.broadcast(one(4), rows)
    weights = (ops.constant(floats(1, 12, size)) for size in (6, 3))
    return ops.lstm_sequence(x, state, state, lengths, *weights, ops.constant(floats(1, 12)), 3, "forward").output(0)


OWN = {
    "MVN": (lambda x: ops.mvn(x, whole(-1), True, 1e-6, "inside_sqrt"), True),
    "MVN over rows": (lambda x: ops.mvn(x, whole(0, 2), True, 1e-6, "inside_sqrt"), False),
    "NormalizeL2": (lambda x: ops.normalize_l2(x, whole(1), 1e-6, "add"), True),
    "NormalizeL2 over rows": (lambda x: ops.normalize_l2(x, whole(0), 1e-6, "add"), False),
    "VariadicSplit": (
        lambda x: ops.concat(list(ops.variadic_split(x, one(2), whole(1, -1, 2)).outputs())[::-1], 2),
        True,
    ),
    "VariadicSplit of rows": (lambda x: ops.variadic_split(x, one(0), whole(-1, 1)).output(0), False),
    "StridedSlice": (
        lambda x: masked(x, (0, 0, 1, -2), (0, 0, 0, 9), ([1, 0, 0, 0], [1] * 4, [0, 1, 0, 0], [0] * 4, [0] * 4)),
        True,
    ),
    "StridedSlice, one entry": (
        lambda x: masked(x, (0, -1), (0, 0), ([1, 0], [1, 0], [0, 0], [0, 1], [0, 0])),
        True,
    ),
    "StridedSlice, first row": (lambda x: masked(x, (0,), (1,), ([0], [0], [0], [0], [0])), False),
    "StridedSlice with ellipsis": (
        lambda x: masked(x, (0, 1), (0, 9), ([0, 0], [0, 0], [0, 0], [0, 0], [1, 0])),
        False,
    ),
    "attention": (lambda x: ops.scaled_dot_product_attention(x, x, x, causal=True), True),
    "attention of rows": (lambda x: ops.scaled_dot_product_attention(*[ops.transpose(x, whole(1, 0, 2))] * 3), False),
    "LSTMSequence": (sequence, True),
    "GatherND": (lambda x: ops.gather_nd(x, ops.constant([[0, 1]]), 0), False),
    "Gather in a batch": (lambda x: ops.gather(x, ops.constant([[0, 1]]), one(1), 1), False),
    "SquaredDifference": (lambda x: ops.squared_difference(x, ops.reduce_mean(x, whole(1, 2), True)), True),
    "ReduceSum without axes": (lambda x: ops.reduce_sum(x, ops.constant(np.zeros(0, np.int64)), True), True),
    "Squeeze without axes": (lambda x: ops.squeeze(x, ops.constant(np.zeros(0, np.int64))), False),
    "Multiply, not broadcast": (lambda x: ops.multiply(x, x, "none"), False),
    "PRelu": (lambda x: ops.prelu(ops.multiply(x, x), ops.constant(floats(4))), True),
    "PRelu of rows": (
        lambda x: ops.transpose(ops.prelu(ops.transpose(x, whole(1, 0, 2)), ops.constant(floats(3))), whole(1, 0, 2)),
        False,
    ),
    "FakeQuantize": (
        lambda x: ops.fake_quantize(
            x, *(ops.constant(np.full((4, 1), each, np.float32)) for each in (-1, 1, -1, 1)), 256
        ),
        True,
    ),
    "FakeQuantize of rows": (
        lambda x: ops.fake_quantize(x, *(ops.constant(floats(2, 1, 1)) for _ in range(4)), 256),
        False,
    ),
    "rounded down": (
        lambda x: ops.reshape(x, ops.concat([whole(0), ops.divide(whole(-1), whole(2))], 0), True),
        True,
    ),
    "unknown operator": (lambda x: ops.roll(x, whole(1), whole(1)), False),
}


@pytest.mark.parametrize("name", OWN)
def test_an_operator_of_its_own_is_followed(tmp_path: Path, name: str) -> None:
    make, proved = OWN[name]
    x = ops.parameter([-1, 4, 6], np.float32)
    model = ov.Model([ops.result(make(x))], [x], "model")
    ov.save_model(model, tmp_path / "model.xml")
    (given,), (result,) = _ports(model.inputs), _ports(model.outputs)
    found = prove_rows(
        graph_of(tmp_path / "model.xml"), RowTensors({given.name: RowInput((-1, 4, 6))}, {result.name: 0})
    )
    assert found.is_proved == proved, found
    if proved:
        run = ov.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        rows = [floats(1, 4, 6) * scale for scale in np.array([0, 1e-6, 1, 1e2, 3e4, np.nan], np.float32)]
        together = run([np.concatenate(rows)])[0]
        for place, row in enumerate(rows):
            alone = run([row])[0]
            limit = 1e-4 * float(np.abs(np.nan_to_num(alone)).max(initial=0.0))
            np.testing.assert_allclose(together[place : place + 1], alone, rtol=0, atol=limit)


SMALL = """<?xml version="1.0"?><net name="n" version="11"><layers>
<layer id="0" name="x" type="Parameter" version="opset1"><data shape="?,4" element_type="f32"/>
<output><port id="0" names="x"/></output></layer>
<layer id="1" name="c" type="Const" version="opset1"><data shape="2" element_type="i64" offset="0" size="16"/>
<output><port id="0"/></output></layer>
<layer id="2" name="r" type="Reshape" version="opset1"><data special_zero="true"/>
<input><port id="0"/><port id="1"/></input><output><port id="2" names="y"/></output></layer>
<layer id="3" name="y" type="Result" version="opset1"><input><port id="0"/></input></layer></layers>
<edges><edge from-layer="0" from-port="0" to-layer="2" to-port="0"/>
<edge from-layer="1" from-port="0" to-layer="2" to-port="1"/>
<edge from-layer="2" from-port="2" to-layer="3" to-port="0"/></edges></net>"""
WEIGHTS = np.array([0, -1], np.int64).tobytes()


def read_small(xml: str = SMALL, weights: bytes = WEIGHTS) -> RowProof:
    graph = read_openvino_graph(io.BytesIO(xml.encode()), io.BytesIO(weights))
    return prove_rows(graph, RowTensors({"x": RowInput((-1, 4))}, {"y": 0}))


def test_a_small_file_is_read() -> None:
    assert read_small().is_proved


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('<net name="n"', '<!DOCTYPE net [<!ENTITY a "aaaa">]><net name="n"'),
        ('version="11"', 'version="7"'),
        ("</net>", ""),
        ("</net>", "</net><net/>"),
        ('offset="0"', 'offset="8"'),
        ('offset="0"', 'offset="-8"'),
        ('offset="0"', f'offset="{2**64}"'),
        ('offset="0"', 'offset="' + "9" * 5000 + '"'),
        ('size="16"', 'size="8"'),
        ('size="16"', 'size="many"'),
        (' size="16"', ""),
        ('shape="2"', 'shape="-2"'),
        ('shape="2"', 'shape="' + "1," * 50_000 + '1"'),
        ('shape="2"', 'shape="1000000000000,1000000000000"'),
        ('shape="?,4"', 'shape="?,²"'),
        ('id="1" name="c"', 'id="0" name="c"'),
        ('to-layer="2" to-port="1"', 'to-layer="2" to-port="0"'),
        ('from-layer="2" from-port="2"', 'from-layer="9" from-port="2"'),
        ('<output><port id="0" names="x"/></output>', ""),
    ],
)
def test_a_damaged_file_is_refused_or_proves_nothing(before: str, after: str) -> None:
    assert before in SMALL
    try:
        assert not read_small(SMALL.replace(before, after, 1)).is_proved
    except ValueError:
        return
    assert "1000000000000" in after, "read without an error"


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"<" * 100, SMALL[:400].encode(), b"<a>" * 100_000])
def test_what_is_no_ir_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"xml|IR"):
        read_openvino_graph(io.BytesIO(content), io.BytesIO(WEIGHTS))


@pytest.mark.parametrize(
    ("before", "after", "blocked"),
    [
        ('type="Reshape" version="opset1"', 'type="Reshape" version="extension"', "openvino::Reshape 'r'"),
        ('type="Reshape" version="opset1"', 'type="Reshape" version="opset99"', "openvino::Reshape 'r'"),
        ('type="Reshape" version="opset1"', 'type="ReadValue" version="opset6"', "openvino::ReadValue 'r'"),
        ('type="Reshape" version="opset1"', 'type="Add" version="opset1"', "Add 'r'"),
        ('special_zero="true"', 'special_zero="false"', "Reshape 'r'"),
    ],
)
def test_another_operator_ends_the_proof(before: str, after: str, blocked: str) -> None:
    assert read_small(SMALL.replace(before, after)).operator == blocked


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.xml").write_text(SMALL)
    with pytest.raises(VariantError, match=r"model\.xml cannot be read.*model\.bin"):
        row_graph(bare_variant("model.xml", (Artifact("model.xml", "0" * 64, 1),)), tmp_path)
