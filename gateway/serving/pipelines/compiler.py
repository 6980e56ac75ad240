"""Expressions of a pipeline compiled to functions on arrays. Pure."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gateway.common.domain.errors import suggest
from gateway.common.domain.expressions import FLAGS, ExpressionError
from gateway.common.domain.tensor import Array
from gateway.serving.pipelines.columns import (
    FLAG,
    FLAG_TYPE,
    IMAGE,
    NUMBER,
    NUMBER_TYPE,
    TEXT,
    TEXT_TYPE,
    ColumnType,
    ColumnValue,
    Evaluate,
    RowSet,
    StepError,
    Values,
    common_rows,
    lifted,
)

TEXT_LIMIT_BYTES = 1_048_576
"""Largest text that an expression makes."""
TEXTS_LIMIT_BYTES = 16 * 1_048_576
"""Largest sum of the texts that an expression makes for all rows of a request."""

Function = Callable[["Compiler", ast.Call, list[ast.expr], dict[str, ast.expr]], ColumnValue]
"""Function of expressions: it takes its arguments and keywords out of the call, and returns the value."""


@dataclass(slots=True)
class ExpressionNames:
    """Names that an expression may use: columns by step and name, columns by bare name, and rows by step.

    `near`: further names, for suggestions.
    """

    columns: Callable[[str, str], ColumnValue | None]
    bare: Mapping[str, ColumnValue] = field(default_factory=dict)
    rows: Mapping[str, RowSet] = field(default_factory=dict)
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    known: Callable[[str], Sequence[str]] = lambda _step: ()
    near: Sequence[str] = ()


class Compiler:
    """Compiler of one expression. Raises ExpressionError where types do not fit."""

    def __init__(self, text: str, scope: ExpressionNames, functions: Mapping[str, Function]) -> None:
        self.words, self.scope, self._functions = text, scope, functions

    def value(self, node: ast.expr) -> ColumnValue:
        """Return the value of a node that must be there for each row."""
        value = self.optional(node)
        if value.type.optional:
            what = "may be absent, because its step skips rows"
            raise self.error(node, f"{what}; write default({ast.unparse(node)}, …), or give the step an 'else'")
        return value

    def optional(self, node: ast.expr) -> ColumnValue:
        """Return the value of a node, which may be absent in some rows."""
        kind = type(node).__name__.lower()
        value: ColumnValue = getattr(self, f"_{kind}")(node)
        return value

    def error(self, node: ast.AST, problem: str) -> ExpressionError:
        """Return the refusal of a node."""
        return ExpressionError(self.words, problem, node)

    def _constant(self, node: ast.Constant) -> ColumnValue:
        constant = node.value
        if isinstance(constant, bool):
            return ColumnValue(FLAG_TYPE, None, lambda _: constant)
        if isinstance(constant, str):
            raw = constant.encode(errors="surrogatepass")
            return ColumnValue(TEXT_TYPE, None, lambda _: raw)
        number = float(constant)  # type: ignore[arg-type]  # the parser lets no other constants through
        return ColumnValue(NUMBER_TYPE, None, lambda _: number)

    def _name(self, node: ast.Name) -> ColumnValue:
        if node.id in FLAGS:
            flag = FLAGS[node.id]
            return ColumnValue(FLAG_TYPE, None, lambda _: flag)
        if (value := self.scope.bare.get(node.id)) is not None:
            return value
        columns = self.scope.known(node.id)
        if columns:
            raise self.error(node, f"is a step; name one of its columns: {', '.join(columns)}")
        known = [*self.scope.bare, *self.scope.rows, *self.scope.near]
        raise self.error(node, f"is no input, column or earlier step{suggest(node.id, known)}")

    def _attribute(self, node: ast.Attribute) -> ColumnValue:
        step = node.value.id if isinstance(node.value, ast.Name) else ""
        value = self.scope.columns(step, node.attr)
        if value is None:
            columns = self.scope.known(step)
            if not columns:
                raise self.error(node, f"'{step}' is no earlier step{suggest(step, self.scope.rows)}")
            raise self.error(node, f"step '{step}' has no column '{node.attr}'; it has {', '.join(columns)}")
        return value

    def _boolop(self, node: ast.BoolOp) -> ColumnValue:
        join = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
        values = [self.flag(each) for each in node.values]
        return self.joined(node, values, FLAG_TYPE, lambda *flags: join.reduce(np.broadcast_arrays(*flags)))

    def _unaryop(self, node: ast.UnaryOp) -> ColumnValue:
        if isinstance(node.op, ast.Not):
            return self.joined(node, [self.flag(node.operand)], FLAG_TYPE, np.logical_not)
        value = self.number(node.operand)
        return self.joined(node, [value], fp64(value.type), lambda number: np.negative(number, dtype=np.float64))

    def _binop(self, node: ast.BinOp) -> ColumnValue:
        operation = _OPERATIONS[type(node.op)]
        left, right = self.value(node.left), self.value(node.right)
        are_texts = left.type.kind == right.type.kind == TEXT and not (left.type.shape or right.type.shape)
        if isinstance(node.op, ast.Add) and are_texts:
            return self.joined(node, [left, right], TEXT_TYPE, _concatenated)
        left, right = self._number(node.left, left), self._number(node.right, right)
        divides = isinstance(node.op, ast.Div | ast.Mod)
        return self.joined(
            node,
            [left, right],
            self.broadcast(node, left, right),
            lambda a, b: operation(a, b, dtype=np.float64),
            divides=divides,
        )

    def _compare(self, node: ast.Compare) -> ColumnValue:
        operator, other = node.ops[0], node.comparators[0]
        left = _exact(node.left, self.value(node.left))
        if isinstance(operator, ast.In | ast.NotIn):
            return self._among(node, left, other, negated=isinstance(operator, ast.NotIn))
        right = _exact(other, self.value(other))
        if left.type.kind != right.type.kind or left.type.kind == IMAGE:
            raise self.error(node, f"compares {left.type.words} with {right.type.words}")
        equality = isinstance(operator, ast.Eq | ast.NotEq)
        if left.type.kind != NUMBER and not equality:
            raise self.error(node, f"orders {left.type.words}; only numbers have an order")
        if left.type.shape or right.type.shape:
            raise self.error(node, "compares lists of numbers; name one with [index], or use a function")
        return self.joined(node, [left, right], FLAG_TYPE, _COMPARISONS[type(operator)])

    def _among(self, node: ast.Compare, left: ColumnValue, other: ast.expr, *, negated: bool) -> ColumnValue:
        if not isinstance(other, ast.List):
            raise self.error(other, "'in' needs a list of constants, such as ['car', 'truck']")
        constants = [_exact(each, self.value(each)) for each in other.elts]
        if left.type.shape or any(each.rows is not None or each.type.kind != left.type.kind for each in constants):
            raise self.error(other, f"must list constants of the kind {left.type.kind}")
        listed = [each.of([]) for each in constants]
        among = frozenset(listed)
        if left.type.kind == TEXT:
            found = np.frompyfunc(lambda text: (text in among) != negated, 1, 1)
            return self.joined(node, [left], FLAG_TYPE, lambda texts: np.asarray(found(texts), bool))
        return self.joined(node, [left], FLAG_TYPE, lambda numbers: np.isin(numbers, listed, invert=negated))

    def _ifexp(self, node: ast.IfExp) -> ColumnValue:
        when, then, other = self.flag(node.test), self.value(node.body), self.value(node.orelse)
        if then.type.kind != other.type.kind or then.type.kind == IMAGE:
            raise self.error(node, f"is {then.type.words} or {other.type.words}; both must be of one kind")
        if then.type.kind != NUMBER and then.type.shape != other.type.shape:
            raise self.error(node, f"is {then.type.words} or {other.type.words}; both must be of one shape")
        of_type = self.broadcast(node, then, other) if then.type.kind == NUMBER else then.type

        def chosen(flag: Any, first: Any, second: Any) -> Any:
            flag = np.asarray(flag)
            deep = max(np.ndim(first), np.ndim(second)) if of_type.shape else 1
            found = np.where(flag.reshape(flag.shape + (1,) * (deep - flag.ndim)) if flag.ndim else flag, first, second)
            return found.astype(object) if of_type.kind == TEXT else found

        return self.joined(node, [when, then, other], of_type, chosen)

    def _subscript(self, node: ast.Subscript) -> ColumnValue:
        value, place = self.number(node.value), node.slice
        negative = isinstance(place, ast.UnaryOp) and isinstance(place.op, ast.USub)
        constant = place.operand if isinstance(place, ast.UnaryOp) and negative else place
        if not value.type.shape or not isinstance(constant, ast.Constant) or type(constant.value) is not int:
            raise self.error(node, "needs a list of numbers before [ and a whole number in it")
        index = -constant.value if negative else constant.value
        size = value.type.shape[0]
        if size >= 0 and not -size <= index < size:
            raise self.error(node, f"has {size} values; {index} is not one of them")
        if size < 0:
            raise self.error(node, "has no fixed number of values: none can be named by its place")
        of_type = replace(value.type, shape=value.type.shape[1:])
        return self.joined(node, [value], of_type, lambda column: column[:, index])

    def _list(self, node: ast.List) -> ColumnValue:
        raise self.error(node, "a list belongs after 'in'")

    def _call(self, node: ast.Call) -> ColumnValue:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        function = self._functions.get(name)
        if function is None:
            raise self.error(node, f"no function is called '{name}'{suggest(name, self._functions)}")
        keywords = {keyword.arg or "": keyword.value for keyword in node.keywords}
        value = function(self, node, node.args, keywords)
        if keywords:
            raise self.error(node, f"{name} has no '{next(iter(keywords))}'")
        return value

    # ---- parts of the functions --------------------------------------------------------------------------------------
    def flag(self, node: ast.expr) -> ColumnValue:
        """Return the value of a node that must be a flag."""
        value = self.value(node)
        if value.type.kind != FLAG or value.type.shape:
            raise self.error(node, f"is {value.type.words}; here it must be true or false, such as a comparison")
        return value

    def number(self, node: ast.expr) -> ColumnValue:
        """Return the value of a node that must be a number, or numbers; a flag is 0 or 1."""
        return self._number(node, self.value(node))

    def _number(self, node: ast.expr, value: ColumnValue) -> ColumnValue:
        if value.type.kind == FLAG and not value.type.shape:
            return replace(value, type=NUMBER_TYPE)
        if value.type.kind != NUMBER:
            raise self.error(node, f"is {value.type.words}; here it must be a number")
        return value

    def scalar(self, node: ast.expr) -> ColumnValue:
        """Return the value of a node that must be one number."""
        value = self.number(node)
        if value.type.shape:
            raise self.error(node, f"is {value.type.words}; here it must be one number")
        return value

    def text(self, node: ast.expr) -> ColumnValue:
        """Return the value of a node that must be a text."""
        value = self.value(node)
        if value.type.kind != TEXT or value.type.shape:
            raise self.error(node, f"is {value.type.words}; here it must be a text")
        return value

    def vector(self, node: ast.expr, *sizes: int) -> ColumnValue:
        """Return the value of a node that must be numbers of this shape; -1: any size."""
        value = self.number(node)
        fits = len(value.type.shape) == len(sizes) and all(
            want < 0 or size in {want, -1} for size, want in zip(value.type.shape, sizes, strict=True)
        )
        if not fits:
            raise self.error(node, f"is {value.type.words}; here it must be numbers of the shape {list(sizes)}")
        return value

    def image(self, node: ast.expr) -> ColumnValue:
        """Return the value of a node that must be an image."""
        value = self.value(node)
        if value.type.kind != IMAGE:
            raise self.error(node, f"is {value.type.words}; here it must be an image")
        return value

    def broadcast(self, node: ast.AST, left: ColumnValue, right: ColumnValue) -> ColumnType:
        """Return the type of numbers that are joined. Raises ExpressionError if their shapes differ."""
        a, b = left.type.shape, right.type.shape
        if a and b and a != b:
            raise self.error(node, f"joins {left.type.words} with {right.type.words}: their shapes differ")
        return ColumnType(NUMBER, a or b)

    def joined(
        self,
        node: ast.AST,
        found: Sequence[ColumnValue],
        of_type: ColumnType,
        function: Callable[..., Any],
        *,
        divides: bool = False,
    ) -> ColumnValue:
        """Return a function of values, row by row. A scalar next to a list of numbers counts for each of them."""
        rows = common_rows(self.words, found, node)
        if divides:
            function = np.errstate(all="ignore")(function)
        divides = divides or any(value.divides for value in found)
        parts = [lifted(value, rows) for value in found]
        deep = max((len(value.type.shape) for value in found), default=0)
        getters = [deepened(value, deep) if value.rows is not None else value.of for value in parts]
        if rows is None:
            with np.errstate(all="ignore"):
                constant = function(*(of([]) for of in getters))
            constant = constant.item() if isinstance(constant, np.ndarray | np.generic) else constant
            if isinstance(constant, float) and not math.isfinite(constant):
                raise self.error(node, "divides by zero, or is no finite number")
            return ColumnValue(of_type, None, lambda _: constant)
        if len(getters) == 1:
            (one,) = getters
            return ColumnValue(of_type, rows, lambda values: function(one(values)), divides=divides)
        if len(getters) == 2:
            one, two = getters
            return ColumnValue(of_type, rows, lambda values: function(one(values), two(values)), divides=divides)
        every = tuple(getters)
        return ColumnValue(of_type, rows, lambda values: function(*[of(values) for of in every]), divides=divides)

    def over_rows(
        self, node: ast.AST, value: ColumnValue, of_type: ColumnType, reduce: Callable[[Array, Array, int], Any]
    ) -> ColumnValue:
        """Return a function over the rows that belong to one row of their owner."""
        rows = value.rows
        if rows is None or rows.owner is None:
            raise self.error(node, "is a function over the rows that a step made, such as the objects of a detector")
        owner, path = rows.owner, list[int]()
        for each in rows.lineage():
            if each is owner:
                break
            path.append(each.index)
        slots, of, count = tuple(path), value.of, owner.count

        def reduced(values: Values) -> Any:
            places = values[slots[0]]
            for slot in slots[1:]:
                places = values[slot][places]
            return reduce(of(values), places, values[count])

        return ColumnValue(of_type, owner, reduced, divides=value.divides)


def joined_texts(pieces: Sequence[Sequence[bytes]], between: bytes = b"") -> Array:
    """Return a text for each row, of its pieces. Raises StepError, before one is made, for texts beyond the limits."""
    sizes = [sum(map(len, row)) + len(between) * max(0, len(row) - 1) for row in pieces]
    if (longest := max(sizes, default=0)) > TEXT_LIMIT_BYTES:
        raise StepError(f"makes a text of {longest} bytes, at most {TEXT_LIMIT_BYTES} are allowed; shorten it")
    if sum(sizes) > TEXTS_LIMIT_BYTES:
        words = f"makes texts of {sum(sizes)} bytes in all rows, at most {TEXTS_LIMIT_BYTES} are allowed"
        raise StepError(f"{words}; shorten them, or ask with fewer rows")
    found = np.empty(len(pieces), object)
    found[:] = [between.join(row) for row in pieces]
    return found


def _concatenated(*columns: Any) -> Any:
    count = next((len(column) for column in columns if isinstance(column, np.ndarray)), None)
    if count is None:
        return joined_texts([columns])[0]
    return joined_texts(
        list(zip(*(each if isinstance(each, np.ndarray) else [each] * count for each in columns), strict=True))
    )


def deepened(value: ColumnValue, deep: int) -> Evaluate:
    """Return the values with as many dimensions as lists of numbers of `deep` have."""
    missing, of = deep - len(value.type.shape), value.of
    if not missing or value.type.kind != NUMBER:
        return of
    tail = (1,) * missing
    return lambda values: (column := of(values)).reshape(column.shape + tail)


def _exact(node: ast.expr, value: ColumnValue) -> ColumnValue:
    """Return a whole number as an integer, which comparisons with integers need: FP64 does not hold all large ones."""
    is_negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    constant = node.operand if isinstance(node, ast.UnaryOp) else node
    if not isinstance(constant, ast.Constant) or type(constant.value) is not int or abs(constant.value) >= 2**64:
        return value
    number = -constant.value if is_negative else constant.value
    return replace(value, of=lambda _: number)


def fp64(of_type: ColumnType) -> ColumnType:
    """Return the type of what is computed of numbers."""
    return ColumnType(NUMBER, of_type.shape)


_OPERATIONS: Mapping[type[ast.operator], Callable[..., Any]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
    ast.Mod: np.mod,
}
_COMPARISONS: Mapping[type[ast.cmpop], Callable[..., Any]] = {
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
}
