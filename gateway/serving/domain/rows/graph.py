"""Graph of a model as the proof reads it: operators, their attributes, and the constants that sizes come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Constant:
    """Constant tensor: its shape, and its numbers in row-major order if there are few (None: not read).

    `floats`: they are of a type with fractions.
    """

    shape: tuple[int, ...]
    numbers: tuple[float, ...] | None = None
    floats: bool = False


@dataclass(frozen=True, slots=True)
class Node:
    """Operator. `kind` is its type, `domain::type` outside ONNX's own domain. An input "" is left out."""

    kind: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reference:
    """Attribute of a function's node: the attribute called `name` of the node that calls the function."""

    name: str


@dataclass(frozen=True, slots=True)
class Graph:
    """Operators with their inputs, outputs and constants.

    `inputs`: declared shapes, with None for an open dimension; None for a shape that is not declared.
    """

    inputs: Mapping[str, tuple[int | None, ...] | None]
    outputs: tuple[str, ...]
    constants: Mapping[str, Constant]
    nodes: tuple[Node, ...]


Attribute: TypeAlias = int | float | str | tuple[float, ...] | Constant | Graph | Reference


@dataclass(frozen=True, slots=True)
class ModelGraph:
    """Graph of a file. `opsets`: version by domain ("": ONNX's own). `functions`: the file's own operators.

    `aliases`: other names of inputs and outputs, with the names that the graph uses.
    """

    graph: Graph
    opsets: Mapping[str, int]
    functions: Mapping[str, Graph] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
