"""Rules of operators along axes, of sequences and of estimators on tables: what mixes elements must not mix rows."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.serving.domain.rows.elementwise import broadcast
from gateway.serving.domain.rows.shaping import concatenated, reshaped
from gateway.serving.domain.rows.sizes import ONE, ZERO, DependentRowsError, product, size
from gateway.serving.domain.rows.values import (
    Operation,
    Value,
    apart,
    array_of,
    from_left,
    like,
    numbered,
    rowed,
    rows_first,
)


def along_axis(op: Operation) -> list[Value]:
    """Return the rule of an operator along one axis that keeps the shape: Softmax and others.

    Softmax before opset 13 takes every axis from `axis` on.
    """
    value = op[0]
    early = op.node.kind in {"Softmax", "LogSoftmax", "Hardmax"} and op.opset < 13
    axis = op.axis(1 if early else -1, value.rank)
    apart(value, range(axis, value.rank) if early else [axis])
    return [like(value)]


def trailing_norm(op: Operation) -> list[Value]:
    """Return the rule of LayerNormalization and RMSNormalization: every axis from `axis` on."""
    value = op[0]
    apart(value, range(op.axis(-1, value.rank), value.rank))
    for index in range(1, len(op.inputs)):
        op.shared(index, "scale")
    return [like(value)]


def skip_norm(op: Operation) -> list[Value]:
    """Return the rule of ONNX Runtime's sum and LayerNormalization in one: its fourth output is the sum."""
    value = broadcast(op.symbols, [op[0], op[1]])
    apart(value, [value.rank - 1])
    for index in range(2, len(op.inputs)):
        op.shared(index, "scale")
    return [like(value) for _ in op.node.outputs]


def channel_norm(op: Operation) -> list[Value]:
    """Return the rule of norms with statistics of each row: instance, group, local response."""
    value = op[0]
    rows_first(value)
    for index in range(1, len(op.inputs)):
        op.shared(index, "scale")
    return [like(value)]


def batch_norm(op: Operation) -> list[Value]:
    """Return the rule of BatchNormalization with stored statistics."""
    if op.integer("training_mode", 0) or len([name for name in op.node.outputs if name]) > 1:
        raise DependentRowsError("it is in training mode: its statistics are of the whole batch")
    value = op[0]
    apart(value, [1])
    for index in range(1, len(op.inputs)):
        op.shared(index, "statistics")
    return [like(value)]


def dropout(op: Operation) -> list[Value]:
    """Return the rule of Dropout, which does nothing unless it is in training mode."""
    training = op.shared(2, "mode")
    if training is not None and (training.single != ZERO):
        raise DependentRowsError("it may be in training mode, which is random")
    return [op[0], *(like(op[0]) for _ in op.node.outputs[1:])]


def reduce(op: Operation) -> list[Value]:
    """Return the rule of the reductions, of data and of sizes."""
    value, axes = op.sizes(0), op.integers(1, "axes", role="axes")
    if not axes and op.integer("noop_with_empty_axes", 0) == 1:
        return [like(op[0])]
    if value.shape is None:
        return [Value()]
    gone = sorted({from_left(axis, value.rank) for axis in axes} if axes else range(value.rank))
    if value.numbers is not None and op.node.kind in {"ReduceProd", "ReduceSum"} and len(gone) == value.rank == 1:
        total = ZERO if op.node.kind == "ReduceSum" else ONE
        for each in value.elements:
            total = total + each if op.node.kind == "ReduceSum" else total * each
        kept = (1,) if op.integer("keepdims", 1) == 1 else ()
        return [numbered(array_of([total]).reshape(kept), floats=value.floats)]
    return [_reduced(op[0], gone, keeps=op.integer("keepdims", 1) == 1)]


def arg_extreme(op: Operation) -> list[Value]:
    """Return the rule of ArgMax and ArgMin."""
    value = op[0]
    return [_reduced(value, [op.axis(0, value.rank)], keeps=op.integer("keepdims", 1) == 1)]


