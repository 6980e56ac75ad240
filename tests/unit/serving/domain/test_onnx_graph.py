"""Graphs of ONNX files read without the onnx package, compared with its parser, and files that are damaged."""

from __future__ import annotations

import io
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.loader import load_model_tests

from gateway.serving.domain import onnx_graph
from gateway.serving.domain.onnx_graph import FLOATS_LIMIT, INTEGERS_LIMIT, LIST_LIMIT, read_onnx_graph
from gateway.serving.domain.ports import RowInput, RowTensors
from gateway.serving.domain.rows.graph import Constant, Graph, ModelGraph, Reference
from gateway.serving.domain.rows.proof import prove_rows

SAVED = sorted((Path(onnx.__file__).parent / "backend/test/data").rglob("*.onnx"))
MODELS = sorted((Path(__file__).parents[4] / "models").glob("*/1/onnx-*/model.onnx"))
INTEGERS, FLOATS = {2, 3, 4, 5, 6, 7, 9, 12, 13}, {1, 10, 11}


def read(raw: bytes) -> ModelGraph:
    return read_onnx_graph(io.BytesIO(raw))


def constant(tensor: onnx.TensorProto) -> tuple[object, ...]:
    count, kind = prod(tensor.dims), tensor.data_type
    is_read = count <= (INTEGERS_LIMIT if kind in INTEGERS else FLOATS_LIMIT if kind in FLOATS else -1)
    numbers = numpy_helper.to_array(tensor).ravel().tolist() if is_read and not tensor.external_data else None
    return (tuple(tensor.dims), None if numbers is None else repr([+each for each in numbers]), kind in FLOATS | {16})


def attribute(given: onnx.AttributeProto) -> object:
    if given.ref_attr_name:
        return Reference(given.ref_attr_name)
    if given.type == onnx.AttributeProto.TENSOR:
        return constant(given.t)
    if given.type == onnx.AttributeProto.SPARSE_TENSOR:
        return (tuple(given.sparse_tensor.dims), None, False)
    if given.type == onnx.AttributeProto.STRINGS:
        return ((len(given.strings),), None, False)
    if given.type == onnx.AttributeProto.GRAPH:
        return graph(given.g)
    if given.type == onnx.AttributeProto.STRING:
        return given.s.decode()
    if given.type in {onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS}:
        return tuple(given.ints or given.floats)
    return given.f if given.type == onnx.AttributeProto.FLOAT else given.i


def nodes(given: Any) -> list[object]:
    return [
        (
            each.op_type if each.domain in {"", "ai.onnx"} else f"{each.domain}::{each.op_type}",
            each.name,
            tuple(each.input),
            tuple(each.output),
            {} if each.domain == onnx_graph.LEARNING else {own.name: attribute(own) for own in each.attribute},
        )
        for each in given
    ]


def shape(info: onnx.ValueInfoProto) -> tuple[int | None, ...] | None:
    tensor = info.type.tensor_type
    sizes = (
        each.dim_value if each.HasField("dim_value") and each.dim_value >= 0 else None for each in tensor.shape.dim
    )
    return tuple(sizes) if tensor.HasField("shape") else None


def graph(given: onnx.GraphProto) -> object:
    sparse = {each.values.name: (tuple(each.dims), None, False) for each in given.sparse_initializer}
    return (
        {each.name: shape(each) for each in given.input},
        tuple(each.name for each in given.output),
        {each.name: constant(each) for each in given.initializer} | sparse,
        nodes(given.node),
    )


def plain(found: object) -> object:
    """Return what was read as `graph` has it."""
    if isinstance(found, Constant):
        return (found.shape, None if found.numbers is None else repr([*found.numbers]), found.floats)
    if isinstance(found, Mapping):
        return {name: plain(each) for name, each in found.items()}
    if isinstance(found, Graph):
        own = [(each.kind, each.name, each.inputs, each.outputs, plain(each.attributes)) for each in found.nodes]
        return (dict(found.inputs), found.outputs, plain(found.constants), own)
    return found


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the package computes infinities for its tests
def test_graphs_are_read_as_the_package_reads_them() -> None:
    cases = [case.model for case in load_model_tests(kind="node")]
    models = [*cases[::3], *map(onnx.load, (*SAVED, *MODELS))]
    assert len(models) > 500
    functions = 0
    for model in models:
        found = read(model.SerializeToString())
        assert plain(found.graph) == graph(model.graph)
        assert found.opsets == {
            ("" if each.domain == "ai.onnx" else each.domain): each.version for each in model.opset_import
        }
        for each in model.functions:
            own = next(opset.version for opset in each.opset_import if opset.domain in {"", "ai.onnx"})
            if f"{each.domain}::{each.name}" in found.functions and own == found.opsets[""]:
                functions += 1
                read_function = plain(found.functions[f"{each.domain}::{each.name}"])
                assert read_function == (dict.fromkeys(each.input), tuple(each.output), {}, nodes(each.node))


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("kind", sorted(INTEGERS | FLOATS))
def test_numbers_are_read_in_either_form(kind: int, raw: bool) -> None:
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    values = np.asarray([0, 1, 3, 1, 100], dtype)
    content = values.tobytes() if raw else values.tolist()
    tensor = helper.make_tensor("t", kind, [5], content, raw=raw)
    found = read(helper.make_model(helper.make_graph([], "g", [], [], [tensor])).SerializeToString())
    assert found.graph.constants["t"] == Constant((5,), tuple(values.tolist()), floats=kind in FLOATS)


