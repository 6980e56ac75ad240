"""Proof of independent rows on graphs made by hand: each pitfall of exporters and of operators, proved or refused."""

from __future__ import annotations

import io
import re
from math import prod
from typing import Any, cast

import onnx.parser
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.serving.domain.onnx_graph import read_onnx_graph
from gateway.serving.domain.ports import RowInput, RowProof, RowTensors
from gateway.serving.domain.rows.elementwise import SIZES
from gateway.serving.domain.rows.graph import Constant, Graph, ModelGraph, Node
from gateway.serving.domain.rows.proof import prove_rows
from gateway.serving.domain.rows.sizes import ROWS, DependentRowsError, Size, Symbols, product, size

NUMBER = re.compile(r"\b([ifb])\(([^()]*)\)")
"""Constants in the texts: i(1, 2) and f(1, 2) are vectors, i(1:) is a scalar, b(1:) a truth value."""
TYPES = {"i": "int64", "f": "float", "b": "bool"}


def proof(nodes: str, inputs: str = "float[B,4,6] x", *, opset: int = 17, functions: str = "") -> RowProof:
    """Prove a graph in ONNX's text form: the inputs with a size B have their rows there, output y on axis 0."""
    constants: list[str] = []

    def constant(match: re.Match[str]) -> str:
        kind, numbers = match.groups()
        count = "" if numbers.endswith(":") else f"[{len([each for each in numbers.split(',') if each.strip()])}]"
        constants.append(f"{TYPES[kind]}{count} c{len(constants)} = {{{numbers.rstrip(':')}}}")
        return f"c{len(constants) - 1}"

    body = NUMBER.sub(constant, nodes)
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": {opset}, "own": 1, "com.microsoft": 1]>\n'
        f"g ({inputs}) => (float y) <{', '.join(constants)}> {{ {body} }}\n{functions}"
    )
    graph = read_onnx_graph(io.BytesIO(model.SerializeToString()))
    rows = {
        name: RowInput(
            tuple(-1 if each == "B" or not each.isdigit() else int(each) for each in shape), shape.index("B")
        )
        for name, shape in (
            (name, tuple(each.strip() for each in sizes.split(",")))
            for sizes, name in re.findall(r"\[([^\]]*)\] (\w+)", inputs)
        )
        if "B" in shape
    }
    return prove_rows(graph, RowTensors(rows, {"y": 0}))


