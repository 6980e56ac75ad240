"""Range of pixels that the first operators of a graph tell."""

from __future__ import annotations

import pytest

from gateway.domain.rows.graph import Constant, Graph, Node
from gateway.workshop.input_scale import scaled_range

Steps = list[tuple[str, tuple[float, ...] | list[tuple[float, ...]]]]
NORMAL = [(1.0,), (0.0,), (127.5,), (5400.0,)]


def graph(steps: Steps) -> Graph:
    nodes, constants, name = list[Node](), dict[str, Constant](), "image"
    for place, (kind, values) in enumerate([*steps, ("Conv", (0.1,))]):
        several = values if isinstance(values, list) else [values] if values else []
        names = tuple(f"c{place}.{index}" for index in range(len(several)))
        constants |= {each: Constant((len(own),), own) for each, own in zip(names, several, strict=True)}
        nodes.append(Node(kind, kind, (name, *names), (f"t{place}",)))
        name = f"t{place}"
    return Graph({"image": (None, 8, 8, 3)}, (name,), constants, tuple(nodes))


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        ([("Mul", (1 / 255,))], "pixels"),
        ([("Cast", ()), ("Mul", (1 / 127.5,)), ("Add", (-1.0,)), ("Transpose", ())], "pixels"),
        ([("Sub", (123.7, 116.3, 103.5)), ("Div", (58.4, 57.1, 57.4))], "pixels"),
        ([("BatchNormalization", NORMAL)], "pixels"),
        ([("Sub", (0.485, 0.456, 0.406)), ("Div", (0.229, 0.224, 0.225))], "unit"),
        ([], ""),
        ([("Relu", ()), ("Mul", (1 / 255,))], ""),
        ([("Mul", (1.0,))], ""),
        ([("Div", (0.0,))], ""),
    ],
)
def test_the_first_operators_tell_the_range(steps: Steps, found: str) -> None:
    assert scaled_range(graph(steps), "image")[0] == found


def test_an_input_with_two_readers_tells_nothing() -> None:
    scaled = graph([("Mul", (1 / 255,))])
    other = Node("Shape", "s", ("image",), ("shape",))
    both = Graph(scaled.inputs, scaled.outputs, scaled.constants, (*scaled.nodes, other))
    assert scaled_range(both, "image") == ("", "")
