"""Rules of operators with bodies: their bodies are followed with the names around them."""

from __future__ import annotations

from dataclasses import replace

from gateway.serving.domain.rows.sizes import DependentRowsError, Size
from gateway.serving.domain.rows.values import Operation, Value, from_left, rowed

ROUNDS_LIMIT = 4
"""Most rounds until what a loop carries is the same before and after its body."""


def branch(op: Operation) -> list[Value]:
    """Return the rule of If: one condition for all rows. Unless it is known, both branches must agree."""
    condition = op.shared(0, "condition")
    known = condition.single.constant if condition is not None and condition.single is not None else None
    if known is not None:
        return op.body(op.graph("then_branch" if known else "else_branch"), {})
    either, other = (op.body(op.graph(name), {}) for name in ("then_branch", "else_branch"))
    return [_agreed(op, *pair, place) for place, pair in enumerate(zip(either, other, strict=True))]


def loop(op: Operation) -> list[Value]:
    """Return the rule of Loop: as many rounds for every row; what it carries keeps its rows."""
    op.shared(0, "number of rounds")
    op.shared(1, "condition")
    graph, carried = op.graph("body"), [op.sizes(index) for index in range(2, len(op.inputs))]
    names = list(graph.inputs)
    for _ in range(ROUNDS_LIMIT):
        fed = dict(zip(names, [Value(()), Value(()), *carried], strict=True))
        (goes_on, *made) = op.body(graph, fed)
        if goes_on.axis is not None or goes_on.counts_rows:
            raise DependentRowsError("the rows decide how often it repeats")
        after = [_agreed(op, *pair, place) for place, pair in enumerate(zip(carried, made, strict=False))]
        if all(map(_same, carried, after)):
            return [*after, *(_stacked(op, value, 0, place) for place, value in enumerate(made[len(carried) :]))]
        carried = after
    raise DependentRowsError("what it carries does not settle")


def scan(op: Operation) -> list[Value]:
    """Return the rule of Scan: it runs along axes without rows."""
    count = op.integer("num_scan_inputs", 0)
    if op.opset < 9 or not 0 < count <= len(op.inputs):
        raise DependentRowsError("it is of an earlier form")
    graph, first = op.graph("body"), len(op.inputs) - count
    carried = [op.sizes(index) for index in range(first)]
    axes = _axes(op, "scan_input_axes", count)
    slices = [_sliced(op[first + place], axis) for place, axis in enumerate(axes)]
    for _ in range(ROUNDS_LIMIT):
        made = op.body(graph, dict(zip(graph.inputs, [*carried, *slices], strict=True)))
        after = [_agreed(op, *pair, place) for place, pair in enumerate(zip(carried, made, strict=False))]
        if all(map(_same, carried, after)):
            results = made[first:]
            places = _axes(op, "scan_output_axes", len(results))
            stacked = [_stacked(op, value, axis, 0) for value, axis in zip(results, places, strict=True)]
            return [*after, *stacked]
        carried = after
    raise DependentRowsError("what it carries does not settle")


def _axes(op: Operation, name: str, count: int) -> list[int]:
    found = op.attributes.get(name)
    return [int(axis) for axis in found] if isinstance(found, tuple) else [0] * count


def _sliced(value: Value, axis: int) -> Value:
    place = from_left(axis, value.rank)
    if place == value.axis:
        raise DependentRowsError("it runs along the axis of rows")
    shape = (*value.sizes[:place], *value.sizes[place + 1 :])
    return rowed(shape, value.axis if value.axis is None or value.axis < place else value.axis - 1, value.entries)


def _stacked(op: Operation, value: Value, axis: int, run: int) -> Value:
    """Return the values of all rounds, stacked on a new axis."""
    place = from_left(axis, value.rank + 1)
    rounds = op.symbols.dimension("rounds", op, run)
    shape = (*value.sizes[:place], rounds, *value.sizes[place:])
    return rowed(shape, value.axis if value.axis is None or value.axis < place else value.axis + 1, value.entries)


def _agreed(op: Operation, one: Value, other: Value, place: int) -> Value:
    """Return a value that is right for both. Raises DependentRowsError if their rows differ."""
    if (one.axis, one.entries) != (other.axis, other.entries):
        raise DependentRowsError("its results have their rows on different axes, or one of them has none")
    if (one.counts_rows or other.counts_rows) and not _same(one, other):
        raise DependentRowsError("it selects a number of rows")
    if one.shape is None or other.shape is None or len(one.shape) != len(other.shape):
        if one.axis is not None:
            raise DependentRowsError("its results differ in their number of dimensions")
        return Value()
    shape = tuple(_size(op, *pair, place, at) for at, pair in enumerate(zip(one.shape, other.shape, strict=True)))
    return replace(
        rowed(shape, one.axis, one.entries), numbers=one.numbers if _same(one, other) else None, floats=one.floats
    )


def _size(op: Operation, one: Size, other: Size, place: int, at: int) -> Size:
    if one == other:
        return one
    if one.has_rows or other.has_rows:
        raise DependentRowsError("its results have different numbers of rows")
    return op.symbols.dimension("either", op, place, at)


def _same(one: Value, other: Value) -> bool:
    if (one.shape, one.axis, one.entries, one.numbers is None) != (
        other.shape,
        other.axis,
        other.entries,
        other.numbers is None,
    ):
        return False
    return one.elements == other.elements