LOOP = r"""y = Loop(\1, go, x) <body = inner (int64 at, bool on, float[b,4,6] state) => (bool goes, float[b,4,6] next) {
goes = Identity(on) next = \2 }>"""
BRANCHES = r"""y = If(c) <then_branch = one () => (float[b,4,6] p) { p = Relu(x) },
else_branch = two () => (float[b,4,6] q) { q = \1 }>"""
PROVED = """\
a vector along another axis | y = Add(x, f(1, 2, 3, 4, 5, 6))
-1 where the rows are | y = Reshape(x, i(-1, 24))
0 keeps the rows | y = Reshape(x, i(0, -1))
the number of rows from Shape | n = Shape(x) b = Gather(n, i(0)) t = Concat<axis = 0>(b, i(-1)) y = Reshape(x, t)
heads merged into the batch | h = Reshape(x, i(-1, 6)) s = Softmax<axis = -1>(h) y = Reshape(s, i(-1, 4, 6))
time before the rows, merged and divided again | t = Transpose<perm = [1, 0, 2]>(x) m = Reshape(t, i(-1, 6)) e =
  Exp(m) u = Reshape(e, i(4, -1, 6)) y = Transpose<perm = [1, 0, 2]>(u)
slice to 2^31 - 1 | y = Slice(x, i(0, 1), i(2147483647, 3), i(0, 1))
slice to 10^9 | y = Slice(x, i(0), i(1000000000), i(0))
slice to 10^6 of single entries | y = Slice(x, i(0), i(1000000), i(0))
slice to the number of rows | n = Shape(x) b = Gather(n, i(0)) y = Slice(x, i(0), b, i(0))
squeeze with axes | u = Unsqueeze(x, i(1)) y = Squeeze(u, i(1))
a state of zeros for each row | n = Shape(x) z = ConstantOfShape(n) y = Add(x, z)
a token repeated for each row | n = Shape(x) b = Gather(n, i(0)) t = Concat<axis = 0>(b, i(1, 6)) e = Expand(f(1, 2,
  3, 4, 5, 6), t) y = Concat<axis = 1>(e, x)
tiles for each row | n = Shape(x) b = Gather(n, i(0)) t = Concat<axis = 0>(b, i(4, 1)) u = Tile(k, t) y = Add(x, u)
the target -1 of expand | n = Shape(x) m = Equal(n, i(-1, -1, -1)) o = ConstantOfShape(i(3)) t = Where(m, o, n) y =
  Expand(x, t)
pads that exporters reverse | z = ConstantOfShape<value = int64[1] {0}>(i(4)) l = Concat<axis = 0>(i(0, 2), z) p =
  Reshape(l, i(-1, 2)) s = Slice(p, i(-1), i(-9223372036854775807), i(0), i(-1)) t = Transpose<perm = [1, 0]>(s) v =
  Reshape(t, i(-1)) w = Cast<to = 7>(v) y = Pad(x, w)
a reduction of the others | y = ReduceMax<axes = [1, 2]>(x)
nodes that are not sorted | y = Relu(p) p = Neg(x)
a dropout that does nothing | y, m = Dropout(x, f(0.5:), b(0:))
a layer norm of the last axis | y = LayerNormalization<axis = -1>(x, f(1, 2, 3, 4, 5, 6))
a condition that sizes decide | n = Shape(x) r = Size(n) c = Equal(r, i(3:)) IF(Softmax<axis = 0>(x))
a resize of images | float[B,3,8,8] x : y = Resize<mode = "linear">(x, , f(1, 1, 2, 2))
a pool without indices | float[B,3,8,8] x : y = MaxPool<kernel_shape = [2, 2]>(x)
convolved features | float[B,3,8,8] x, float[5,3,8,8] w : v = Conv(x, w) y = Reshape(v, i(-1, 5))
a batch second | float[7,B,4] x, float[1,12,4] w, float[1,12,3] r : s, h = LSTM<hidden_size = 3>(x, w, r) y =
  Squeeze(h, i(0))
one condition for all rows | float[B,4,6] x, bool c : IF(Neg(x))
as many rounds for each row | float[B,4,6] x, int64 n, bool go : LOOP(n, Mul(state, state))
a scan over time | float[7,B,4] x, float[B,4] s : y, all = Scan<num_scan_inputs = 1, body = inner (float[b,4] p,
  float[b,4] q) => (float[b,4] t, float[b,4] u) { t = Add(p, q) u = Neg(t) }>(s, x)
an initializer that is an input without rows | float[B,4,6] x, int64[2] t = {-1, 24} : y = Reshape(x, t)
"""
"""Cases: a name, the inputs where they are other ones, and nodes."""
REFUSED = """\
decibels below the loudest of all | ReduceMax (output 'm') | along the axis of rows | p = Mul(x, x) l = Log(p) m =
  ReduceMax<keepdims = 0>(l) t = Sub(m, f(8:)) y = Max(l, t)
division by the maximum of all | ReduceMax (output 'm') | along the axis of rows | m = ReduceMax<keepdims = 0>(x) k =
  Max(m, f(1000:)) y = Div(x, k)
zero times the sum of all | ReduceSum | axis of rows | s = ReduceSum(x) z = Mul(s, f(0:)) y = Add(x, z)
a constant of 3 rows | Add | more than one entry | float[B,4] x, float[3,1] w : y = Add(x, w)
time before the rows, merged and cut | Softmax | along the axis of rows | t = Transpose<perm = [1, 0, 2]>(x) m =
  Reshape(t, i(-1, 6)) y = Softmax<axis = 0>(m)
1 where the rows were | Reshape | among other sizes | y = Reshape(x, i(1, 4, -1))
8 where the rows were | Reshape | among other sizes | y = Reshape(x, i(8, -1))
squeeze without axes | Squeeze | names none | y = Squeeze(x)
slice to 10^6 of many entries | Slice | some of the rows | float[B,1000] x : h = Reshape(x, i(-1)) y = Slice(h, i(0),
  i(1000000), i(0))
slice without the first row | Slice | some of the rows | y = Slice(x, i(1), i(2147483647), i(0))
a mask of rows and rows | ConstantOfShape | another axis | n = Shape(x) b = Gather(n, i(0)) t = Concat<axis = 0>(b, b)
  m = ConstantOfShape(t) y = MatMul(m, x)
places of the rows | Range | depends on the rows | n = Shape(x) b = Gather(n, i(0)) c = Squeeze(b, i(0)) r =
  Range(i(0:), c, i(1:)) y = Cast<to = 1>(r)
division by the number of rows | Div | computed from the number of rows | n = Shape(x) b = Gather(n, i(0)) k =
  Div(i(24), b) t = Concat<axis = 0>(k, i(-1)) y = Reshape(x, t)
the number of rows as data | Mul | with the number of rows | n = Shape(x) b = Gather(n, i(0)) c = Cast<to = 1>(b) y =
  Mul(x, c)
the number of rows as a truth value |  | rows on axis 1 | n = Shape(x) b = Gather(n, i(0)) t = Cast<to = 9>(b) k =
  Cast<to = 7>(t) v = Concat<axis = 0>(k, i(-1)) y = Reshape(x, v)
the number of rows in eight bits | Cast | number of rows | n = Shape(x) b = Gather(n, i(0)) t = Cast<to = 2>(b) k =
  Cast<to = 7>(t) v = Concat<axis = 0>(k, i(-1)) y = Reshape(x, v)
the last of the rows | Gather | among the rows | y = Gather(x, i(-1))
rows put together | Concat | along the axis of rows | y = Concat<axis = 0>(x, x)
resize along the rows | Resize | interpolates along the axis of rows | float[B,d] x : y = Resize<mode = "linear">(x, ,
  f(1, 2))
a condition from the data | ReduceMax | along the axis of rows | m = ReduceMax<keepdims = 0, axes = [0, 1, 2]>(x) c =
  Greater(m, f(0:)) IF(Neg(x))
a condition with rows | If | condition | float[B] v, float[B,4,6] x : c = Cast<to = 9>(v) IF(Neg(x))
branches that disagree | If |  | float[B,4,6] x, bool c : IF(Transpose<perm = [1, 0, 2]>(x))
rounds from the data | Loop | number of rounds | float[B,4,6] x, int64[B] n, bool go : LOOP(n, Mul(state, state))
rounds from the number of rows | Loop | number of rounds | float[B,4,6] x, bool go : n = Shape(x) v = Gather(n, i(0:))
  LOOP(v, Mul(state, state))
a state that mixes rows | CumSum | along the axis of rows | float[B,4,6] x, int64 n, bool go, int64 zero = {0} :
  LOOP(n, CumSum(state, zero))
a scan over rows | Scan | runs along the axis of rows | float[B,4] x, float[4] s : y, all = Scan<num_scan_inputs = 1,
  body = inner (float[4] p, float[4] q) => (float[4] t, float[4] u) { t = Add(p, q) u = Neg(t) }>(s, x)
a batch that is time | LSTM | axis of the batch | float[B,1,4] x, float[1,12,4] w, float[1,12,3] r : y =
  LSTM<hidden_size = 3>(x, w, r)
indices of a pool | MaxPool | indices | float[B,3,8,8] x : v, y = MaxPool<kernel_shape = [2, 2]>(x)
channels that are last | com.microsoft::QLinearAveragePool | channels are last | float[B,3,8,8] x : y =
  com.microsoft.QLinearAveragePool<channels_last = 1, kernel_shape = [2, 2]>(x, f(1:), i(0:), f(1:), i(0:))
scales with rows | com.microsoft::QLinearConcat | depends on the rows | float[B,4,6] x, float[B] v : y =
  com.microsoft.QLinearConcat<axis = 1>(f(1:), i(0:), x, v, i(0:))
windows with rows | STFT | window | float[B,9,1] x, float[B] w : y = STFT(x, i(2:), w)
statistics of the batch | BatchNormalization | training mode | float[B,3,8,8] x, float[3] s : y, m, v =
  BatchNormalization<training_mode = 1>(x, s, s, s, s)
dropout in training | Dropout | training | y = Dropout(x, f(0.5:), b(1:))
random like the input | RandomNormalLike | no rule | y = RandomNormalLike(x)
random beside the input | RandomNormal | random | r = RandomNormal<shape = [6]>() y = Add(x, r)
an operator without a rule | own::Unknown | no rule | y = own.Unknown(x)
a range of all | DynamicQuantizeLinear | whole tensor | q, s, z = DynamicQuantizeLinear(x) y = Cast<to = 1>(q)
dimensions that a 3 does not keep |  | rows on axis 1 | float[4,B,6] x : m = ReduceMax<axes = [0], keepdims = 3>(x)
  y = Unsqueeze(m, i(0))
several entries a row |  | several entries for each row | y = Reshape(x, i(-1, 6))
rows on another axis |  | rows on axis 1 | y = Transpose<perm = [1, 0, 2]>(x)
a result without rows |  | same for every number of rows | y = Identity(f(1, 2))
a name that nothing has | Relu | no tensor is called 'ghost' | y = Relu(ghost)
"""
"""Cases with the operator that ends the proof and its reason behind the name."""


