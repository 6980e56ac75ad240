"""Real models with one attribute or constant of a shape changed: those that stay proved must keep their rows apart."""

from __future__ import annotations

import io
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from gateway.common.domain.tensor import Array
from gateway.serving.domain.onnx_graph import read_onnx_graph
from gateway.serving.domain.ports import RowInput, RowTensors
from gateway.serving.domain.rows.proof import prove_rows

ROOT = Path(__file__).parents[5]
WORLD = ROOT / ".venv" / "world"
LARGEST_BYTES = 4_000_000
"""Models above it take most of the time and have no other operators."""
TOLERANCE, OPEN_SIZES = 1e-3, (16, 7, 32, 64, 160, 400)
PARAMETERS = {
    "axis",
    "axes",
    "keepdims",
    "perm",
    "transA",
    "transB",
    "strides",
    "starts",
    "ends",
    "noop_with_empty_axes",
}
PARAMETERS |= {
    "batch_dims",
    "direction",
    "layout",
    "kernel_shape",
    "group",
    "blocksize",
    "scan_input_axes",
    "pads",
    "split",
}
SHAPES = {
    "Reshape",
    "Slice",
    "Squeeze",
    "Unsqueeze",
    "Gather",
    "Concat",
    "Expand",
    "Tile",
    "ReduceSum",
    "ReduceMean",
    "Pad",
    "Split",
}
NUMBERS = (-2, -1, 0, 1, 2, 3)


def models(*, all_models: bool) -> list[onnx.ModelProto]:
    """Return the models of the repository and of the packages that have rows first, and a few made for this."""
    packages = Path(onnx.__file__).parents[1]
    places = [
        *sorted((ROOT / "models").glob("*/1/onnx-*/model.onnx")),
        *sorted((packages / "onnxruntime/datasets").glob("*.onnx")),
    ]
    if all_models:
        places += sorted(place for place in WORLD.rglob("*.onnx") if place.stat().st_size <= LARGEST_BYTES)
    small = [onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 17]>{text}') for text in SMALL]
    return [model for model in [*small, *map(onnx.load, places)] if open_inputs(model)]


SMALL = [
    """attention (float[B,4,6] x) => (float y) <int64[4] heads = {0, 4, 2, 3}, int64[3] joined = {0, 4, 6}, int64[2]
    flat = {-1, 24}, int64[1] zero = {0}, int64[1] one = {1}, int64[1] three = {3}> { h = Reshape(x, heads) q =
    Transpose<perm = [0, 2, 1, 3]>(h) k = Transpose<perm = [0, 2, 3, 1]>(h) m = MatMul(q, k) s = Softmax<axis =
    -1>(m) v = MatMul(s, q) t = Transpose<perm = [0, 2, 1, 3]>(v) j = Reshape(t, joined) e = ReduceMean<axes = [1],
    keepdims = 1>(j) d = Sub(j, e) c = Slice(d, one, three, one) r = ReduceMax<axes = [1], keepdims = 0>(c) n =
    Shape(d) b = Gather(n, zero) w = ConstantOfShape(b) g = Unsqueeze(w, one) a = Add(r, g) l = LpNormalization<axis
    = -1>(a) o = Reshape(d, flat) y = Concat<axis = 1>(l, o) }""",
    """images (float[B,3,8,8] x) => (float y) <int64[8] pads = {0, 0, 0, 0, 0, 0, 0, 0}, int64[2] flat = {0, -1},
    int64[1] two = {2}, int64[1] four = {4}, int64[4] grouped = {0, 3, -1, 4}, int64[2] both = {2, 3}> { p = Pad(x,
    pads) m = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(p) d = SpaceToDepth<blocksize = 1>(m) s = Slice(d,
    two, four, two) a = AveragePool<kernel_shape = [2, 2], strides = [1, 1]>(d) g = Reshape(d, grouped) t =
    Transpose<perm = [0, 2, 1, 3]>(g) c = CumSum(t, axis) axis = Identity(two) i = ArgMax<axis = 1, keepdims = 0>(a)
    f = Cast<to = 1>(i) h = Flatten<axis = 1>(f) u, v = Split<axis = 1>(h) w = Reshape(c, flat) z = Reshape(s, flat)
    y = Concat<axis = 1>(h, w, z) }""",
    """words (int64[B,5] x) => (float y) <float[7,3] table = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 3, 5, 7, 9, 2, 4, 6, 8, 1,
    1, 2}, int64[1] one = {1}, int64[2] sizes = {2, 3}, int64[1] zero = {0}> { e = Gather<axis = 0>(table, x) t =
    Transpose<perm = [1, 0, 2]>(e) c = CumSum(t, zero) s = Softmax<axis = 2>(c) b = Transpose<perm = [1, 0, 2]>(s)
    p, q = Split<axis = 1>(b, sizes) r = ReduceSum<keepdims = 0>(q, one) k = ReduceMax<axes = [1], keepdims = 0>(p)
    n = Concat<axis = -1>(r, k) u = Unsqueeze(n, one) v = Squeeze(u, one) l = Softmax<axis = 1>(v) m = ArgMax<axis =
    1, keepdims = 1>(l) f = Cast<to = 1>(m) y = Add(l, f) }""",
]


