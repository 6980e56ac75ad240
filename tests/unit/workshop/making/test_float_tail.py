"""Part of a graph behind the last weights."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.workshop.making.float_tail import LEAST_WEIGHTS, GraphNode, float_tail


def test_the_tail_begins_behind_the_last_weights() -> None:
    nodes = [
        GraphNode("stem", ("x",), ("a",), 1000),
        GraphNode("relu", ("a",), ("b",)),
        GraphNode("boxes", ("b",), ("c",), 1000),
        GraphNode("scores", ("b",), ("d",), 1000),
        GraphNode("sigmoid", ("d",), ("e",)),
        GraphNode("distances", ("c",), ("f",), 16),
        GraphNode("joined", ("f", "e"), ("y",)),
    ]
    assert float_tail(nodes) == ["sigmoid", "distances", "joined"]


def test_a_graph_without_weights_has_no_tail() -> None:
    assert float_tail([GraphNode("sum", ("x",), ("y",), LEAST_WEIGHTS - 1)]) == []


@given(st.lists(st.tuples(st.sets(st.integers(0, 11), max_size=3), st.booleans()), max_size=12))
def test_no_weights_can_be_reached_from_the_tail(drawn: list[tuple[set[int], bool]]) -> None:
    nodes = [
        GraphNode(
            str(at), tuple(str(source) for source in sources if source < at), (str(at),), LEAST_WEIGHTS * weighted
        )
        for at, (sources, weighted) in enumerate(drawn)
    ]
    tail = set(float_tail(nodes))
    weighted = {node.name for node in nodes if node.weights}
    reaching: dict[str, bool] = {}
    for node in reversed(nodes):
        readers = [other.name for other in nodes if node.name in other.inputs]
        reaching[node.name] = any(name in weighted or reaching[name] for name in readers)
    assert tail == ({name for name in reaching if not reaching[name] and name not in weighted} if weighted else set())
