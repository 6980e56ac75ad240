"""Description in ONNX files, read without the onnx package."""

from __future__ import annotations

import io
from contextlib import suppress

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from gateway.serving.domain import onnx_header
from gateway.serving.domain.onnx_header import OnnxHeader, read_onnx_header
from tests.simulators.models_made import image_classifier, shaped, with_metadata


def header(model: onnx.ModelProto) -> OnnxHeader:
    return read_onnx_header(io.BytesIO(model.SerializeToString()))


def test_opsets_producer_metadata_and_weights_are_read() -> None:
    model = with_metadata(image_classifier(), names="{0: 'cat'}", docs="a page")
    model.producer_name = "an exporter"
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    half = numpy_helper.from_array(np.ones((2, 5), np.float16), "half")
    model.graph.initializer.append(half)
    found = header(model)
    assert (found.producer, found.opsets) == ("an exporter", {"": 17, "ai.onnx.ml": 3})
    assert found.metadata == {"names": "{0: 'cat'}", "docs": "a page"}
    assert found.weights == {onnx.TensorProto.FLOAT: 8 * 3 * 9 + 24, onnx.TensorProto.FLOAT16: 10}


@pytest.mark.parametrize(
    ("attribute", "values", "names"),
    [
        ("classlabels_ints", [-1, 0, 7], ("-1", "0", "7")),
        ("classlabels_int64s", [3, 4], ("3", "4")),
        ("classlabels_strings", ["low", "größer"], ("low", "größer")),
        ("nodes_modes", ["LEAF"], ()),
    ],
)
def test_classes_of_a_classifier_are_read(attribute: str, values: list[object], names: tuple[str, ...]) -> None:
    node = helper.make_node("LinearClassifier", ["x"], ["y"], domain="ai.onnx.ml", **{attribute: values})
    assert header(shaped({"x": [1]}, {"y": [1]}, node)).classes == names


def test_a_tree_of_a_million_numbers_costs_no_entry_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.common.domain.onnx_fields.ENTRIES_LIMIT", 2000)
    tree = helper.make_node("Tree", ["x"], ["y"], domain="ai.onnx.ml", nodes=[1] * 100_000, classlabels_ints=[1, 2])
    assert header(shaped({"x": [1]}, {"y": [1]}, tree)).classes == ("1", "2")


def test_a_long_value_and_many_entries_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_header, "METADATA_LIMIT", 2)
    long = "x" * (onnx_header.METADATA_LIMIT_BYTES + 1)
    assert header(with_metadata(image_classifier(), a=long, b="1", c="2", d="3")).metadata == {"b": "1", "c": "2"}


def test_too_many_classes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_header, "CLASSES_LIMIT", 3)
    node = helper.make_node("SVMClassifier", ["x"], ["y"], domain="ai.onnx.ml", classlabels_ints=[1, 2, 3, 4])
    with pytest.raises(ValueError, match="more than 3"):
        header(shaped({"x": [1]}, {"y": [1]}, node))


@pytest.mark.parametrize("raw", [b"<html>", b"\x3a\xff\xff\xff\xff\x07", b"\x72\x05\x0a\x09ab"])
def test_damage_is_an_error_with_its_place(raw: bytes) -> None:
    """Also a field that announces 2 GiB."""
    with pytest.raises(ValueError, match="at byte"):
        read_onnx_header(io.BytesIO(raw))


SEED = with_metadata(image_classifier(), names="{0: 'cat'}").SerializeToString()


@given(st.lists(st.tuples(st.integers(0, len(SEED) - 1), st.binary(min_size=1, max_size=12)), min_size=1, max_size=5))
def test_spoilt_bytes_are_read_or_refused(changes: list[tuple[int, bytes]]) -> None:
    raw = bytearray(SEED)
    for at, content in changes:
        raw[at : at + len(content)] = content
    with suppress(ValueError):
        assert isinstance(read_onnx_header(io.BytesIO(bytes(raw))), OnnxHeader)
