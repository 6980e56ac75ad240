"""Operator tests of the ONNX package with rows on an axis of their inputs, alone and merged with the axis behind it.

Each is followed by the proof, and run by ONNX Runtime row by row and with rows together. Where the proof says on which
axis the results have their rows, each must be the row's own.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from gateway.common.domain.tensor import Array
from gateway.serving.domain.onnx_graph import read_onnx_graph
from gateway.serving.domain.ports import RowInput
from gateway.serving.domain.rows.proof import _Proof
from gateway.serving.domain.rows.sizes import DependentRowsError
from gateway.serving.domain.rows.values import Value

AXES = 4
MERGED_ENTRIES = 2
IR_VERSION, OPSET = 10, 26
"""Newest format of files and newest operators that ONNX Runtime reads; the package is ahead of it."""
TOLERANCE = 1e-4
"""Largest difference, relative to a row's largest value: kernels differ with the number of rows."""
RANDOM = frozenset(
    {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli"}
)

onnxruntime.set_default_logger_severity(4)


@dataclass(frozen=True)
class Placed:
    """A test with rows: axis by input, and whether each row has two entries there."""

    name: str
    model: onnx.ModelProto
    feeds: Mapping[str, Array]
    axes: Mapping[str, int]
    merged: bool


@dataclass(frozen=True)
class Outcome:
    """Outputs that were proved, and what was wrong with them; `runs` is False if no row runs alone."""

    proved: int
    runs: bool
    wrong: tuple[str, ...] = ()


@cache
def cases() -> list[Any]:
    """Return the operator tests, by name."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sorted(collect_testcases(None), key=lambda case: str(case.name))


def placements(case: Any) -> Iterator[Placed]:
    """Yield every way to put rows on an axis of some inputs of a test. The other inputs become constants."""
    model = case.model
    values, _ = case.data_sets[0]
    names = [each.name for each in model.graph.input]
    arrays = np.ndarray | np.generic
    feeds = {name: np.asarray(each) for name, each in zip(names, values, strict=True) if isinstance(each, arrays)}
    if len(feeds) != len(names):
        return
    names = [name for name in names if feeds[name].size and feeds[name].ndim]
    some = [each for count in range(1, min(3, len(names)) + 1) for each in combinations(names, count)]
    seen = set()
    for group in some if len(names) <= 3 else [*((name,) for name in names), tuple(names)]:
        for place in range(AXES):
            for from_right in (False, True):
                axes = {name: feeds[name].ndim - 1 - place if from_right else place for name in group}
                if any(not 0 <= axis < feeds[name].ndim for name, axis in axes.items()):
                    continue
                for merged in (False, True):
                    key = (*axes.items(), merged)
                    if key not in seen:
                        seen.add(key)
                        yield Placed(case.name, model, feeds, axes, merged)


def outcome(placed: Placed) -> Outcome:
    """Follow and run one test."""
    model = _opened(placed)
    inputs = {each.name: RowInput(_shape(each), placed.axes[each.name]) for each in model.graph.input}
    content = model.SerializeToString()
    graph = read_onnx_graph(io.BytesIO(content))
    try:
        scope = _Proof(graph).follow(inputs)
    except (DependentRowsError, ArithmeticError, LookupError, TypeError, ValueError):
        return Outcome(0, True)
    found = {name: scope.values.get(name) for name in graph.graph.outputs}
    proved = {name: value for name, value in found.items() if isinstance(value, Value) and value.axis is not None}
    if len(proved) < len(found):  # a result without a proof may keep the rows from running together
        return Outcome(0, True)
    try:
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    except Exception:  # noqa: BLE001  ONNX Runtime has no kernel for this test
        return Outcome(len(proved), False)
    return _compared(placed, session, proved)


def _compared(placed: Placed, session: Any, proved: Mapping[str, Value]) -> Outcome:
    rows = [_row(placed, row) for row in range(4)]
    alone = [_run(session, row) for row in rows]
    good = [row for row, answers in enumerate(alone) if answers is not None]
    if not good:
        return Outcome(len(proved), False)
    wrong = []
    for order in ([*good, *good[:1]], good[::-1]):
        joined = _run(session, _together(placed, [rows[row] for row in order]))
        if joined is None:
            wrong.append(f"{len(order)} rows do not run together")
            continue
        for name, value in proved.items():
            sizes = [each.constant for each in value.sizes]
            if any(one not in {None, two} for one, two in zip(sizes, joined[name].shape, strict=True)):
                wrong.append(f"output {name!r} has shape {joined[name].shape}, not {sizes}")
            for place, row in enumerate(order):
                own = (alone[row] or {})[name]
                if problem := _difference(own, joined[name], value, (place, len(order)), exact_row=row < 3):
                    wrong.append(f"output {name!r}, row {row} at {place} of {order}: {problem}")
    return Outcome(len(proved), True, tuple(wrong))


def _difference(own: Array, joined: Array, value: Value, place: tuple[int, int], *, exact_row: bool) -> str:
    axis = value.axis or 0
    if own.ndim != joined.ndim or joined.shape[axis] != own.shape[axis] * place[1]:
        return f"{own.shape} alone, {joined.shape} joined"
    outer, inner = value.entries.outer.constant, value.entries.inner.constant
    if outer is None:
        outer = own.shape[axis] // (inner or 1)  # groups of a size that only the run knows
    inner = own.shape[axis] // max(1, outer)
    groups = joined.reshape(*joined.shape[:axis], outer, place[1], inner, *joined.shape[axis + 1 :])
    block = np.take(groups, place[0], axis + 1)
    block = block.reshape(*joined.shape[:axis], outer * inner, *joined.shape[axis + 1 :])
    if block.shape != own.shape:
        return f"{own.shape} alone, {joined.shape} joined"
    if not exact_row:
        return ""
    if own.dtype.kind not in "fiu":
        return "" if np.array_equal(own, block) else "differs"
    left, right = own.astype(np.float64), block.astype(np.float64)
    finite = np.abs(left[np.isfinite(left)])
    rough = 2.0**-6 if own.dtype == np.float16 else TOLERANCE
    allowed = float(finite.max(initial=0.0)) * rough if own.dtype.kind == "f" else 0.0
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    with np.errstate(invalid="ignore"):
        apart = np.where(same, 0.0, np.nan_to_num(np.abs(left - right), nan=np.inf)).max(initial=0.0)
    return f"differs by {apart:g}" if apart > allowed else ""


def _run(session: Any, feeds: Mapping[str, Array]) -> dict[str, Array] | None:
    names = [each.name for each in session.get_outputs()]
    try:
        return dict(zip(names, (np.asarray(each) for each in session.run(names, dict(feeds))), strict=True))
    except Exception:  # noqa: BLE001  an input that the operator refuses
        return None


def _row(placed: Placed, row: int) -> dict[str, Array]:
    """Return one row: slices of the test's data, larger, smaller, random; the last has NaN."""
    random = np.random.default_rng(row)
    found = {}
    for name, axis in placed.axes.items():
        value = placed.feeds[name]
        count = MERGED_ENTRIES if placed.merged else 1
        data = np.take(value, [(row * count + entry) % max(1, value.shape[axis]) for entry in range(count)], axis)
        if value.dtype.kind == "f":
            data = [data, data * 40, random.standard_normal(data.shape) * 3, np.full(data.shape, np.nan)][row]
        if placed.merged:
            data = data.reshape(*data.shape[:axis], 1, count, *data.shape[axis + 1 :])
        found[name] = np.ascontiguousarray(data, dtype=value.dtype)
    return found


def _together(placed: Placed, rows: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    return {name: np.concatenate([row[name] for row in rows], axis) for name, axis in placed.axes.items()}


def _opened(placed: Placed) -> onnx.ModelProto:
    """Return the model with an open axis in the inputs that have rows, and constants for the others."""
    model = onnx.ModelProto()
    model.CopyFrom(placed.model)
    model.ir_version = min(model.ir_version, IR_VERSION)
    for each in model.opset_import:
        each.version = min(each.version, OPSET)
    graph = model.graph
    del graph.value_info[:]
    for each in graph.output:
        each.type.tensor_type.ClearField("shape")
    kept, first = [], []
    for each in list(graph.input):
        if each.name not in placed.axes:
            graph.initializer.append(numpy_helper.from_array(placed.feeds[each.name], each.name))
            continue
        axis, shape = placed.axes[each.name], list(placed.feeds[each.name].shape)
        kind = each.type.tensor_type.elem_type
        shape[axis : axis + 1] = [None, MERGED_ENTRIES] if placed.merged else [None]
        kept.append(helper.make_tensor_value_info(each.name, kind, shape))
        if placed.merged:
            target = list(placed.feeds[each.name].shape)
            target[axis] = -1
            inner = f"{each.name}_merged"
            graph.initializer.append(
                helper.make_tensor(f"{each.name}_target", TensorProto.INT64, [len(target)], target)
            )
            first.append(helper.make_node("Reshape", [each.name, f"{each.name}_target"], [inner]))
            for node in graph.node:
                for place, name in enumerate(node.input):
                    if name == each.name:
                        node.input[place] = inner
    nodes = [*first, *graph.node]
    del graph.input[:], graph.node[:]
    graph.input.extend(kept)
    graph.node.extend(nodes)
    return model


def _shape(info: onnx.ValueInfoProto) -> tuple[int, ...]:
    return tuple(each.dim_value if each.HasField("dim_value") else -1 for each in info.type.tensor_type.shape.dim)