def cases(text: str) -> list[Any]:
    found = (each.replace("\n", "").split(" | ") for each in re.split(r"\n(?=\S)", text.strip()))
    return [pytest.param(*given, id=name) for name, *given in found]


def case_proof(case: str) -> RowProof:
    inputs, _, nodes = case.rpartition(" : ")
    nodes = re.sub(r"LOOP\((\w), (.*)\)$", LOOP, re.sub(r"IF\((.*)\)$", BRANCHES, nodes))
    return proof(nodes, inputs or "float[B,4,6] x, float[1,1,6] k")


@pytest.mark.parametrize("case", cases(PROVED))
def test_rows_are_proved(case: str) -> None:
    assert case_proof(case) == RowProof()


@pytest.mark.parametrize(("operator", "reason", "case"), cases(REFUSED))
def test_rows_that_may_depend_on_others_are_refused_with_the_operator(operator: str, reason: str, case: str) -> None:
    found = case_proof(case)
    assert not found.is_proved
    assert (found.operator[: len(operator)], bool(found.operator)) == (operator, bool(operator))
    assert reason in found.reason


def test_a_file_for_one_row_is_refused() -> None:
    file = '<ir_version: 10, opset_import: ["": 17]> g (float[1,4] x) => (float y) { y = Relu(x) }'
    graph = read_onnx_graph(io.BytesIO(onnx.parser.parse_model(file).SerializeToString()))
    assert "takes 1 rows" in prove_rows(graph, RowTensors({"x": RowInput((-1, 4))}, {"y": 0})).reason


