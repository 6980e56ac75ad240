"""Rules of operators that work element by element, on data and on sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from gateway.serving.domain.rows.sizes import (
    DIMENSION,
    FRACTION,
    NUMBER,
    ONE,
    ZERO,
    DependentRowsError,
    Size,
    Symbols,
    size,
)
from gateway.serving.domain.rows.values import (
    SINGLE,
    Numbers,
    Operation,
    Shape,
    Value,
    few,
    like,
    numbered,
    rowed,
    without_rows,
)

FLOATS, INTEGERS, TRUTH = frozenset({1, 11}), frozenset({6, 7, 12, 13}), 9
"""TensorProto.DataType of floats and integers of 32 and 64 bits, which hold every size, and of truth values."""


def elementwise(op: Operation) -> list[Value]:
    """Return the rule of an operator with any number of operands, which are broadcast."""
    given = [value for value in op.inputs if value is not None]
    known = [value.numbers for value in given if value.numbers is not None]
    if len(known) == len(given) and op.node.kind in SIZES and _few_made(known):
        floats = any(value.floats for value in given)
        return [numbered(computed(op.symbols, op.node.kind, known, floats=floats), floats=floats)]
    return [broadcast(op.symbols, [op[index] for index, value in enumerate(op.inputs) if value is not None])]


def unary(op: Operation) -> list[Value]:
    """Return the rule of an operator on one tensor; other inputs are the same for every row and have no axes of it."""
    for index in range(1, len(op.inputs)):
        shared = op.shared(index, "parameter")
        if shared is not None and shared.shape not in {(), (ONE,)}:
            raise DependentRowsError("a parameter is not a single number")
    return [like(op[0])]


def cast(op: Operation) -> list[Value]:
    """Return the rule of Cast: a fraction becomes an integer of its own, and a truth value is 0 or 1."""
    value, to = op.sizes(0), op.integer("to", 0)
    if value.numbers is None or to not in FLOATS | INTEGERS | {TRUTH}:
        return [like(without_rows(value))]
    numbers = value.numbers
    if to not in FLOATS:
        numbers = computed(op.symbols, "Truth" if to == TRUTH else "Cast", [numbers])
    return [numbered(numbers, floats=to in FLOATS)]


def where(op: Operation) -> list[Value]:
    """Return the rule of Where."""
    given = [op.sizes(index) for index in range(3)]
    known = [value.numbers for value in given if value.numbers is not None]
    if len(known) == 3 and _few_made(known):
        floats = given[1].floats
        return [numbered(computed(op.symbols, "Where", known), floats=floats)]
    return [broadcast(op.symbols, [op[index] for index in range(3)])]


def _few_made(arrays: Sequence[Numbers]) -> bool:
    return few(np.broadcast_shapes(*(each.shape for each in arrays)))


def broadcast(symbols: Symbols, values: Sequence[Value]) -> Value:
    """Return the result of operands that are broadcast.

    The rows of all are on one axis, counted from the right. An operand without rows has size 1 there, or no such axis:
    a constant of size 3 works alone, and not joined. Raises DependentRowsError.
    """
    of_rows = [value for value in values if value.axis is not None]
    if not of_rows and any(value.shape is None for value in values):
        return Value()
    places = {(value.rank - (value.axis or 0), value.entries) for value in of_rows}
    if len(places) > 1:
        raise DependentRowsError("its inputs have their rows on different axes")
    rank = max(value.rank for value in values)
    place, entries = next(iter(places), (0, SINGLE))
    for value in values:
        if place and value.axis is None and value.rank >= place and value.sizes[-place] != ONE:
            raise DependentRowsError("an input without rows has more than one entry on the axis of rows")
    shape = merged_shapes(symbols, [value.sizes for value in values])
    return rowed(shape, rank - place if place else None, entries)


def merged_shapes(symbols: Symbols, shapes: Sequence[Shape]) -> Shape:
    """Return the shape to which all are broadcast. Raises DependentRowsError if two sizes never agree."""
    rank = max(map(len, shapes))
    filled = [(ONE,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    merged = list(filled[0])
    for shape in filled[1:]:
        merged = [_merged(symbols, left, right) for left, right in zip(merged, shape, strict=True)]
    return tuple(merged)


def _merged(symbols: Symbols, left: Size, right: Size) -> Size:
    if right in {left, ONE}:
        return left
    if left == ONE:
        return right
    if left.has_rows or right.has_rows or (left.constant is not None and right.constant is not None):
        raise DependentRowsError("two sizes of its inputs differ, or may differ")
    for one in (left, right):
        if one.constant is not None:
            return one
    return symbols.dimension("broadcast", *sorted((left, right), key=lambda each: each.terms))


def computed(symbols: Symbols, kind: str, arrays: Sequence[Numbers], *, floats: bool = False) -> Numbers:
    """Return sizes that an operator computes from sizes. Raises DependentRowsError for a function of the rows."""

    def one(*sizes: Size) -> Size:
        found = SIZES[kind](sizes, floats)
        return symbols.symbol(_kind_of(kind, sizes, floats), kind, *sizes) if found is None else found

    function = np.frompyfunc(one, len(arrays), 1)
    return np.asarray(function(*arrays), object)


def _kind_of(kind: str, sizes: Sequence[Size], floats: bool) -> str:
    if kind in COMPARISONS:
        return DIMENSION
    if floats and kind not in {"Floor", "Ceil", "Round"}:
        return FRACTION
    is_count = all((each + ONE).is_positive for each in sizes) and kind not in {"Sub", "Neg", "Where"}
    return DIMENSION if is_count else NUMBER


Arithmetic = Callable[[Sequence[Size], bool], Size | None]
"""Function of sizes, of a type with fractions or not; None: no polynomial."""


def _folded(function: Callable[[Size, Size], Size]) -> Arithmetic:
    def fold(sizes: Sequence[Size], floats: bool) -> Size:
        total = sizes[0]
        for each in sizes[1:]:
            total = function(total, each)
        return total

    return fold


def _divided(sizes: Sequence[Size], floats: bool) -> Size | None:
    quotient = sizes[0].divided(sizes[1])
    left, right = sizes[0].constant, sizes[1].constant
    if quotient is None and not floats and left is not None and right:
        return size(abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1))
    return quotient


def _rounded_down(sizes: Sequence[Size], floats: bool) -> Size | None:
    left, right = sizes[0].constant, sizes[1].constant
    return sizes[0].divided(sizes[1]) if floats or left is None or not right else size(left // right)


def _remainder(sizes: Sequence[Size], floats: bool) -> Size | None:
    """Return a remainder of numbers of 0 or more: the attribute `fmod` decides its sign only below."""
    left, right = sizes[0].constant, sizes[1].constant
    return None if left is None or right is None or left < 0 or right <= 0 else size(left % right)


def _extreme(sign: int) -> Arithmetic:
    def extreme(sizes: Sequence[Size], floats: bool) -> Size | None:
        found = sizes[0]
        for each in sizes[1:]:
            if ((found - each) * sign + ONE).is_positive:
                continue
            if not ((each - found) * sign + ONE).is_positive:
                return None
            found = each
        return found

    return extreme


def _constant(function: Callable[..., int]) -> Arithmetic:
    def constant(sizes: Sequence[Size], floats: bool) -> Size | None:
        numbers = [each.constant for each in sizes]
        return None if any(number is None for number in numbers) else size(int(function(*numbers)))

    return constant


def _compared(*, less: bool, equal: bool, greater: bool) -> Arithmetic:
    """Return a comparison; it is decided where one side is larger for every size."""

    def compare(sizes: Sequence[Size], floats: bool) -> Size | None:
        apart = sizes[0] - sizes[1]
        if apart == ZERO:
            return size(equal)
        if apart.is_positive or (apart.constant or 0) > 0:
            return size(greater)
        return size(less) if (apart * -1).is_positive else None

    return compare


def _selected(sizes: Sequence[Size], floats: bool) -> Size | None:
    condition, chosen, other = sizes
    if condition.constant is not None:
        return chosen if condition.constant else other
    return chosen if chosen == other else None


def _truth(sizes: Sequence[Size], floats: bool) -> Size | None:
    if sizes[0].constant is not None:
        return size(sizes[0] != ZERO)
    return ONE if sizes[0].is_positive else None


def _whole(sizes: Sequence[Size], floats: bool) -> Size | None:
    return sizes[0] if sizes[0].is_integer else None


COMPARISONS: Mapping[str, Arithmetic] = {
    "Equal": _compared(less=False, equal=True, greater=False),
    "Greater": _compared(less=False, equal=False, greater=True),
    "GreaterOrEqual": _compared(less=False, equal=True, greater=True),
    "Less": _compared(less=True, equal=False, greater=False),
    "LessOrEqual": _compared(less=True, equal=True, greater=False),
    "And": _constant(lambda left, right: left and right),
    "Or": _constant(lambda left, right: left or right),
    "Not": _constant(lambda value: not value),
}
SIZES: Mapping[str, Arithmetic] = {
    **COMPARISONS,
    "Add": _folded(lambda left, right: left + right),
    "Sum": _folded(lambda left, right: left + right),
    "Sub": _folded(lambda left, right: left - right),
    "Mul": _folded(lambda left, right: left * right),
    "Div": _divided,
    "openvino::Divide": _rounded_down,
    "Max": _extreme(1),
    "Min": _extreme(-1),
    "Where": _selected,
    "Cast": _whole,
    "Truth": _truth,
    "Floor": _whole,
    "Ceil": _whole,
    "Round": _whole,
    "Neg": lambda sizes, _floats: sizes[0] * -1,
    "Abs": _constant(abs),
    "Mod": _remainder,
    "Sqrt": lambda _sizes, _floats: None,
    "Pow": lambda _sizes, _floats: None,
}
"""Operators that compute sizes from sizes."""