def _reduced(value: Value, gone: Sequence[int], *, keeps: bool) -> Value:
    apart(value, gone)
    shape = [ONE if place in gone else each for place, each in enumerate(value.sizes)]
    if keeps:
        return rowed(tuple(shape), value.axis, value.entries)
    kept = tuple(each for place, each in enumerate(shape) if place not in gone)
    return rowed(kept, value.axis and value.axis - sum(axis < value.axis for axis in gone), value.entries)


def top_k(op: Operation) -> list[Value]:
    """Return the rule of TopK."""
    value, found = op[0], op.shared(1, "number of elements")
    axis = op.axis(-1, value.rank)
    apart(value, [axis])
    known = op.attributes.get("k")
    unknown = (found and found.single) or op.symbols.dimension("count", op)
    count = size(known) if isinstance(known, int) else unknown
    shape = (*value.sizes[:axis], count, *value.sizes[axis + 1 :])
    return [rowed(shape, value.axis, value.entries)] * 2


def cumulative(op: Operation) -> list[Value]:
    """Return the rule of CumSum."""
    value, axes = op[0], op.integers(1, role="axis") or [0]
    apart(value, [from_left(axis, value.rank) for axis in axes])
    return [like(value)]


def last_two(op: Operation) -> list[Value]:
    """Return the rule of an operator on the last two axes that keeps the shape: Trilu."""
    value = op[0]
    op.shared(1, "diagonal")
    apart(value, [value.rank - 2, value.rank - 1])
    return [like(value)]


def quantize(op: Operation) -> list[Value]:
    """Return the rule of QuantizeLinear and DequantizeLinear with constant scales."""
    value, scale = op[0], op.shared(1, "scale")
    op.shared(2, "zero point")
    if scale is None or scale.shape is None or scale.rank > 1:
        raise DependentRowsError("its scales are not of one axis")
    if scale.rank == 1 and scale.sizes != (ONE,):
        apart(value, [op.axis(1, value.rank)])
    return [like(value)]


def recurrent(op: Operation) -> list[Value]:
    """Return the rule of LSTM, GRU and RNN; the state of each row is its own."""
    value, first = op[0], bool(op.integer("layout", 0))
    place = 0 if first else 1
    if value.axis != place:
        raise DependentRowsError("its rows are not on the axis of the batch")
    for index in (1, 2, 3, 7):
        op.shared(index, "weights")
    for index, axis in ((4, 0), (5, place), (6, place)):
        state = op.get(index)
        if state is not None and (state.axis, state.entries) != (axis, value.entries):
            raise DependentRowsError("the rows of its state or of its lengths are on another axis")
    directions = size(2 if op.text("direction") == "bidirectional" else 1)
    hidden, length, rows = size(op.integer("hidden_size", 0)), value.sizes[1 - place], value.sizes[place]
    if first:
        every, last = (rows, length, directions, hidden), (rows, directions, hidden)
        return [rowed(every, 0, value.entries), *[rowed(last, 0, value.entries)] * 2]
    every, last = (length, directions, rows, hidden), (directions, rows, hidden)
    return [rowed(every, 2, value.entries), *[rowed(last, 1, value.entries)] * 2]


def reverse_sequence(op: Operation) -> list[Value]:
    """Return the rule of ReverseSequence with a length for each row."""
    value, lengths = op[0], op[1]
    places = (value.axis, value.entries) == (op.axis(1, value.rank, "batch_axis"), lengths.entries)
    if not places or lengths.axis != 0:
        raise DependentRowsError("its lengths are not those of the rows")
    return [like(value)]


