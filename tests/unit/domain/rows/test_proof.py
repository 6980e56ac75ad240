"""Proof of independent rows on graphs made by hand: each pitfall of exporters and of operators, proved or refused."""

from __future__ import annotations

import io
import re

import onnx.parser
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.onnx_graph import read_onnx_graph
from gateway.domain.rows.proof import RowInput, RowProof, prove_rows
from gateway.domain.rows.sizes import ROWS, DependentRowsError, Size, Symbols, size

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
    return prove_rows(graph, rows, {"y": 0})


LOOP = """
y = Loop(n, go, x) <body = inner (int64 at, bool on, float[b,4,6] state) => (bool goes, float[b,4,6] next) {
  goes = Identity(on) next = Mul(state, state) }>"""
BRANCHES = """
y = If(c) <then_branch = one () => (float[b,4,6] p) { p = Relu(x) }, else_branch = two () => (float[b,4,6] q) { q = %s }>"""
IMAGES, WORDS, LONG = "float[B,3,8,8] x", "float[7,B,4] x", "float[B,d] x"
SHAPE = "n = Shape(x) "
ROW_COUNT = SHAPE + "b = Gather(n, i(0)) "

PROVED = {
    "a vector along another axis": "y = Add(x, f(1, 2, 3, 4, 5, 6))",
    "-1 where the rows are": "y = Reshape(x, i(-1, 24))",
    "0 keeps the rows": "y = Reshape(x, i(0, -1))",
    "the number of rows from Shape": ROW_COUNT + "t = Concat<axis = 0>(b, i(-1)) y = Reshape(x, t)",
    "heads merged into the batch": "h = Reshape(x, i(-1, 6)) s = Softmax<axis = -1>(h) y = Reshape(s, i(-1, 4, 6))",
    "slice to 2^31 - 1": "y = Slice(x, i(0, 1), i(2147483647, 3), i(0, 1))",
    "slice to 10^9": "y = Slice(x, i(0), i(1000000000), i(0))",
    "slice to 10^6 of single entries": "y = Slice(x, i(0), i(1000000), i(0))",
    "slice to the number of rows": ROW_COUNT + "y = Slice(x, i(0), b, i(0))",
    "squeeze with axes": "u = Unsqueeze(x, i(1)) y = Squeeze(u, i(1))",
    "a state of zeros for each row": SHAPE + "z = ConstantOfShape(n) y = Add(x, z)",
    "a token repeated for each row": ROW_COUNT
    + "t = Concat<axis = 0>(b, i(1, 6)) e = Expand(f(1, 2, 3, 4, 5, 6), t) y = Concat<axis = 1>(e, x)",
    "tiles for each row": ROW_COUNT + "t = Concat<axis = 0>(b, i(4, 1)) u = Tile(k, t) y = Add(x, u)",
    "the target -1 of expand": SHAPE
    + "m = Equal(n, i(-1, -1, -1)) o = ConstantOfShape(i(3)) t = Where(m, o, n) y = Expand(x, t)",
    "pads that exporters reverse": "z = ConstantOfShape<value = int64[1] {0}>(i(4)) l = Concat<axis = 0>(i(0, 2), z) "
    "p = Reshape(l, i(-1, 2)) s = Slice(p, i(-1), i(-9223372036854775807), i(0), i(-1)) t = Transpose<perm = [1, 0]>(s) "
    "v = Reshape(t, i(-1)) w = Cast<to = 7>(v) y = Pad(x, w)",
    "a reduction of the others": "y = ReduceMax<axes = [1, 2]>(x)",
    "nodes that are not sorted": "y = Relu(p) p = Neg(x)",
    "a dropout that does nothing": "y, m = Dropout(x, f(0.5:), b(0:))",
    "a layer norm of the last axis": "y = LayerNormalization<axis = -1>(x, f(1, 2, 3, 4, 5, 6))",
    "a condition that sizes decide": SHAPE + "r = Size(n) c = Equal(r, i(3:))" + BRANCHES % "Softmax<axis = 0>(x)",
    "a resize of images": (IMAGES, 'y = Resize<mode = "linear">(x, , f(1, 1, 2, 2))'),
    "a pool without indices": (IMAGES, "y = MaxPool<kernel_shape = [2, 2]>(x)"),
    "convolved features": (IMAGES + ", float[5,3,8,8] w", "v = Conv(x, w) y = Reshape(v, i(-1, 5))"),
    "a batch second": (
        WORDS + ", float[1,12,4] w, float[1,12,3] r",
        "s, h = LSTM<hidden_size = 3>(x, w, r) y = Squeeze(h, i(0))",
    ),
    "one condition for all rows": ("float[B,4,6] x, bool c", BRANCHES % "Neg(x)"),
    "as many rounds for each row": ("float[B,4,6] x, int64 n, bool go", LOOP),
    "a scan over time": (
        "float[7,B,4] x, float[B,4] s",
        "y, all = Scan<num_scan_inputs = 1, body = inner (float[b,4] p, float[b,4] q) => (float[b,4] t, float[b,4] u) "
        "{ t = Add(p, q) u = Neg(t) }>(s, x)",
    ),
    "an initializer that is an input without rows": ("float[B,4,6] x, int64[2] t = {-1, 24}", "y = Reshape(x, t)"),
}
REFUSED = {
    "decibels below the loudest of all": (
        "p = Mul(x, x) l = Log(p) m = ReduceMax<keepdims = 0>(l) t = Sub(m, f(8:)) y = Max(l, t)",
        "ReduceMax (output 'm')",
        "along the axis of rows",
    ),
    "division by the maximum of all": (
        "m = ReduceMax<keepdims = 0>(x) k = Max(m, f(1000:)) y = Div(x, k)",
        "ReduceMax (output 'm')",
        "along the axis of rows",
    ),
    "zero times the sum of all": ("s = ReduceSum(x) z = Mul(s, f(0:)) y = Add(x, z)", "ReduceSum", "axis of rows"),
    "a constant of 3 rows": ("y = Add(x, w)", "Add", "more than one entry", "float[B,4] x, float[3,1] w"),
    "1 where the rows were": ("y = Reshape(x, i(1, 4, -1))", "Reshape", "among other sizes"),
    "8 where the rows were": ("y = Reshape(x, i(8, -1))", "Reshape", "among other sizes"),
    "squeeze without axes": ("y = Squeeze(x)", "Squeeze", "names none"),
    "slice to 10^6 of many entries": (
        "h = Reshape(x, i(-1)) y = Slice(h, i(0), i(1000000), i(0))",
        "Slice",
        "some of the rows",
        "float[B,1000] x",
    ),
    "slice without the first row": ("y = Slice(x, i(1), i(2147483647), i(0))", "Slice", "some of the rows"),
    "a mask of rows and rows": (
        ROW_COUNT + "t = Concat<axis = 0>(b, b) m = ConstantOfShape(t) y = MatMul(m, x)",
        "ConstantOfShape",
        "another axis",
    ),
    "places of the rows": (
        ROW_COUNT + "c = Squeeze(b, i(0)) r = Range(i(0:), c, i(1:)) y = Cast<to = 1>(r)",
        "Range",
        "depends on the rows",
    ),
    "division by the number of rows": (
        ROW_COUNT + "k = Div(i(24), b) t = Concat<axis = 0>(k, i(-1)) y = Reshape(x, t)",
        "Div",
        "computed from the number of rows",
    ),
    "the number of rows as data": (ROW_COUNT + "c = Cast<to = 1>(b) y = Mul(x, c)", "Mul", "with the number of rows"),
    "the number of rows as a truth value": (
        ROW_COUNT + "t = Cast<to = 9>(b) k = Cast<to = 7>(t) v = Concat<axis = 0>(k, i(-1)) y = Reshape(x, v)",
        "",
        "rows on axis 1",
    ),
    "the number of rows in eight bits": (
        ROW_COUNT + "t = Cast<to = 2>(b) k = Cast<to = 7>(t) v = Concat<axis = 0>(k, i(-1)) y = Reshape(x, v)",
        "Cast",
        "number of rows",
    ),
    "the last of the rows": ("y = Gather(x, i(-1))", "Gather", "among the rows"),
    "rows put together": ("y = Concat<axis = 0>(x, x)", "Concat", "along the axis of rows"),
    "resize along the rows": (
        'y = Resize<mode = "linear">(x, , f(1, 2))',
        "Resize",
        "interpolates along the axis of rows",
        LONG,
    ),
    "a condition from the data": (
        "m = ReduceMax<keepdims = 0, axes = [0, 1, 2]>(x) c = Greater(m, f(0:))" + BRANCHES % "Neg(x)",
        "ReduceMax",
        "along the axis of rows",
    ),
    "a condition with rows": (
        "c = Cast<to = 9>(v)" + BRANCHES % "Neg(x)",
        "If",
        "condition",
        "float[B] v, float[B,4,6] x",
    ),
    "branches that disagree": (BRANCHES % "Transpose<perm = [1, 0, 2]>(x)", "If", "", "float[B,4,6] x, bool c"),
    "rounds from the data": (LOOP, "Loop", "number of rounds", "float[B,4,6] x, int64[B] n, bool go"),
    "rounds from the number of rows": (
        SHAPE + "v = Gather(n, i(0:)) " + LOOP.replace("(n,", "(v,"),
        "Loop",
        "number of rounds",
        "float[B,4,6] x, bool go",
    ),
    "a state that mixes rows": (
        LOOP.replace("Mul(state, state)", "CumSum(state, zero)"),
        "CumSum",
        "along the axis of rows",
        "float[B,4,6] x, int64 n, bool go, int64 zero = {0}",
    ),
    "a scan over rows": (
        "y, all = Scan<num_scan_inputs = 1, body = inner (float[4] p, float[4] q) => (float[4] t, float[4] u) "
        "{ t = Add(p, q) u = Neg(t) }>(s, x)",
        "Scan",
        "runs along the axis of rows",
        "float[B,4] x, float[4] s",
    ),
    "a batch that is time": (
        "y = LSTM<hidden_size = 3>(x, w, r)",
        "LSTM",
        "axis of the batch",
        "float[B,1,4] x, float[1,12,4] w, float[1,12,3] r",
    ),
    "indices of a pool": ("v, y = MaxPool<kernel_shape = [2, 2]>(x)", "MaxPool", "indices", IMAGES),
    "channels that are last": (
        "y = com.microsoft.QLinearAveragePool<channels_last = 1, kernel_shape = [2, 2]>(x, f(1:), i(0:), f(1:), i(0:))",
        "com.microsoft::QLinearAveragePool",
        "channels are last",
        IMAGES,
    ),
    "scales with rows": (
        "y = com.microsoft.QLinearConcat<axis = 1>(f(1:), i(0:), x, v, i(0:))",
        "com.microsoft::QLinearConcat",
        "depends on the rows",
        "float[B,4,6] x, float[B] v",
    ),
    "windows with rows": ("y = STFT(x, i(2:), w)", "STFT", "window", "float[B,9,1] x, float[B] w"),
    "statistics of the batch": (
        "y, m, v = BatchNormalization<training_mode = 1>(x, s, s, s, s)",
        "BatchNormalization",
        "training mode",
        "float[B,3,8,8] x, float[3] s",
    ),
    "dropout in training": ("y = Dropout(x, f(0.5:), b(1:))", "Dropout", "training"),
    "random like the input": ("y = RandomNormalLike(x)", "RandomNormalLike", "no rule"),
    "random beside the input": ("r = RandomNormal<shape = [6]>() y = Add(x, r)", "RandomNormal", "random"),
    "an operator without a rule": ("y = own.Unknown(x)", "own::Unknown", "no rule"),
    "a range of all": (
        "q, s, z = DynamicQuantizeLinear(x) y = Cast<to = 1>(q)",
        "DynamicQuantizeLinear",
        "whole tensor",
    ),
    "several entries a row": ("y = Reshape(x, i(-1, 6))", "", "several entries for each row"),
    "rows on another axis": ("y = Transpose<perm = [1, 0, 2]>(x)", "", "rows on axis 1"),
    "a result without rows": ("y = Identity(f(1, 2))", "", "same for every number of rows"),
    "a name that nothing has": ("y = Relu(ghost)", "Relu", "no tensor is called 'ghost'"),
    "a file for one row": ("y = Relu(x)", "", "takes 1 rows", "float[1,4] x, float[B] v"),
}


