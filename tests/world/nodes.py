"""The backend tests inside the `onnx` package, and the same models with their first dimension open."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.world.entry import Case, Entry, Tensors

KINDS = ("simple", "pytorch-converted", "pytorch-operator")
"""Kinds of backend tests that the package ships as files, in addition to those that it makes in memory ("node")."""


def node_entries() -> Iterator[Entry]:
    """Yield every backend test with its data, as the package makes or ships it."""
    for test in _tests():
        yield _entry(f"onnx-{test.kind}", test, test.model or _read_model(Path(test.model_dir)))


def open_entries() -> Iterator[Entry]:
    """Yield the node tests whose tensors all have a first dimension, with that dimension open everywhere.

    Many of these dimensions do not count rows: nothing in the file says which do.
    """
    for test in _tests():
        if test.kind == "node" and (model := _opened(test.model)) is not None:
            yield _entry("onnx-open", test, model)


@cache
def _tests() -> list[Any]:
    from onnx.backend.test.case.node import collect_testcases
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases divide by zero on purpose
        return [*collect_testcases(None), *(test for kind in KINDS for test in load_model_tests(kind=kind))]


def _entry(source: str, test: Any, proto: Any) -> Entry:
    cases = test.data_sets if test.data_sets is not None else _read_cases(Path(test.model_dir))
    inputs, outputs = ([each.name for each in side] for side in (proto.graph.input, proto.graph.output))
    known = tuple(
        Case(_named(inputs, case[0]), _named(outputs, case[1]), test.rtol, test.atol)
        for case in cases
        if all(isinstance(value, np.ndarray | np.generic) for value in (*case[0], *case[1]))
    )
    return Entry(source, test.name, "onnx", {"model.onnx": proto.SerializeToString()}, known)


def _named(names: Sequence[str], values: Sequence[Any]) -> Tensors:
    return {name: _bytes(np.asarray(value)) for name, value in zip(names, values, strict=False)}


def _bytes(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return strings as the protocol carries them: objects that are UTF-8 bytes."""
    if array.dtype.kind not in "OUS":
        return array
    flat = [each.encode() if isinstance(each, str) else each for each in array.ravel()]
    return np.array(flat, object).reshape(array.shape)


def _opened(model: Any) -> Any | None:
    """Return the model with an open first dimension everywhere.

    Where all inputs agree on its size, they have it under one symbol.
    """
    from onnx import ModelProto

    opened = ModelProto()
    opened.CopyFrom(model)
    weights = {each.name for each in opened.graph.initializer}
    inputs = [each for each in opened.graph.input if each.name not in weights]
    dimensions = [_first_dimension(each) for each in (*inputs, *opened.graph.output)]
    if not inputs or any(dimension is None for dimension in dimensions):
        return None
    agree = len({dimension.dim_value for dimension in dimensions[: len(inputs)]}) == 1
    for index, dimension in enumerate(dimensions):
        dimension.dim_param = "n" if agree and index < len(inputs) else f"n{index}"
    del opened.graph.value_info[:]
    return opened


def _first_dimension(value: Any) -> Any | None:
    if value.type.WhichOneof("value") != "tensor_type" or not value.type.tensor_type.shape.dim:
        return None
    return value.type.tensor_type.shape.dim[0]


def _read_model(folder: Path) -> Any:
    import onnx

    return onnx.load(folder / "model.onnx")


def _read_cases(folder: Path) -> Iterator[tuple[list[Any], list[Any]]]:
    for data in sorted(folder.glob("test_data_set_*")):
        yield _read_tensors(data, "input"), _read_tensors(data, "output")


def _read_tensors(folder: Path, role: str) -> list[Any]:
    from onnx import TensorProto, numpy_helper

    count = len(list(folder.glob(f"{role}_*.pb")))
    tensors = (TensorProto.FromString((folder / f"{role}_{index}.pb").read_bytes()) for index in range(count))
    return [numpy_helper.to_array(tensor) for tensor in tensors]