@pytest.mark.parametrize(("opset", "axis", "proved"), [(11, 1, False), (11, 2, True), (13, 1, False), (13, 0, True)])
def test_softmax_takes_every_later_axis_before_opset_13(opset: int, axis: int, proved: bool) -> None:
    nodes = f"s = Softmax<axis = {axis}>(x) y = Transpose<perm = [1, 0, 2]>(s)"
    assert proof(nodes, "float[4,B,6] x", opset=opset).is_proved is proved


def test_broadcasting_by_attributes_is_refused() -> None:
    assert "opset before 7" in proof("y = Relu(x)", opset=6).reason


FUNCTION = '<domain: "own", opset_import: ["": 17]> Late <at> (a) => (b) { c = Neg(a) b = Softmax<axis: int = @at>(c) }'


@pytest.mark.parametrize(("call", "proved"), [("<at = -1>", True), ("<at = 0>", False), ("", False)])
def test_functions_are_followed_with_the_attributes_of_their_call(call: str, proved: bool) -> None:
    found = proof(f"y = own.Late{call}(x)", functions=FUNCTION)
    assert found.is_proved is proved
    assert proved or "Softmax" in found.operator


def test_unknown_sizes_of_two_calls_of_a_function_are_not_taken_for_equal() -> None:
    count = (
        '<domain: "own", opset_import: ["": 17]> Count (n) => (r) { z = Sub(n, n) u = Div(n, n) r = Range(z, n, u) }'
    )
    nodes = """p = own.Count(n) q = own.Count(m) t = Shape(q) e = Unsqueeze(p, i(1, 2)) f = Cast<to = 1>(e)
    z = Add(x, f) k = Shape<start = 1, end = 2>(x) v = Concat<axis = 0>(t, k, i(-1)) r = Reshape(z, v)
    y = ReduceMax<axes = [0], keepdims = 0>(r)"""
    assert proof(nodes, "float[1,B,6] x, int64 n, int64 m", functions=count).operator == "Reshape (output 'r')"


