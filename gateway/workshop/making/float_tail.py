"""Tail of a graph that stays in floats when the rest is quantized. Pure functions.

Behind the last weights, a detector joins coordinates of hundreds of pixels with scores of 0..1 in one tensor. In 8 bits
they share one scale, which leaves a few levels for the scores: of a YOLOv8n with real weights, 12 % of the mAP remain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LEAST_WEIGHTS = 256
"""Elements from which constants count as weights: the distances in the head of YOLOv8 are a convolution of 16."""


@dataclass(frozen=True, slots=True)
class GraphNode:
    """Node of a graph: the tensors that it reads and writes, and the elements of its weights."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: int = 0


def float_tail(nodes: Sequence[GraphNode]) -> list[str]:
    """Return the names of the nodes from which no weights can be reached, none if the graph has no weights.

    `nodes` are in an order in which each comes after those whose tensors it reads.
    """
    if not any(node.weights >= LEAST_WEIGHTS for node in nodes):
        return []
    leading: set[str] = set()
    tail = []
    for node in reversed(nodes):
        if node.weights >= LEAST_WEIGHTS or not leading.isdisjoint(node.outputs):
            leading.update(node.inputs)
        else:
            tail.append(node.name)
    return tail[::-1]