def mutated(model: onnx.ModelProto, chance: random.Random) -> onnx.ModelProto | None:
    """Return a copy with one change, or None if there is nothing of the kind that was drawn."""
    found = onnx.ModelProto()
    found.CopyFrom(model)
    nodes = list(_nodes(found.graph))
    constants = {each.name: each for each in found.graph.initializer} | {
        node.output[0]: node.attribute[0].t
        for node in nodes
        if node.op_type == "Constant" and node.attribute[0].name == "value"
    }
    node = chance.choice(nodes)
    attributes = [each for each in node.attribute if each.name in PARAMETERS]
    shapes = [constants[name] for name in node.input[1:] if name in constants and node.op_type in SHAPES]
    shapes = [each for each in shapes if each.data_type in {6, 7} and 0 < np.prod(each.dims, dtype=int) <= 16]
    draw = chance.random()
    if attributes and (draw < 0.5 or not shapes):
        _change(chance.choice(attributes), chance)
    elif shapes:
        tensor = chance.choice(shapes)
        numbers = numpy_helper.to_array(tensor).copy()
        numbers.ravel()[chance.randrange(numbers.size)] = chance.choice((*NUMBERS, 2**31 - 1))
        tensor.CopyFrom(numpy_helper.from_array(numbers, tensor.name))
    elif node.op_type in {"MatMul", "Sub", "Div", "Gemm"}:
        node.input[0], node.input[1] = node.input[1], node.input[0]
    elif node.op_type in {"Softmax", "Concat", "ArgMax", "Gather", "Flatten", "ReduceMax", "LogSoftmax", "Gemm"}:
        name = {"Gemm": "transA", "ReduceMax": "keepdims"}.get(node.op_type, "axis")
        node.attribute.append(helper.make_attribute(name, chance.choice((0, 1))))
    else:
        return None
    del found.graph.value_info[:]
    for each in found.graph.output:
        if each.type.HasField("tensor_type"):
            each.type.tensor_type.ClearField("shape")
    return found


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for each in node.attribute:
            if each.HasField("g"):
                yield from _nodes(each.g)


def _change(attribute: onnx.AttributeProto, chance: random.Random) -> None:
    if attribute.name == "perm":
        one, two = chance.sample(range(len(attribute.ints)), 2) if len(attribute.ints) > 1 else (0, 0)
        attribute.ints[one], attribute.ints[two] = attribute.ints[two], attribute.ints[one]
    elif attribute.ints:
        attribute.ints[chance.randrange(len(attribute.ints))] = chance.choice(NUMBERS)
    elif attribute.type == onnx.AttributeProto.INT:
        attribute.i = 1 - attribute.i if attribute.i in {0, 1} and chance.random() < 0.5 else chance.choice(NUMBERS)


def verdict(model: onnx.ModelProto) -> str:
    """Return proved, dependent (and refused), refused or fails; a model that is proved and dependent fails the test."""
    content = model.SerializeToString()
    rows = open_inputs(model)
    result = prove_rows(
        read_onnx_graph(io.BytesIO(content)),
        RowTensors(
            {name: RowInput(shape) for name, shape in rows.items()}, {each.name: 0 for each in model.graph.output}
        ),
    )
    try:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception:  # noqa: BLE001  a change that no kernel takes
        return "fails"
    problems = (_difference(session, rows, open_size) for open_size in OPEN_SIZES)
    problem = next((each for each in problems if each is not None), None)
    if problem is None:
        return "fails"
    assert not (result.is_proved and problem), problem
    return "proved" if result.is_proved else "dependent" if problem else "refused"