def test_an_input_with_rows_replaces_its_initializer() -> None:
    nodes = (Node("Add", "", ("x", "v"), ("y",)),)
    graph = Graph({"x": (None, 4), "v": (None, 4)}, ("y",), {"v": Constant((3, 4))}, nodes)
    inputs = {name: RowInput((-1, 4)) for name in "xv"}
    assert prove_rows(ModelGraph(graph, {"": 17}), RowTensors(inputs, {"y": 0})).is_proved
    assert (
        "more than one entry"
        in prove_rows(ModelGraph(graph, {"": 17}), RowTensors({"x": inputs["x"]}, {"y": 0})).reason
    )


@pytest.mark.parametrize(
    "node",
    [
        "ConstantOfShape(i(1000000, 1000000))",
        "Expand(f(1:), i(1000000, 1000000))",
        "Tile(f(1), i(1000000000000))",
        "Range(i(0:), i(1000000000000:), i(1:))",
    ],
)
def test_large_tensors_of_sizes_are_not_computed(node: str) -> None:
    assert not proof(f"z = {node} y = Add(x, z)").is_proved


def test_products_of_many_sizes_are_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cast("dict[str, Any]", SIZES), "Mul", pytest.fail)
    table = "a = ConstantOfShape<value = int64[1] {3}>(i(200, 1)) b = Transpose(a)"
    assert proof(f"{table} c = Mul(a, b) y = Relu(x)").is_proved


@pytest.mark.parametrize("first", ["Shape(x)", "Identity(i(7:))"])
@pytest.mark.parametrize("node", ["Mul(n{0}, n{0})", "Concat<axis = 0>(n{0}, n{0})"])
def test_sizes_that_grow_without_end_are_refused(first: str, node: str) -> None:
    chain = " ".join(f"n{place + 1} = {node.format(place)}" for place in range(40))
    assert not proof(f"n0 = {first} {chain} y = Reshape(x, n40)").is_proved


def test_a_graph_that_is_not_valid_is_refused() -> None:
    assert "could not be followed" in proof("u = Unsqueeze(x, i(0, 0)) y = Squeeze(u, i(0))").reason


SYMBOLS = ("B", "d1", "d2", "n3")
POLYNOMIALS = st.lists(st.tuples(st.lists(st.sampled_from(SYMBOLS), max_size=2), st.integers(-9, 9)), max_size=4)
POINTS = st.fixed_dictionaries(
    {"B": st.integers(1, 9), "d1": st.integers(0, 9), "d2": st.integers(0, 9), "n3": st.integers(-9, 9)}
)


def polynomial(terms: list[tuple[list[str], int]]) -> Size:
    parts = (product([size(factor), *(Size((((each,), 1),)) for each in symbols)]) for symbols, factor in terms)
    return sum(parts, size(0))


def at(value: Size, point: dict[str, int]) -> int:
    return sum(factor * prod(point[symbol] for symbol in symbols) for symbols, factor in value.terms)


@given(POLYNOMIALS, POLYNOMIALS, POINTS)
def test_sizes_compute_as_the_integers_that_they_stand_for(
    one: list[tuple[list[str], int]], two: list[tuple[list[str], int]], point: dict[str, int]
) -> None:
    left, right = polynomial(one), polynomial(two)
    assert at(left + right, point) == at(left, point) + at(right, point)
    assert at(left - right, point) == at(left, point) - at(right, point)
    assert at(left * right, point) == at(left, point) * at(right, point)
    assert left.constant in {None, at(left, point)}
    assert left.has_rows or at(left, point) == at(left, point | {"B": 5})
    assert not left.is_positive or at(left, point) >= 1
    assert (left - left, left + right, left * right) == (size(0), right + left, right * left)


@given(POLYNOMIALS, POLYNOMIALS, POINTS)
def test_quotients_of_sizes_are_exact(
    one: list[tuple[list[str], int]], two: list[tuple[list[str], int]], point: dict[str, int]
) -> None:
    left, right = polynomial(one), polynomial(two)
    if right.terms:
        assert (left * right).divided(right) == left
    quotient = left.divided(right)
    assert quotient is None or at(quotient, point) * at(right, point) == at(left, point)


def test_symbols_are_equal_for_equal_expressions_without_rows() -> None:
    symbols = Symbols()
    three, again, four = (symbols.dimension("ratio", size(number)) for number in (3, 3, 4))
    assert three == again != four
    with pytest.raises(DependentRowsError, match="number of rows"):
        symbols.dimension("ratio", ROWS)
