"""ONNX files read without the onnx package, compared with its parser on its own models and on damaged bytes."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.loader import load_model_tests

from gateway.common.domain import onnx_fields, onnx_file
from gateway.common.domain.onnx_file import COMPILED, OnnxFacts, may_refer, read_onnx
from tests.fuzz.targets import onnx_facts, onnx_names

SAVED = [file.read_bytes() for file in sorted((Path(onnx.__file__).parent / "backend/test/data").rglob("*.onnx"))]


def facts(model: onnx.ModelProto) -> OnnxFacts:
    return read_onnx(io.BytesIO(model.SerializeToString()))


def model(*nodes: onnx.NodeProto, **graph: Any) -> onnx.ModelProto:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    return helper.make_model(helper.make_graph(nodes, graph.pop("name", "g"), [value], [], **graph))


def external(location: str) -> onnx.TensorProto:
    tensor = TensorProto(name=location, data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="offset", value="0")
    tensor.external_data.add(key="location", value=location)
    return tensor


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the package computes infinities for its tests
@pytest.mark.parametrize("kind", ["saved", pytest.param("node", marks=pytest.mark.long)])  # node: made in seconds
def test_the_packages_own_models_are_read_as_its_parser_reads_them(kind: str) -> None:
    models = SAVED if kind == "saved" else [case.model.SerializeToString() for case in load_model_tests(kind=kind)]
    assert len(models) > {"saved": 100, "node": 1000}[kind]
    for raw in models:
        found = read_onnx(io.BytesIO(raw))
        assert (found.operators, found.external) == onnx_names(onnx.ModelProto.FromString(raw))
        assert may_refer(io.BytesIO(raw)) or not (found.external or COMPILED in found.operators)


@pytest.mark.parametrize("block_bytes", range(9, 80, 5))
def test_a_reference_is_found_wherever_it_lies(block_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_file, "_BLOCK_BYTES", block_bytes)
    compiled = helper.make_node("EPContext", [], [], domain="com.microsoft")
    for place in range(block_bytes):
        name = "x" * place
        for one in (model(initializer=[external(name)]), model(compiled, name=name)):
            assert may_refer(io.BytesIO(one.SerializeToString()))
    raw = model(helper.make_node("Relu", ["x"], ["y"])).SerializeToString()
    assert not may_refer(io.BytesIO(raw))
    assert may_refer(io.BytesIO(raw + raw))  # two graphs
    with pytest.raises(ValueError, match="copy it here again"):
        may_refer(io.BytesIO(raw[:-1]))


def test_external_data_as_the_package_saves_it_is_named(tmp_path: Path) -> None:
    weights = {name: numpy_helper.from_array(np.ones((64, 64), np.float32), name) for name in "ab"}
    saved = model(helper.make_node("MatMul", ["x", "a"], ["y"]), initializer=list(weights.values()))
    onnx.save(saved, tmp_path / "one.onnx", save_as_external_data=True, location="one.onnx.data")
    with (tmp_path / "one.onnx").open("rb") as stream:
        assert read_onnx(stream).external == ("one.onnx.data",)
    each = model(helper.make_node("MatMul", ["x", "a"], ["y"]), initializer=list(weights.values()))
    onnx.save(each, tmp_path / "each.onnx", save_as_external_data=True, all_tensors_to_one_file=False)
    with (tmp_path / "each.onnx").open("rb") as stream:
        assert sorted(read_onnx(stream).external) == ["a", "b"]


def test_names_are_found_wherever_the_format_allows_them() -> None:
    sparse = onnx.SparseTensorProto(values=external("values"), indices=external("indices"), dims=[4])
    inner = helper.make_graph([helper.make_node("Relu", [], [])], "then", [], [], [external("subgraph")])
    function = helper.make_function(
        "mine", "F", [], [], [helper.make_node("Constant", [], [], value=external("function"))], []
    )
    default = helper.make_attribute("weights", external("default"))
    function.attribute_proto.append(default)
    whole = model(
        helper.make_node("If", [], [], then_branch=inner, domain="ai.onnx"),
        helper.make_node("F", [], [], domain="mine"),
        helper.make_node("Many", [], [], tensors=[external("first"), external("second")], graphs=[inner]),
        helper.make_node("Sparse", [], [], one=sparse, more=[sparse]),
        initializer=[external("initializer"), external("initializer")],
        sparse_initializer=[sparse],
    )
    whole.functions.append(function)
    training = whole.training_info.add()
    training.algorithm.CopyFrom(helper.make_graph([], "step", [], [], [external("training")]))
    expected = onnx_names(whole)
    assert (facts(whole).operators, facts(whole).external) == expected
    assert expected[0] == {"If", "Relu", "mine::F", "Many", "Sparse", "Constant"}
    assert len(expected[1]) == 9


def test_contents_are_not_read() -> None:
    class Counting(io.BytesIO):
        read_bytes = 0

        def read(self, size: int | None = -1, /) -> bytes:
            self.read_bytes += size or 0
            return super().read(size)

    weights = numpy_helper.from_array(np.zeros(10_000_000, np.float32), "w")
    stream = Counting(model(helper.make_node("Relu", ["x"], []), initializer=[weights]).SerializeToString())
    assert read_onnx(stream).operators == {"Relu"}
    assert stream.read_bytes < 100_000


def test_attributes_of_a_million_numbers_are_one_entry_each_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_fields, "ENTRIES_LIMIT", 2000)
    tree = helper.make_node("Tree", [], [], domain="ai.onnx.ml", ints=[-1, 2**60] * 50_000, floats=[0.5] * 100_000)
    tree.attribute.append(helper.make_attribute("modes", ["BRANCH_LEQ", "LEAF", ""] * 30_000))
    assert facts(model(tree)).operators == {"ai.onnx.ml::Tree"}


def message(field: int, *parts: bytes) -> bytes:
    content = b"".join(parts)
    length, digits = len(content), []
    while length > 0x7F:
        digits.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([field << 3 | 2, *digits, length]) + content


def nested(depth: int) -> bytes:
    graph = message(1, message(4, b"Last"))
    for _ in range(depth):
        graph = message(1, message(4, b"If"), message(5, message(6, graph)))
    return message(7, graph)


def damaged() -> Iterator[Any]:
    empty = model()
    unnamed = external("")
    del unnamed.external_data[:]
    tensor = message(5, external("a").SerializeToString())
    yield "no graph", b"", "holds no graph"
    yield "text", b"<html>404</html>", "at byte"
    yield "varint without an end", b"\xff" * 30, "at byte 0, a number does not end"
    yield "a group", b"\x3b", "at byte 0, there is no Protocol Buffers field"
    yield "cut", empty.SerializeToString()[:-9], "longer than the message around it"
    yield "longer than the file", b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "longer than the message"
    yield "no file named", model(initializer=[unnamed]).SerializeToString(), "its file is not named"
    yield "tensor twice", message(7, message(1, message(5, tensor, tensor))), "two values that exclude each other"
    yield "long name", model(helper.make_node("x" * 5000, [], [])).SerializeToString(), "5000 bytes, at most 4096"
    yield (
        "no UTF-8",
        model(helper.make_node("Relu", [], [])).SerializeToString().replace(b"Relu", b"\xff\xfe\xfd\xfc"),
        "UTF-8",
    )
    yield "nested", nested(60), "more than 100 messages"


@pytest.mark.parametrize(("raw", "problem"), [pytest.param(*rest, id=name) for name, *rest in damaged()])
def test_damage_is_refused_with_its_place(raw: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        read_onnx(io.BytesIO(raw))


def parsed(raw: bytes) -> bool:
    try:
        onnx.ModelProto.FromString(raw)
    except DecodeError:
        return False
    return True


def test_nesting_as_deep_as_other_parsers_read_it_is_read() -> None:
    deepest = next(depth for depth in range(30, 40) if not parsed(nested(depth + 1)))
    assert read_onnx(io.BytesIO(nested(deepest))).operators == {"If", "Last"}


@pytest.mark.parametrize(("limit", "raised"), [("ENTRIES_LIMIT", "20 fields"), ("NAMES_LIMIT", "20 different")])
def test_files_beyond_a_limit_are_refused(monkeypatch: pytest.MonkeyPatch, limit: str, raised: str) -> None:
    monkeypatch.setattr(onnx_fields if limit == "ENTRIES_LIMIT" else onnx_file, limit, 20)
    for large in (
        model(*(helper.make_node(f"Op{n}", [], []) for n in range(30))),
        model(initializer=[external(f"{n}") for n in range(30)]),
    ):
        with pytest.raises(ValueError, match=raised):
            facts(large)


SEEDS = [
    model(helper.make_node("Relu", [], [], value=external("w"), f=1.5)).SerializeToString(),
    SAVED[0],
]


@given(st.sampled_from(SEEDS), st.lists(st.tuples(st.integers(0, 400), st.binary(max_size=12)), max_size=5))
def test_damaged_bytes_are_read_as_the_package_reads_them_or_refused(
    raw: bytes, changes: list[tuple[int, bytes]]
) -> None:
    for place, change in changes:
        raw = raw[:place] + change + raw[place + len(change) :]
    onnx_facts(raw)


def test_an_unpacked_number_without_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match="a number does not end"):
        read_onnx(io.BytesIO(message(7, message(1, message(5, b"\x40\xff\xff\xff")))))