@pytest.mark.parametrize("case", PROVED.values(), ids=PROVED)
def test_rows_are_proved(case: str | tuple[str, str]) -> None:
    inputs, nodes = ("float[B,4,6] x, float[1,1,6] k", case) if isinstance(case, str) else case
    assert proof(nodes, inputs) == RowProof()


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_rows_that_may_depend_on_others_are_refused_with_the_operator(case: tuple[str, ...]) -> None:
    nodes, operator, reason, *inputs = case
    if "takes 1 rows" in reason:
        model = onnx.parser.parse_model(
            '<ir_version: 10, opset_import: ["": 17]> g (float[1,4] x) => (float y) { y = Relu(x) }'
        )
        found = prove_rows(read_onnx_graph(io.BytesIO(model.SerializeToString())), {"x": RowInput((-1, 4))}, {"y": 0})
    else:
        found = proof(nodes, *inputs)
    assert not found.is_proved
    assert found.operator.startswith(operator) and bool(found.operator) == bool(operator)
    assert reason in found.reason


@pytest.mark.parametrize(
    ("opset", "axis", "proved"), [(11, 1, False), (11, 2, True), (13, 0, True), (13, 1, False), (13, 2, True)]
)
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
    function = '<domain: "own", opset_import: ["": 17]> Count (n) => (r) { r = Range(zero, n, one) zero = Sub(n, n) one = Div(n, n) }'
    nodes = """p = own.Count(n) q = own.Count(m) s = Shape(p) t = Shape(q) e = Unsqueeze(p, i(1, 2)) f = Cast<to = 1>(e)
    z = Add(x, f) k = Shape<start = 1, end = 2>(x) v = Concat<axis = 0>(t, k, i(-1)) r = Reshape(z, v) y = ReduceMax<axes = [0], keepdims = 0>(r)"""
    assert proof(nodes, "float[1,B,6] x, int64 n, int64 m", functions=function).reason