def open_inputs(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the inputs whose first size is open."""
    initial = {each.name for each in model.graph.initializer}
    shapes = {each.name: _shape(each) for each in model.graph.input if each.name not in initial}
    return {name: shape for name, shape in shapes.items() if shape and shape[0] < 0}


def _shape(info: onnx.ValueInfoProto) -> tuple[int, ...]:
    return tuple(each.dim_value if each.HasField("dim_value") else -1 for each in info.type.tensor_type.shape.dim)


def _difference(session: Any, rows: dict[str, tuple[int, ...]], open_size: int) -> str | None:
    """Return how rows differ apart and joined, "" if they do not, and None if no two rows run apart."""
    feeds = [_row(session, rows, open_size, row) for row in range(5)]
    apart = [_run(session, each) for each in feeds]
    good = [row for row, answers in enumerate(apart) if answers is not None]
    if len(good) < 2:
        return None
    for order in (good, [*good[::-1], *good]):
        joined = _run(
            session,
            {
                name: np.concatenate([feeds[row][name] for row in order]) if name in rows else each
                for name, each in feeds[0].items()
            },
        )
        if joined is None:
            return f"{len(order)} rows do not run together"
        for at, answers in enumerate(joined):
            for place, row in enumerate(order):
                own = (apart[row] or [])[at]
                if own.shape[:1] != (1,) or answers.shape[:1] != (len(order),) or own.shape[1:] != answers.shape[1:]:
                    return f"shapes {own.shape} and {answers.shape}"
                if row != 4 and not _equal(own[0], answers[place]):
                    return f"row {row} at {place} of {order} differs in output {at}"
    return ""


def _equal(one: Array, two: Array) -> bool:
    if one.dtype.kind != "f":
        return bool(np.array_equal(one, two))
    finite = np.abs(one[np.isfinite(one)])
    return bool(
        np.allclose(one, two, rtol=TOLERANCE, atol=TOLERANCE * float(finite.max(initial=0.0)) + 1e-12, equal_nan=True)
    )


def _row(session: Any, rows: dict[str, tuple[int, ...]], open_size: int, row: int) -> dict[str, Array]:
    """Return one row: usual, small, large and random numbers, and NaN; inputs without rows are the same for all."""
    found = {}
    for each in session.get_inputs():
        shape = [
            1 if not place and each.name in rows else size if isinstance(size, int) else open_size
            for place, size in enumerate(each.shape)
        ]
        noise = np.random.default_rng(row if each.name in rows else 9).standard_normal(shape)
        kind = {"float": "f4", "float16": "f2", "double": "f8", "bool": "?", "int32": "i4", "uint8": "u1"}.get(
            each.type[7:-1], "i8"
        )
        scaled = (
            noise * (1.0, 1e-3, 300.0, 1.0, np.nan)[row] if each.name in rows and kind[0] == "f" else np.abs(noise * 3)
        )
        found[each.name] = np.asarray(scaled, kind) if kind != "i8" or shape else np.asarray(16_000)
    return found


def _run(session: Any, feeds: dict[str, Array]) -> list[Array] | None:
    try:
        return [np.asarray(each) for each in session.run(None, feeds)]
    except Exception:  # noqa: BLE001  a row that the changed model refuses
        return None


def counted(chosen: Sequence[onnx.ModelProto], rounds: int, seed: str) -> Counter[str]:
    onnxruntime.set_default_logger_severity(4)
    chance, found = random.Random(seed), Counter[str]()
    for model in chosen:
        for _ in range(rounds):
            if (changed := mutated(model, chance)) is not None:
                found[verdict(changed)] += 1
    return found


def counted_apart(model: onnx.ModelProto, rounds: int, seed: str) -> Counter[str]:
    """Count in a process of its own, which ONNX Runtime ends for some changes."""
    with ProcessPoolExecutor(1, get_context("fork")) as pool:
        try:
            return pool.submit(counted, [model], rounds, seed).result()
        except BrokenProcessPool:
            return Counter(crashed=1)


def test_changed_models_that_stay_proved_keep_their_rows_apart() -> None:
    found = counted(models(all_models=False), 60, "35")
    assert found["proved"] >= 60
    assert found["dependent"] >= 20


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_changed_models_of_many_makers_that_stay_proved_keep_their_rows_apart() -> None:
    rounds = 10 if WORLD.exists() else 60  # without the packages of `make test-world` there are few models
    parts = ((place, model, part) for place, model in enumerate(models(all_models=True)) for part in range(3))
    found = sum((counted_apart(model, rounds, f"{place}.{part}") for place, model, part in parts), Counter[str]())
    print(dict(found))
    assert found.total() >= 800
    assert found["proved"] >= 200
    assert found["dependent"] >= 20