def test_lists_are_read_packed_and_not() -> None:
    message = onnx.AttributeProto(name="a", type=onnx.AttributeProto.INTS, ints=[-1, 2, 2**40]).SerializeToString()
    numbers = b"".join(_varint(each) for each in (-1, 2, 2**40))
    packed = onnx.AttributeProto(name="a", type=onnx.AttributeProto.INTS).SerializeToString() + field(8, numbers)
    for each in (message, packed):
        found = read(field(7, field(1, field(5, each))))
        assert found.graph.nodes[0].attributes == {"a": (-1, 2, 2**40)}


def field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    number, found = number % 2**64, bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


SPARSE = onnx.SparseTensorProto(values=helper.make_tensor("v", TensorProto.FLOAT, [1], [2.0]), dims=[3, 4])


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"value_strings": ["a", "b", "c"]}, Constant((3,))),
        ({"value_ints": [1] * (LIST_LIMIT + 1)}, Constant((LIST_LIMIT + 1,))),
        ({"value_floats": [1.0] * (LIST_LIMIT + 1)}, Constant((LIST_LIMIT + 1,))),
        ({"sparse_value": SPARSE}, Constant((3, 4))),
    ],
)
def test_constants_that_are_not_read_keep_their_shape(attributes: dict[str, Any], expected: Constant) -> None:
    model = helper.make_model(helper.make_graph([helper.make_node("Constant", [], ["c"], **attributes)], "g", [], []))
    (found,) = read(model.SerializeToString()).graph.nodes[0].attributes.values()
    assert found == expected


def test_files_beyond_a_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_graph, "NODES_LIMIT", 3)
    deep = b""
    for _ in range(onnx_graph.NESTING_LIMIT):
        deep = field(1, field(5, field(6, deep)))  # the graph of an attribute of a node
    many = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])] * 4, "g", [], [])
    with pytest.raises(ValueError, match="more than 3 operators"):
        read(helper.make_model(many).SerializeToString())
    monkeypatch.undo()
    with pytest.raises(ValueError, match="inside each other"):
        read(field(7, deep))


SMALL = onnx.parser.parse_model(
    """<ir_version: 10, opset_import: ["": 17, "own": 1]>
    g (float[B,4] x, bool c) => (float y) <int64[2] t = {-1, 4}, float[2] f = {1, 2}> {
      n = Shape(x) m = Mul(n, t) z = ConstantOfShape(m) r = Reshape(x, t) p = own.Twice<at = 1>(r)
      y = If(c) <then_branch = one () => (q) { q = Relu(p) }, else_branch = two () => (s) { s = Slice(p, t, t, t) }> }
    <domain: "own", opset_import: ["": 17]> Twice <at> (a) => (b) { b = Softmax<axis: int = @at>(a) }"""
).SerializeToString()


def survives(raw: bytes) -> bool:
    """Return False if the file is refused with a ValueError; nothing else may be raised, by the proof nothing."""
    try:
        found = read(raw)
    except ValueError:
        return False
    prove_rows(found, RowTensors({"x": RowInput((-1, 4))}, {"y": 0}))
    return True


def test_a_file_that_ends_at_any_byte_is_read_or_refused() -> None:
    assert survives(SMALL)
    assert {survives(SMALL[:end]) for end in range(len(SMALL))} == {True, False}


PLACES = st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=8)


@given(st.sampled_from([SMALL, *(each.read_bytes() for each in MODELS[:1])]), PLACES)
def test_changed_bytes_are_read_or_refused_and_never_end_the_proof(raw: bytes, changes: list[tuple[int, int]]) -> None:
    damaged = bytearray(raw)
    for place, byte in changes:
        damaged[place % len(raw)] = byte
    survives(bytes(damaged))


@given(st.data())
def test_changed_numbers_never_end_the_proof(data: st.DataObject) -> None:
    model = onnx.ModelProto.FromString(SMALL)
    tensor = data.draw(
        st.sampled_from([each for each in model.graph.initializer if each.data_type == TensorProto.INT64])
    )
    tensor.ClearField("raw_data")
    tensor.int64_data[:] = data.draw(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=2, max_size=2))
    node = data.draw(st.sampled_from(list(model.graph.node)))
    node.op_type = data.draw(
        st.sampled_from(["Tile", "Expand", "Range", "Pow", "Gather", "Concat", "Resize", "Split", "Pad", "Sub"])
    )
    survives(model.SerializeToString())