def test_an_input_with_rows_replaces_its_initializer() -> None:
    assert "among other sizes" not in proof("y = Add(x, v)", "float[B,4] x, float[B,4] v").reason


@pytest.mark.parametrize(
    "nodes",
    [
        "z = ConstantOfShape(i(1000000, 1000000)) y = Add(x, z)",
        "z = Expand(f(1:), i(1000000, 1000000)) y = Add(x, z)",
        "z = Tile(f(1), i(1000000000000)) y = Add(x, z)",
        "z = Range(i(0:), i(1000000000000:), i(1:)) y = Add(x, z)",
        "n = Shape(x) "
        + " ".join(
            f"n{at} = Concat<axis = 0>({each}, {each})"
            for at, each in enumerate(["n", *(f"n{at}" for at in range(40))])
        )
        + " y = Reshape(x, n40)",
        "n0 = Shape(x) " + " ".join(f"n{at + 1} = Mul(n{at}, n{at})" for at in range(40)) + " y = Reshape(x, n40)",
        "n0 = Identity(i(7:)) "
        + " ".join(f"n{at + 1} = Mul(n{at}, n{at})" for at in range(40))
        + " y = Reshape(x, n40)",
    ],
)
def test_large_tensors_of_sizes_are_not_computed(nodes: str) -> None:
    assert not proof(nodes).is_proved


