"""Rules of operators that move, select or repeat elements, on data and on sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gateway.serving.domain.rows.elementwise import merged_shapes
from gateway.serving.domain.rows.graph import Constant
from gateway.serving.domain.rows.sizes import ONE, ROWS, DependentRowsError, Size, Symbols, product, size
from gateway.serving.domain.rows.values import (
    Entries,
    Operation,
    Shape,
    Value,
    array_of,
    constant_value,
    few,
    from_left,
    numbered,
    rowed,
)

TO_THE_END = 10**6
"""Least end of a slice that means the whole axis: exporters write 2^31 − 1, 2^63 − 1 or 10^9."""
ENTRIES_LIMIT = 900
"""Most entries of a row for which TO_THE_END is longer than the axis of rows (of at most 1,024 rows)."""
WHOLE_END = 2**31 - 1
"""Least end that is longer than any axis."""


def identity(op: Operation) -> list[Value]:
    """Return the rule of an operator that passes its first input on."""
    return [op.sizes(0)]


def shape_of(op: Operation) -> list[Value]:
    """Return the rule of Shape."""
    value = op.sizes(0)
    if value.shape is None:
        return [Value()]
    end = op.integer("end", len(value.shape))
    return [numbered(array_of(value.shape[op.integer("start", 0) : end]))]


def size_of(op: Operation) -> list[Value]:
    """Return the rule of Size."""
    return [numbered(np.asarray(product(op.sizes(0).sizes), object))]


def reshape(op: Operation) -> list[Value]:
    """Return the rule of Reshape."""
    value, target = op.sizes(0), op.numbers(1, "shape", role="target")
    if target is None:
        raise DependentRowsError("its target is missing")
    if op.integer("allowzero", 0) != 1:
        target = [
            value.sizes[place] if each.constant == 0 and place < value.rank else each
            for place, each in enumerate(target)
        ]
    return [reshaped(op.symbols, value, target)]


def flatten(op: Operation) -> list[Value]:
    """Return the rule of Flatten."""
    value = op[0]
    axis = op.integer("axis", 1) % max(1, value.rank) if op.integer("axis", 1) < value.rank else value.rank
    return [reshaped(op.symbols, value, [product(value.sizes[:axis]), product(value.sizes[axis:])])]


def reshaped(symbols: Symbols, value: Value, target: Sequence[Size]) -> Value:
    """Return a tensor in another shape.

    Each row stays in blocks of its own if the product of the sizes before them, groups included, stays equal. Raises
    DependentRowsError.
    """
    shape = _resolved(symbols, value, target)
    if value.axis is None:
        numbers = [each.constant for each in shape]
        if value.numbers is None or any(number is None for number in numbers):
            if value.counts_rows:
                raise DependentRowsError("a shape computed with the number of rows is not known")
            return rowed(shape, None)
        return replace(value, shape=shape, numbers=value.numbers.reshape([number or 0 for number in numbers]))
    before, prefix = product(value.sizes[: value.axis]) * value.entries.outer, ONE
    for place, each in enumerate(shape):
        if not each.has_rows:
            prefix *= each
            continue
        outer, both = before.divided(prefix), each.divided(ROWS)
        inner = both.divided(outer) if both is not None and outer is not None else None
        if outer is None or inner is None:
            break
        return rowed(shape, place, Entries(outer, inner))
    raise DependentRowsError("its result has the rows among other sizes")


def _resolved(symbols: Symbols, value: Value, target: Sequence[Size]) -> Shape:
    """Return the target with its −1 replaced."""
    if size(-1) not in target:
        return tuple(target)
    if value.shape is None:
        return tuple(symbols.dimension(value, place) if each == size(-1) else each for place, each in enumerate(target))
    total, rest = product(value.shape), product(each for each in target if each != size(-1))
    missing = total.divided(rest)
    if missing is None:
        missing = _symbolic_quotient(symbols, value, total, rest)
    return tuple(missing if each == size(-1) else each for each in target)


def _symbolic_quotient(symbols: Symbols, value: Value, total: Size, rest: Size) -> Size:
    """Return a size that is whole for any row that runs alone, although it does not show in the symbols."""
    factor = ONE
    if value.axis is not None:
        total, factor = total.divided(ROWS) or total, ROWS
        if (of_rows := rest.divided(ROWS)) is not None and rest.has_rows:
            rest, factor = of_rows, ONE
    if total.constant is not None and rest.constant is not None:
        raise DependentRowsError(f"{total.constant} elements of a row do not divide into {rest.constant}")
    return factor * symbols.dimension("reshape", total, rest)


def transpose(op: Operation) -> list[Value]:
    """Return the rule of Transpose."""
    value = op.sizes(0)
    found = op.attributes.get("perm")
    order = [int(axis) for axis in found] if isinstance(found, tuple) else list(range(value.rank))[::-1]
    shape = tuple(value.sizes[axis] for axis in order)
    if value.numbers is not None:
        return [replace(value, shape=shape, numbers=value.numbers.transpose(order))]
    return [rowed(shape, None if value.axis is None else order.index(value.axis), value.entries)]


def squeeze(op: Operation) -> list[Value]:
    """Return the rule of Squeeze. Without axes, what it removes depends on the number of rows."""
    value, axes = op.sizes(0), op.integers(1, "axes", role="axes")
    if axes is None:
        if value.axis is not None or any(each.constant is None for each in value.sizes):
            raise DependentRowsError("it removes the axes that have size 1, and names none")
        axes = [place for place, each in enumerate(value.sizes) if each == ONE]
    gone = {from_left(axis, value.rank) for axis in axes}
    if value.axis in gone:
        raise DependentRowsError("it removes the axis of rows")
    shape = tuple(each for place, each in enumerate(value.sizes) if place not in gone)
    if value.numbers is not None:
        return [replace(value, shape=shape, numbers=np.asarray(value.numbers.squeeze(tuple(gone)), object))]
    return [rowed(shape, value.axis and value.axis - sum(axis < value.axis for axis in gone), value.entries)]


def unsqueeze(op: Operation) -> list[Value]:
    """Return the rule of Unsqueeze."""
    value, axes = op.sizes(0), op.integers(1, "axes", role="axes") or []
    rank = value.rank + len(axes)
    added = {from_left(axis, rank) for axis in axes}
    sizes = iter(value.sizes)
    shape = tuple(ONE if place in added else next(sizes) for place in range(rank))
    if value.numbers is not None:
        return [replace(value, shape=shape, numbers=np.expand_dims(value.numbers, tuple(added)))]
    kept = [place for place in range(rank) if place not in added]
    return [rowed(shape, None if value.axis is None else kept[value.axis], value.entries)]


def concat(op: Operation) -> list[Value]:
    """Return the rule of Concat."""
    values = [op.sizes(index) for index in range(len(op.inputs))]
    known = [value.numbers for value in values if value.numbers is not None]
    if len(known) == len(values) and values[0].shape:
        return [numbered(np.concatenate(known, axis=op.integer("axis", 0)), floats=values[0].floats)]
    values = [op[index] for index in range(len(op.inputs))]
    if all(value.axis is None for value in values) and any(value.shape is None for value in values):
        return [Value()]
    axis = op.axis(0, values[0].rank)
    return [concatenated(op.symbols, values, axis)]


def concatenated(symbols: Symbols, values: Sequence[Value], axis: int) -> Value:
    """Return tensors one after the other along an axis, which must not be that of the rows."""
    first = values[0]
    if any((value.axis, value.entries, value.rank) != (first.axis, first.entries, first.rank) for value in values):
        raise DependentRowsError("its inputs have their rows on different axes, or one of them has no rows")
    if first.axis == axis:
        raise DependentRowsError("it puts tensors one after the other along the axis of rows")
    long = ONE * 0
    for value in values:
        long += value.sizes[axis]
    others = merged_shapes(symbols, [(*value.sizes[:axis], ONE, *value.sizes[axis + 1 :]) for value in values])
    return rowed((*others[:axis], long, *others[axis + 1 :]), first.axis, first.entries)


def split(op: Operation) -> list[Value]:
    """Return the rule of Split."""
    value, count = op.sizes(0), len(op.node.outputs)
    axis, sizes = op.axis(0, value.rank), op.numbers(1, "split", role="split")
    if axis == value.axis:
        raise DependentRowsError("it splits the axis of rows")
    if sizes is None:
        sizes = _equal_parts(op.symbols, value.sizes[axis], count)
    if value.numbers is not None:
        ends = np.cumsum([each.constant or 0 for each in sizes])
        return [numbered(each, floats=value.floats) for each in np.split(value.numbers, ends[:-1], axis)]
    shapes = [(*value.sizes[:axis], each, *value.sizes[axis + 1 :]) for each in sizes]
    return [rowed(shape, value.axis, value.entries) for shape in shapes]


def _equal_parts(symbols: Symbols, whole: Size, count: int) -> list[Size]:
    if whole.constant is None:
        return [whole.divided(size(count)) or symbols.dimension("split", whole, size(count))] * count
    part = -(-whole.constant // count)
    return [size(part)] * (count - 1) + [size(whole.constant - part * (count - 1))]


def slice_of(op: Operation) -> list[Value]:
    """Return the rule of Slice: the whole axis of rows stays."""
    value = op.sizes(0)
    starts, ends = op.numbers(1, "starts", role="start"), op.numbers(2, "ends", role="end")
    if starts is None or ends is None:
        raise DependentRowsError("its bounds are missing")
    axes = op.integers(3, "axes", role="axes")
    axes = list(range(len(starts))) if axes is None else axes
    steps = op.integers(4, role="step") or [1] * len(starts)
    shape, cuts = list(value.sizes), [slice(None)] * value.rank
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        place = from_left(axis, value.rank)
        if place == value.axis and not _is_whole(value, start, end, step):
            raise DependentRowsError("it takes some of the rows")
        shape[place] = _slice_size(op.symbols, shape[place], start, end, step)
        cuts[place] = slice(_bound(start), _bound(end), step)
    if value.numbers is not None:
        if any(bound.constant is None for bound in (*starts, *ends)):
            raise DependentRowsError("its bounds are not constant")
        return [numbered(value.numbers[tuple(cuts)], floats=value.floats)]
    return [rowed(tuple(shape), value.axis, value.entries)]


def _bound(bound: Size) -> int | None:
    """Return a bound as numpy takes it; a far one that exporters write for "to the end" is None."""
    return bound.constant if bound.constant is None or abs(bound.constant) < WHOLE_END else None


def _is_whole(value: Value, start: Size, end: Size, step: int) -> bool:
    if start.constant != 0 or step != 1:
        return False
    if end == value.sizes[value.axis or 0] or (end.constant or 0) >= WHOLE_END:
        return True
    return (end.constant or 0) >= TO_THE_END and 0 < (
        (value.entries.outer * value.entries.inner).constant or 0
    ) <= ENTRIES_LIMIT


def _slice_size(symbols: Symbols, whole: Size, start: Size, end: Size, step: int) -> Size:
    if start.constant == 0 and step == 1 and (end == whole or (end.constant or 0) >= TO_THE_END):
        return whole
    numbers = whole.constant, start.constant, end.constant
    if numbers[0] is not None and numbers[1] is not None and numbers[2] is not None:
        return size(len(range(*slice(numbers[1], numbers[2], step).indices(numbers[0]))))
    return symbols.dimension("slice", whole, start, end, step)


def expand(op: Operation) -> list[Value]:
    """Return the rule of Expand: equal rows are made of what has none."""
    value, target = op.sizes(0), op.numbers(1, role="target") or []
    if value.counts_rows:
        raise DependentRowsError("it repeats the number of rows")
    shape = merged_shapes(op.symbols, [value.sizes, tuple(target)])
    constants = [each.constant for each in shape]
    if value.numbers is not None and few(constants):
        return [numbered(np.broadcast_to(value.numbers, [each or 0 for each in constants]), floats=value.floats)]
    if value.axis is not None:
        return [rowed(shape, len(shape) - value.rank + value.axis, value.entries)]
    return [_equal_rows(shape)]


def _equal_rows(shape: Shape) -> Value:
    """Return a tensor that is the same along the axis that counts rows, if there is one."""
    places = [place for place, each in enumerate(shape) if each.has_rows]
    if not places:
        return rowed(shape, None)
    entries = shape[places[0]].divided(ROWS)
    if entries is None:
        raise DependentRowsError("a size is not a multiple of the number of rows")
    return rowed(shape, places[0], Entries(inner=entries))


def tile(op: Operation) -> list[Value]:
    """Return the rule of Tile: what has no rows is repeated for each."""
    value, repeats = op.sizes(0), op.numbers(1, role="repeats") or []
    constants = [each.constant for each in repeats]
    if value.numbers is not None and few([*constants, value.numbers.size]):
        return [numbered(np.tile(value.numbers, [each or 0 for each in constants]), floats=value.floats)]
    if value.counts_rows:
        raise DependentRowsError("it repeats the number of rows")
    if value.axis is not None and repeats[value.axis] != ONE:
        raise DependentRowsError("it repeats the rows")
    shape = tuple(each * times for each, times in zip(value.sizes, repeats, strict=True))
    return [_equal_rows(shape) if value.axis is None else rowed(shape, value.axis, value.entries)]


def filled(op: Operation) -> list[Value]:
    """Return the rule of ConstantOfShape."""
    target = op.numbers(0, role="shape") or []
    found = op.attributes.get("value")
    value = constant_value(op.symbols, found if isinstance(found, Constant) else Constant((1,), (0.0,), floats=True))
    constants = [each.constant for each in target]
    if value.numbers is not None and few(constants):
        return [
            numbered(np.broadcast_to(value.numbers.ravel()[0], [each or 0 for each in constants]), floats=value.floats)
        ]
    return [_equal_rows(tuple(target))]


def numbers_from(op: Operation) -> list[Value]:
    """Return the rule of Range."""
    bounds = [op.shared(index, "bound") for index in range(3)]
    known = [value.single if value is not None else None for value in bounds]
    constants = [each.constant for each in known if each is not None and each.constant is not None]
    if len(constants) == 3:
        found = range(constants[0], constants[1], constants[2])
        return [numbered(array_of(list(map(size, found)))) if few([len(found)]) else Value((size(len(found)),))]
    return [Value((op.symbols.dimension("range", op if None in known else "", *known),))]


def pad(op: Operation) -> list[Value]:
    """Return the rule of Pad."""
    value, pads = op[0], op.numbers(1, "pads", role="padding")
    op.shared(2, "value")
    axes = op.integers(3, role="axes")
    axes = list(range(value.rank)) if axes is None else axes
    if pads is None or len(pads) != 2 * len(axes):
        raise DependentRowsError("its padding does not fit its input")
    shape = list(value.sizes)
    for axis, before, after in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        place = from_left(axis, value.rank)
        if place == value.axis and (before, after) != (ONE * 0, ONE * 0):
            raise DependentRowsError("it adds entries to the axis of rows")
        shape[place] = shape[place] + before + after
    return [rowed(tuple(shape), value.axis, value.entries)]


def resize(op: Operation) -> list[Value]:
    """Return the rule of Resize and Upsample: the axis of rows keeps its size."""
    value = op[0]
    if op.text("coordinate_transformation_mode") == "tf_crop_and_resize":
        raise DependentRowsError("it crops a region")
    if op.text("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise DependentRowsError("its sizes follow from each other")
    found = op.attributes.get("axes")
    axes = [from_left(int(axis), value.rank) for axis in found] if isinstance(found, tuple) else list(range(value.rank))
    scales = op.numbers(1 if op.node.kind == "Upsample" or op.opset < 11 else 2, "scales", role="scale") or []
    sizes = op.numbers(3, role="size") or []
    interpolates = op.text("mode", "nearest") != "nearest"
    if interpolates and value.axis is not None and not (value.axis == 0 and value.rank >= 4):
        raise DependentRowsError("it interpolates along the axis of rows: a neighbour that is NaN counts 0 times NaN")
    shape = list(value.sizes)
    for place, scale in zip(axes, scales, strict=len(sizes) == 0):
        same = scale == ONE
        shape[place] = shape[place] if same else _scaled(op.symbols, shape[place], scale)
    for place, each in zip(axes, sizes, strict=len(scales) == 0):
        shape[place] = each
    return [rowed(tuple(shape), value.axis, value.entries)]


def _scaled(symbols: Symbols, whole: Size, scale: Size) -> Size:
    if whole.has_rows:
        raise DependentRowsError("it resizes the axis of rows")
    return whole * scale if scale.is_integer else symbols.dimension("scale", whole, scale)