def fourier(op: Operation) -> list[Value]:
    """Return the rule of DFT along an axis without rows."""
    value, length = op[0], op.shared(1, "length")
    axes = op.integers(2, "axis", role="axis") or [1 if op.opset < 20 else -2]
    axis = from_left(axes[0], value.rank)
    apart(value, [axis, value.rank - 1])
    known = length.single if length is not None else None
    count = op.symbols.dimension("points", op) if length is not None or op.integer("onesided", 0) else None
    shape = [*value.sizes[:-1], ONE if op.integer("inverse", 0) and op.integer("onesided", 0) else size(2)]
    shape[axis] = (
        shape[axis] if count is None else known if known is not None and not op.integer("onesided", 0) else count
    )
    return [rowed(tuple(shape), value.axis, value.entries)]


def short_time_fourier(op: Operation) -> list[Value]:
    """Return the rule of STFT: a window is the same for every row."""
    value = op[0]
    for index in (1, 2, 3):
        op.shared(index, "window")
    rows_first(value)
    frames, bins = (op.symbols.dimension(part, op) for part in ("frames", "bins"))
    return [rowed((value.sizes[0], frames, bins, size(2)), value.axis, value.entries)]


def quantized_elementwise(op: Operation) -> list[Value]:
    """Return the rule of ONNX Runtime's operators on integers with constant scales: operands 0 and, of two, 3."""
    two = op.node.kind.rpartition("::")[2] in {"QLinearAdd", "QLinearMul"}
    for index in range(1, len(op.inputs)):
        if index != 3 or not two:
            op.shared(index, "parameter")
    return [broadcast(op.symbols, [op[0], op[3]]) if two else like(op[0])]


def quantized_concat(op: Operation) -> list[Value]:
    """Return the rule of QLinearConcat: scale and zero point of the result, then three inputs for each tensor."""
    for index in range(len(op.inputs)):
        if index % 3 != 2:
            op.shared(index, "parameter")
    values = [op[index] for index in range(2, len(op.inputs), 3)]
    return [concatenated(op.symbols, values, op.axis(0, values[0].rank))]


def table(op: Operation) -> list[Value]:
    """Return the rule of estimators on tables [rows, features]: every output has a row for each row."""
    value = op[0]
    if value.axis is None:
        return [Value() for _ in op.node.outputs]
    if value.rank != 2 or value.axis != 0:
        raise DependentRowsError("its input is not a table with the rows first")
    made = [
        rowed((value.sizes[0], op.symbols.dimension("columns", op, name)), 0, value.entries) for name in op.node.outputs
    ]
    if op.node.kind.endswith("Classifier"):
        made[0] = rowed((value.sizes[0],), 0, value.entries)
    return made


def select_features(op: Operation) -> list[Value]:
    """Return the rule of ArrayFeatureExtractor: it selects along the last axis."""
    value, indices = op[0], op[1]
    if value.axis is None and indices.axis is not None:  # each row selects from one table
        chosen = reshaped(op.symbols, indices, [product(indices.sizes)])
        return [rowed((*value.sizes[:-1], chosen.sizes[0]), value.rank - 1, chosen.entries)]
    apart(value, [value.rank - 1])
    if indices.axis is not None or indices.shape is None:
        raise DependentRowsError("its selection is not known, or is that of other rows")
    count = ONE
    for each in indices.shape:
        count *= each
    return [rowed((*value.sizes[:-1], count), value.axis, value.entries)]


def one_hot_features(op: Operation) -> list[Value]:
    """Return the rule of OneHotEncoder: it adds an axis."""
    value = op[0]
    return [rowed((*value.sizes, op.symbols.dimension("categories", op)), value.axis, value.entries)]


def feature_vector(op: Operation) -> list[Value]:
    """Return the rule of FeatureVectorizer: it puts tables side by side."""
    values = [op[index] for index in range(len(op.inputs))]
    if any(value.axis != 0 or value.rank != 2 or value.entries != values[0].entries for value in values):
        raise DependentRowsError("its inputs are not tables with the rows first")
    return [rowed((values[0].sizes[0], op.symbols.dimension("columns", op)), 0, values[0].entries)]
