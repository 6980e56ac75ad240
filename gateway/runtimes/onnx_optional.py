"""Inputs of an ONNX graph that may be left out: they have an initializer, whose value applies then (IR version 4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from gateway.domain.manifest import TensorSpec
from gateway.domain.onnx_graph import read_onnx_graph


def with_defaults(file: Path, specs: Iterable[TensorSpec]) -> Iterator[TensorSpec]:
    """Yield those of the inputs whose initializer has one value in all its elements, with that value.

    Of larger initializers (`INTEGERS_LIMIT`, `FLOATS_LIMIT`) the values are not read, and of a damaged file none.
    """
    if not (specs := tuple(specs)):
        return
    try:
        with file.open("rb") as stream:
            constants = read_onnx_graph(stream).graph.constants
    except (OSError, ValueError):
        return
    for spec in specs:
        numbers = constants[spec.name].numbers if spec.name in constants else None
        if numbers and len(set(numbers)) == 1:
            yield replace(spec, default=float(numbers[0]))
