"""Range of pixels that the first operators of a graph tell."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.serving.domain.rows.graph import Constant, Graph, Node
from gateway.workshop.making.input_scale import scaled_range, scaling_remarks

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
        ([("Sub", (123.7, 116.3, 103.5))], "pixels"),
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


def test_constants_in_another_type_are_read() -> None:
    scaled = graph([("Mul", (1 / 255,))])
    cast = Node("Cast", "c", ("half",), ("c0.0",))
    half = Graph(scaled.inputs, scaled.outputs, {"half": scaled.constants["c0.0"]}, (cast, *scaled.nodes))
    assert scaled_range(half, "image")[0] == "pixels"


@pytest.mark.parametrize(
    ("steps", "low", "high", "told"),
    [
        ([("Mul", (1 / 255,))], 0.0, 255.0, ""),
        ([("Mul", (1 / 255,))], 0.0, 1.0, "make 0 to 0.003922 of them"),
        ([("Mul", (1 / 127.5,)), ("Add", (-1.0,))], -1.0, 1.0, "make -1.008 to -0.9922 of them"),
        ([("Sub", (0.485,)), ("Div", (0.229,))], 0.0, 1.0, ""),
        ([("Sub", (0.485,)), ("Div", (0.229,))], 0.0, 255.0, "make -2.118 to 1111 of them"),
        ([], 0.0, 255.0, ""),
    ],
)
def test_samples_are_compared_with_what_the_file_makes_of_them(
    steps: Steps, low: float, high: float, told: str
) -> None:
    pictures = np.linspace(low, high, 2 * 8 * 8 * 3).reshape(2, 8, 8, 3)
    remarks = scaling_remarks(graph(steps), {"image": pictures, "size": np.zeros((2, 1))})
    assert len(remarks) == bool(told)
    assert told in "".join(remarks)
