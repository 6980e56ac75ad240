"""Rules of operators that select elements by indices: every row by its own, or all rows in the same way."""

from __future__ import annotations

import numpy as np

from gateway.serving.domain.rows.sizes import DependentRowsError
from gateway.serving.domain.rows.values import Operation, Value, numbered, rowed


def gather(op: Operation) -> list[Value]:
    """Return the rule of Gather: rows select from a table, or every row is selected from in the same way."""
    data, indices = op.sizes(0), op[1]
    axis = op.axis(0, data.rank) if data.shape is not None else 0
    if data.numbers is not None and indices.numbers is not None:
        places = [each.constant for each in indices.elements]
        if all(place is not None for place in places):
            taken = np.take(data.numbers, np.reshape(np.asarray(places, int), indices.numbers.shape), axis)
            return [numbered(np.asarray(taken, object), floats=data.floats)]
    data = op[0]
    if data.axis is None and indices.axis is None and (data.shape is None or indices.shape is None):
        return [Value()]
    shape = (*data.sizes[:axis], *indices.sizes, *data.sizes[axis + 1 :])
    if data.axis is None:
        return [rowed(shape, None if indices.axis is None else axis + indices.axis, indices.entries)]
    if indices.axis is not None or data.axis == axis:
        raise DependentRowsError("it selects among the rows")
    place = data.axis if data.axis < axis else data.axis - 1 + indices.rank
    return [rowed(shape, place, data.entries)]


def gather_elements(op: Operation) -> list[Value]:
    """Return the rule of GatherElements: both inputs have their rows on one axis, which it does not index."""
    data, indices = op[0], op[1]
    if (data.axis, data.entries) != (indices.axis, indices.entries) or data.axis == op.axis(0, data.rank):
        raise DependentRowsError("it selects among the rows")
    return [rowed(indices.sizes, indices.axis, indices.entries)]


def gather_nd(op: Operation) -> list[Value]:
    """Return the rule of GatherND: rows select from a table, or each from its own part (`batch_dims`)."""
    data, indices, same = op[0], op[1], op.integer("batch_dims", 0)
    depth = indices.sizes[-1].constant if indices.sizes else None
    if depth is None:
        raise DependentRowsError("the length of its indices is not constant")
    shape = (*indices.sizes[:-1], *data.sizes[same + depth :])
    from_table = data.axis is None and same == 0 and indices.axis != indices.rank - 1
    from_own = (data.axis, data.entries) == (indices.axis, indices.entries) and (data.axis or 0) < same
    if not (from_table or from_own):
        raise DependentRowsError("it selects among the rows")
    return [rowed(shape, indices.axis, indices.entries)]


def scatter_elements(op: Operation) -> list[Value]:
    """Return the rule of ScatterElements: all inputs have their rows on one axis, which it does not index."""
    values = [op[index] for index in range(3)]
    places = {(value.axis, value.entries) for value in values}
    if len(places) > 1 or values[0].axis == op.axis(0, values[0].rank):
        raise DependentRowsError("it writes among the rows")
    return [rowed(values[0].sizes, values[0].axis, values[0].entries)]


def one_hot(op: Operation) -> list[Value]:
    """Return the rule of OneHot."""
    indices, depth = op[0], op.shared(1, "depth")
    op.shared(2, "values")
    axis = op.axis(-1, indices.rank + 1)
    known = depth.single if depth is not None else None
    added = op.symbols.dimension("depth", op) if known is None else known
    shape = (*indices.sizes[:axis], added, *indices.sizes[axis:])
    place = indices.axis if indices.axis is None or indices.axis < axis else indices.axis + 1
    return [rowed(shape, place, indices.entries)]