SYMBOLS = ("B", "d1", "d2", "n3")
POLYNOMIALS = st.lists(st.tuples(st.lists(st.sampled_from(SYMBOLS), max_size=2), st.integers(-9, 9)), max_size=4)
POINTS = st.fixed_dictionaries(
    {"B": st.integers(1, 9), "d1": st.integers(0, 9), "d2": st.integers(0, 9), "n3": st.integers(-9, 9)}
)


def polynomial(terms: list[tuple[list[str], int]]) -> Size:
    total = size(0)
    for symbols, factor in terms:
        part = size(factor)
        for symbol in symbols:
            part *= Size((((symbol,), 1),))
        total += part
    return total


def at(value: Size, point: dict[str, int]) -> int:
    found = 0
    for symbols, factor in value.terms:
        for symbol in symbols:
            factor *= point[symbol]
        found += factor
    return found


@given(POLYNOMIALS, POLYNOMIALS, POINTS)
def test_sizes_compute_as_the_integers_that_they_stand_for(
    one: list[tuple[list[str], int]], two: list[tuple[list[str], int]], point: dict[str, int]
) -> None:
    left, right = polynomial(one), polynomial(two)
    assert at(left + right, point) == at(left, point) + at(right, point)
    assert at(left - right, point) == at(left, point) - at(right, point)
    assert at(left * right, point) == at(left, point) * at(right, point)
    assert left.constant in {None, at(left, point)}
    assert left.has_rows == (
        left != polynomial([(each, factor) for each, factor in one if "B" not in each])
        and any("B" in s for s, _ in left.terms)
    )
    assert not left.is_positive or at(left, point) >= 1
    assert (left - left).constant == 0 and left + right == right + left and left * right == right * left


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
    assert (
        symbols.dimension("ratio", size(3))
        == symbols.dimension("ratio", size(3))
        != symbols.dimension("ratio", size(4))
    )
    with pytest.raises(DependentRowsError, match="number of rows"):
        symbols.dimension("ratio", ROWS)
