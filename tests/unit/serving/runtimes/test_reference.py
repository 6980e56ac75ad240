"""The reference runtime's reading of graph files, whatever they hold."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.common.domain.errors import VariantError
from gateway.serving.runtimes.operators import OPERATORS
from gateway.serving.runtimes.reference import ReferenceEngine, ReferenceGraph, read_graph
from tests.simulators import models

GRAPH = {
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 3]}],
    "nodes": [{"op": "Relu", "inputs": ["x"], "outputs": ["y"], "attributes": {}}],
}
ONE_FILE = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3) | st.just("x")
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner))
named = st.fixed_dictionaries({"name": values, "datatype": st.just("FP32") | values, "shape": values})
attributes = st.dictionaries(
    st.sampled_from(["axis", "axes", "perm", "strides", "pads", "kernel_shape", "group", "alpha", "transA"]),
    st.integers(-3, 3) | st.lists(st.integers(-3, 3), max_size=4) | st.text(max_size=2),
)
nodes = st.fixed_dictionaries(
    {
        "op": st.sampled_from(list(OPERATORS)),
        "inputs": st.lists(st.sampled_from(["x", "w", ""]), max_size=3),
        "outputs": st.just(["y"]),
        "attributes": attributes,
    }
)


def refused_or_read(file):
    """Return whether the file is a graph, or refused with its name; anything else is raised."""
    try:
        return isinstance(read_graph(file), ReferenceGraph)
    except VariantError as error:
        return file.name in error.reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"nodes": [{"op": "Fly", "inputs": ["x"], "outputs": ["y"], "attributes": {}}]}, "no operator 'Fly'"),
        ({"nodes": [{"op": "Relu", "inputs": ["z"], "outputs": ["y"], "attributes": {}}]}, "'z' is no input"),
        ({"nodes": [{"op": "Relu", "inputs": ["x"], "outputs": ["y", "w"], "attributes": {}}]}, "one output"),
        ({"nodes": []}, "'y' is no input, weight or earlier output"),
        ({"inputs": [{"name": "x", "datatype": "FP31", "shape": []}]}, "lacks 'FP31'"),
        ({"inputs": [{"name": "x"}]}, "lacks 'datatype'"),
        ({"outputs": 3}, "not a reference graph"),
    ],
)
def test_graphs_are_checked_when_opened(change, reason, tmp_path):
    models.write_reference(tmp_path / "model.npz", GRAPH | change)
    with pytest.raises(VariantError, match=reason):
        read_graph(tmp_path / "model.npz")


def test_a_graph_beyond_the_limit_is_refused_unread(tmp_path):
    np.savez_compressed(tmp_path / "model.npz", graph=np.zeros(257 * 2**20, np.uint8))
    with pytest.raises(VariantError, match="bytes unpacked, at most"):
        read_graph(tmp_path / "model.npz")


@ONE_FILE
@given(graph=values | st.fixed_dictionaries({key: st.lists(named | values) for key in GRAPH}))
def test_any_description_is_a_graph_or_refused(graph, tmp_path):
    models.write_reference(tmp_path / "model.npz", graph)
    assert refused_or_read(tmp_path / "model.npz")


@ONE_FILE
@given(at=st.integers(0, 10_000), content=st.binary(min_size=1, max_size=8))
def test_a_damaged_file_is_a_graph_or_refused(at, content, tmp_path):
    file = tmp_path / "model.npz"
    models.write_reference(file, GRAPH, w=np.ones(3, np.float32))
    raw = bytearray(file.read_bytes())
    at %= len(raw)
    raw[at : at + len(content)] = content
    file.write_bytes(raw)
    assert refused_or_read(file)


@ONE_FILE
@given(node=nodes)
def test_any_node_answers_or_says_which_operator_failed(node, tmp_path):
    models.write_reference(tmp_path / "model.npz", GRAPH | {"nodes": [node]}, w=np.ones((3, 3), np.float32))
    engine = ReferenceEngine(read_graph(tmp_path / "model.npz"))
    try:
        (answer,) = engine.run({"x": np.ones((2, 3), np.float32)}, ["y"])
    except VariantError as error:
        told = node["op"] in error.reason
    else:
        told = isinstance(answer, np.ndarray)
    assert told
