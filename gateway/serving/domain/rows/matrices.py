"""Rules of matrix products: rows of one operand are never multiplied with rows of the other."""

from __future__ import annotations

from gateway.serving.domain.rows.elementwise import broadcast, merged_shapes
from gateway.serving.domain.rows.sizes import ONE, DependentRowsError, Size, Symbols
from gateway.serving.domain.rows.values import Operation, Value, apart, rowed


def mat_mul(op: Operation) -> list[Value]:
    """Return the rule of MatMul and of its forms on integers, whose other inputs are scales and zero points."""
    for index in range(2, len(op.inputs)):
        op.shared(index, "parameter")
    if op.integer("transBatchA", 0) or op.integer("transBatchB", 0):
        raise DependentRowsError("it moves the leading axis")
    left = _turned(op[0]) if op.integer("transA", 0) else op[0]
    right = _turned(op[1]) if op.integer("transB", 0) else op[1]
    return [multiplied(op.symbols, left, right)]


def quantized_mat_mul(op: Operation) -> list[Value]:
    """Return the rule of QLinearMatMul, whose operands are its inputs 0 and 3."""
    for index in (1, 2, 4, 5, 6, 7):
        op.shared(index, "parameter")
    return [multiplied(op.symbols, op[0], op[3])]


def _turned(value: Value) -> Value:
    last = value.rank - 1
    shape = (*value.sizes[:-2], value.sizes[-1], value.sizes[-2])
    axis = {last: last - 1, last - 1: last}.get(-1 if value.axis is None else value.axis, value.axis)
    return rowed(shape, axis, value.entries)


def multiplied(symbols: Symbols, left: Value, right: Value) -> Value:
    """Return a matrix product: the sum does not run over rows, and both sides have rows on leading axes only."""
    if left.axis is None and right.axis is None and (left.shape is None or right.shape is None):
        return Value()
    if left.rank < 2 or right.rank < 2:
        if right.rank != 1 or right.axis is not None or left.rank < 2:
            if left.axis is None and right.axis is None:
                return Value()
            raise DependentRowsError("it multiplies with a vector")
        apart(left, [left.rank - 1])
        return rowed(left.sizes[:-1], left.axis, left.entries)
    apart(left, [left.rank - 1])
    apart(right, [right.rank - 2])
    if left.axis == left.rank - 2 or right.axis == right.rank - 1:
        if None not in {left.axis, right.axis}:
            raise DependentRowsError("it multiplies the rows of both operands with each other")
        one = left if right.axis is None else right
        leading = merged_shapes(symbols, [left.sizes[:-2], right.sizes[:-2]])
        shape = (*leading, left.sizes[-2], right.sizes[-1])
        return rowed(shape, len(shape) - (2 if one is left else 1), one.entries)
    stacks = [rowed(value.sizes[:-2], value.axis, value.entries) for value in (left, right)]
    stack = broadcast(symbols, stacks)
    return rowed((*stack.sizes, left.sizes[-2], right.sizes[-1]), stack.axis, stack.entries)


def gemm(op: Operation) -> list[Value]:
    """Return the rule of Gemm, and of QGemm, whose operands are its inputs 0, 3 and 6."""
    places = (0, 3, 6) if op.node.kind.endswith("::QGemm") else (0, 1, 2)
    for index in range(len(op.inputs)):
        if index not in places:
            op.shared(index, "parameter")
    left = _turned(op[places[0]]) if op.integer("transA", 0) else op[places[0]]
    right = _turned(op[places[1]]) if op.integer("transB", 0) else op[places[1]]
    made = multiplied(op.symbols, left, right)
    added = op.get(places[2])
    return [made if added is None else broadcast(op.symbols, [made, op[places[2]]])]


def einsum(op: Operation) -> list[Value]:
    """Return the rule of Einsum: rows have one letter, which only operands with rows have, and it stays."""
    terms, arrow, result = op.text("equation").replace(" ", "").partition("->")
    operands = terms.split(",")
    values = [op[index] for index in range(len(op.inputs))]
    if "." in terms or not arrow or len(operands) != len(values):
        raise DependentRowsError("its equation has an ellipsis or no result")
    if any(
        len(letters) != value.rank or len(set(letters)) != len(letters)
        for letters, value in zip(operands, values, strict=True)
    ):
        raise DependentRowsError("its equation does not fit its inputs")
    of_rows = {
        (letters[value.axis], value.entries)
        for letters, value in zip(operands, values, strict=True)
        if value.axis is not None
    }
    sizes: dict[str, Size] = {}
    for letters, value in zip(operands, values, strict=True):
        for letter, each in zip(letters, value.sizes, strict=True):
            sizes[letter] = merged_shapes(op.symbols, [(sizes.get(letter, ONE),), (each,)])[0]
    if not of_rows:
        return [Value(tuple(sizes[letter] for letter in result))]
    (row, entries), *more = of_rows
    alien = any(row in letters for letters, value in zip(operands, values, strict=True) if value.axis is None)
    if more or alien or result.count(row) != 1:
        raise DependentRowsError("it sums over the rows, or multiplies them with each other")
    return [rowed(tuple(sizes[letter] for letter in result), result.index(row), entries)]
