"""Columns of a pipeline: their types, the rows that they have, and expressions compiled to functions on arrays.

A request has rows. A step that finds objects or tiles makes other rows of each of them, and a column belongs to the
rows of one step. An expression that reads columns of several steps has the rows of the last one; values of the rows
that these were made of are repeated. Values of all columns of a request are in one list, by slot.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gateway.common.domain.errors import suggest
from gateway.common.domain.expressions import FLAGS, Expression, ExpressionError
from gateway.common.domain.tensor import Array, Datatype
from gateway.serving.domain.postprocess import softmax
from gateway.serving.tasks.views import crop, turn, warp

NUMBER, FLAG, TEXT, IMAGE, LIST = "number", "flag", "text", "image", "list"
Values = list[Any]
Evaluate = Callable[[Values], Any]


@dataclass(frozen=True, slots=True, eq=False)
class RowSet:
    """Rows of a step. `up`: the rows of which they were made; `owner`: those to which functions over rows lead back.

    `index`: slot of each row's place among the rows of `up`. `count`: slot of their number.
    """

    name: str
    index: int
    count: int
    up: RowSet | None = None
    owner: RowSet | None = None

    def lineage(self) -> Iterator[RowSet]:
        """Iterate over these rows and all those above."""
        rows: RowSet | None = self
        while rows is not None:
            yield rows
            rows = rows.up


@dataclass(frozen=True, slots=True)
class ColumnType:
    """Type of a column: its kind, the shape of a row's value, and the datatype of an output made of it.

    `optional`: rows that were skipped have no value.
    """

    kind: str
    shape: tuple[int, ...] = ()
    datatype: Datatype = Datatype.FP64
    optional: bool = False

    @property
    def words(self) -> str:
        """Return the type in words, for errors."""
        kind = f"{self.kind}{list(self.shape)}" if self.shape else self.kind
        return f"{kind} that may be absent" if self.optional else kind


@dataclass(frozen=True, slots=True)
class Value:
    """Compiled expression. `rows` None: a constant. `present`: function that returns which rows have a value.

    `divides`: the value may be infinite or no number although what it is made of is not.
    """

    type: ColumnType
    rows: RowSet | None
    of: Evaluate
    present: Evaluate | None = None
    divides: bool = False


FLAG_TYPE = ColumnType(FLAG, datatype=Datatype.BOOL)
TEXT_TYPE = ColumnType(TEXT, datatype=Datatype.BYTES)
NUMBER_TYPE, INTEGER_TYPE = ColumnType(NUMBER), ColumnType(NUMBER, datatype=Datatype.INT64)


@dataclass(slots=True)
class Scope:
    """Names that an expression may use: columns by step and name, columns by bare name, and rows by step.

    `used` collects the steps whose values were read.
    """

    columns: Callable[[str, str], Value | None]
    bare: Mapping[str, Value] = field(default_factory=dict)
    rows: Mapping[str, RowSet] = field(default_factory=dict)
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    known: Callable[[str], Sequence[str]] = lambda _step: ()


def compiled(expression: Expression, scope: Scope, *, optional: bool = False) -> Value:
    """Return an expression as a function of a request's values, which are all there unless it may be `optional`.

    Raises ExpressionError where types do not fit.
    """
    compiler = _Compiler(expression.text, scope)
    return compiler.optional(expression.tree) if optional else compiler.value(expression.tree)


def lifted(value: Value, rows: RowSet | None) -> Value:
    """Return a value with one row for each of `rows`, which are its own or were made of them."""
    if rows is None or value.rows is rows or value.rows is None:
        return value
    slots = list[int]()
    for each in rows.lineage():
        if each is value.rows:
            break
        slots.append(each.index)
    path, of, present = tuple(reversed(slots)), value.of, value.present

    def repeated(values: Values, of: Evaluate = of) -> Any:
        column = of(values)
        for slot in path:
            column = column[values[slot]]
        return column

    return replace(value, rows=rows, of=repeated, present=present and (lambda values: repeated(values, present)))


def common_rows(expression: str, found: Sequence[Value], node: ast.AST | None = None) -> RowSet | None:
    """Return the rows of an expression that reads values of several; None for constants. Raises ExpressionError."""
    deepest: RowSet | None = None
    for value in found:
        if value.rows is None or (deepest is not None and value.rows in deepest.lineage()):
            continue
        if deepest is not None and deepest not in value.rows.lineage():
            words = (
                f"reads rows of '{deepest.name}' and of '{value.rows.name}', neither of which were made of the other"
            )
            raise ExpressionError(expression, f"{words}; use a function over rows, such as any or max, for one", node)
        deepest = value.rows
    return deepest


def spread(value: Value, values: Values, count: int) -> Any:
    """Return the rows of a value: those of a constant are all the same."""
    column = value.of(values)
    if value.rows is not None:
        return column
    if value.type.kind == TEXT:
        whole = np.empty(count, object)
        whole[:] = column
        return whole
    return np.full(count, column)


class _Compiler:
    def __init__(self, text: str, scope: Scope) -> None:
        self._text, self._scope = text, scope

    def value(self, node: ast.expr) -> Value:
        """Return the value of a node that must be there for each row."""
        value = self.optional(node)
        if value.type.optional:
            what = "may be absent, because its step skips rows"
            raise self.error(node, f"{what}; write default({ast.unparse(node)}, …), or give the step an 'else'")
        return value

    def optional(self, node: ast.expr) -> Value:
        kind = type(node).__name__.lower()
        value: Value = getattr(self, f"_{kind}")(node)
        return value

    def error(self, node: ast.AST, problem: str) -> ExpressionError:
        return ExpressionError(self._text, problem, node)

    def _constant(self, node: ast.Constant) -> Value:
        constant = node.value
        if isinstance(constant, bool):
            return Value(FLAG_TYPE, None, lambda _: constant)
        if isinstance(constant, str):
            raw = constant.encode(errors="surrogatepass")
            return Value(TEXT_TYPE, None, lambda _: raw)
        number = float(constant)  # type: ignore[arg-type]  # the parser lets no other constants through
        return Value(NUMBER_TYPE, None, lambda _: number)

    def _name(self, node: ast.Name) -> Value:
        if node.id in FLAGS:
            flag = FLAGS[node.id]
            return Value(FLAG_TYPE, None, lambda _: flag)
        if (value := self._scope.bare.get(node.id)) is not None:
            return value
        columns = self._scope.known(node.id)
        if columns:
            raise self.error(node, f"is a step; name one of its columns: {', '.join(columns)}")
        known = [*self._scope.bare, *self._scope.rows]
        raise self.error(node, f"is no input, column or earlier step{suggest(node.id, known)}")

    def _attribute(self, node: ast.Attribute) -> Value:
        step = node.value.id if isinstance(node.value, ast.Name) else ""
        value = self._scope.columns(step, node.attr)
        if value is None:
            columns = self._scope.known(step)
            if not columns:
                raise self.error(node, f"'{step}' is no earlier step{suggest(step, self._scope.rows)}")
            raise self.error(node, f"step '{step}' has no column '{node.attr}'; it has {', '.join(columns)}")
        return value

    def _boolop(self, node: ast.BoolOp) -> Value:
        join = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
        values = [self.flag(each) for each in node.values]
        return self._joined(node, values, FLAG_TYPE, lambda *flags: join.reduce(np.broadcast_arrays(*flags)))

    def _unaryop(self, node: ast.UnaryOp) -> Value:
        if isinstance(node.op, ast.Not):
            return self._joined(node, [self.flag(node.operand)], FLAG_TYPE, np.logical_not)
        value = self.number(node.operand)
        return self._joined(node, [value], _fp64(value.type), lambda number: np.negative(number, dtype=np.float64))

    def _binop(self, node: ast.BinOp) -> Value:
        operation = _OPERATIONS[type(node.op)]
        left, right = self.number(node.left), self.number(node.right)
        divides = isinstance(node.op, ast.Div | ast.Mod)
        return self._joined(
            node,
            [left, right],
            self._broadcast(node, left, right),
            lambda a, b: operation(a, b, dtype=np.float64),
            divides=divides,
        )

    def _compare(self, node: ast.Compare) -> Value:
        operator, other = node.ops[0], node.comparators[0]
        left = self.value(node.left)
        if isinstance(operator, ast.In | ast.NotIn):
            return self._among(node, left, other, negated=isinstance(operator, ast.NotIn))
        right = self.value(other)
        if left.type.kind != right.type.kind or left.type.kind == IMAGE:
            raise self.error(node, f"compares {left.type.words} with {right.type.words}")
        equality = isinstance(operator, ast.Eq | ast.NotEq)
        if left.type.kind != NUMBER and not equality:
            raise self.error(node, f"orders {left.type.words}; only numbers have an order")
        if left.type.shape or right.type.shape:
            raise self.error(node, "compares lists of numbers; name one with [index], or use a function")
        return self._joined(node, [left, right], FLAG_TYPE, _COMPARISONS[type(operator)])

    def _among(self, node: ast.Compare, left: Value, other: ast.expr, *, negated: bool) -> Value:
        if not isinstance(other, ast.List):
            raise self.error(other, "'in' needs a list of constants, such as ['car', 'truck']")
        constants = [self.value(each) for each in other.elts]
        if left.type.shape or any(each.rows is not None or each.type.kind != left.type.kind for each in constants):
            raise self.error(other, f"must list constants of the kind {left.type.kind}")
        listed = [each.of([]) for each in constants]
        among = frozenset(listed)
        if left.type.kind == TEXT:
            found = np.frompyfunc(lambda text: (text in among) != negated, 1, 1)
            return self._joined(node, [left], FLAG_TYPE, lambda texts: np.asarray(found(texts), bool))
        return self._joined(node, [left], FLAG_TYPE, lambda numbers: np.isin(numbers, listed, invert=negated))

    def _ifexp(self, node: ast.IfExp) -> Value:
        when, then, other = self.flag(node.test), self.value(node.body), self.value(node.orelse)
        if then.type.kind != other.type.kind or then.type.kind == IMAGE:
            raise self.error(node, f"is {then.type.words} or {other.type.words}; both must be of one kind")
        if then.type.kind == NUMBER:
            of_type = self._broadcast(node, then, other)
        else:
            of_type = then.type

        def chosen(flag: Any, first: Any, second: Any) -> Any:
            flag = np.asarray(flag)
            deep = max(np.ndim(first), np.ndim(second)) if of_type.shape else 1
            found = np.where(flag.reshape(flag.shape + (1,) * (deep - flag.ndim)) if flag.ndim else flag, first, second)
            return found.astype(object) if of_type.kind == TEXT else found

        return self._joined(node, [when, then, other], of_type, chosen)

    def _subscript(self, node: ast.Subscript) -> Value:
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
        return self._joined(node, [value], of_type, lambda column: column[:, index])

    def _list(self, node: ast.List) -> Value:
        raise self.error(node, "a list belongs after 'in'")

    def _call(self, node: ast.Call) -> Value:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        function = _FUNCTIONS.get(name)
        if function is None:
            raise self.error(node, f"no function is called '{name}'{suggest(name, _FUNCTIONS)}")
        keywords = {keyword.arg or "": keyword.value for keyword in node.keywords}
        value = function(self, node, node.args, keywords)
        if keywords:
            raise self.error(node, f"{name} has no '{next(iter(keywords))}'")
        return value

    # ---- parts of the functions --------------------------------------------------------------------------------------
    def flag(self, node: ast.expr) -> Value:
        value = self.value(node)
        if value.type.kind != FLAG or value.type.shape:
            raise self.error(node, f"is {value.type.words}; here it must be true or false, such as a comparison")
        return value

    def number(self, node: ast.expr) -> Value:
        value = self.value(node)
        if value.type.kind == FLAG and not value.type.shape:
            return replace(value, type=NUMBER_TYPE)
        if value.type.kind != NUMBER:
            raise self.error(node, f"is {value.type.words}; here it must be a number")
        return value

    def scalar(self, node: ast.expr) -> Value:
        value = self.number(node)
        if value.type.shape:
            raise self.error(node, f"is {value.type.words}; here it must be one number")
        return value

    def text(self, node: ast.expr) -> Value:
        value = self.value(node)
        if value.type.kind != TEXT or value.type.shape:
            raise self.error(node, f"is {value.type.words}; here it must be a text")
        return value

    def vector(self, node: ast.expr, *sizes: int) -> Value:
        value = self.number(node)
        fits = len(value.type.shape) == len(sizes) and all(
            want < 0 or size in {want, -1} for size, want in zip(value.type.shape, sizes, strict=True)
        )
        if not fits:
            raise self.error(node, f"is {value.type.words}; here it must be numbers of the shape {list(sizes)}")
        return value

    def image(self, node: ast.expr) -> Value:
        value = self.value(node)
        if value.type.kind != IMAGE:
            raise self.error(node, f"is {value.type.words}; here it must be an image")
        return value

    def _broadcast(self, node: ast.AST, left: Value, right: Value) -> ColumnType:
        a, b = left.type.shape, right.type.shape
        if a and b and a != b:
            raise self.error(node, f"joins {left.type.words} with {right.type.words}: their shapes differ")
        return ColumnType(NUMBER, a or b)

    def _joined(
        self,
        node: ast.AST,
        found: Sequence[Value],
        of_type: ColumnType,
        function: Callable[..., Any],
        *,
        divides: bool = False,
    ) -> Value:
        """Return a function of values, row by row. A scalar next to a list of numbers counts for each of them."""
        rows = common_rows(self._text, found, node)
        divides = divides or any(value.divides for value in found)
        parts = [lifted(value, rows) for value in found]
        deep = max((len(value.type.shape) for value in found), default=0)
        getters = [_deepened(value, deep) if value.rows is not None else value.of for value in parts]
        if rows is None:
            constant = function(*(of([]) for of in getters))
            constant = constant.item() if isinstance(constant, np.ndarray | np.generic) else constant
            return Value(of_type, None, lambda _: constant, divides=divides)
        if len(getters) == 1:
            (one,) = getters
            return Value(of_type, rows, lambda values: function(one(values)), divides=divides)
        if len(getters) == 2:
            one, two = getters
            return Value(of_type, rows, lambda values: function(one(values), two(values)), divides=divides)
        every = tuple(getters)
        return Value(of_type, rows, lambda values: function(*[of(values) for of in every]), divides=divides)

    def over_rows(
        self, node: ast.AST, value: Value, of_type: ColumnType, reduce: Callable[[Array, Array, int], Any]
    ) -> Value:
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

        return Value(of_type, owner, reduced, divides=value.divides)


def _deepened(value: Value, deep: int) -> Evaluate:
    missing, of = deep - len(value.type.shape), value.of
    if not missing or value.type.kind != NUMBER:
        return of
    tail = (1,) * missing
    return lambda values: (column := of(values)).reshape(column.shape + tail)


def _fp64(of_type: ColumnType) -> ColumnType:
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
Function = Callable[[_Compiler, ast.Call, list[ast.expr], dict[str, ast.expr]], Value]


def _arguments(compiler: _Compiler, node: ast.Call, arguments: Sequence[ast.expr], least: int, most: int) -> None:
    if not least <= len(arguments) <= most:
        wanted = f"{least}" if least == most else f"{least} to {most}"
        raise compiler.error(node, f"needs {wanted} values in parentheses, not {len(arguments)}")


def _elementwise(function: Callable[..., Any], *, divides: bool = False) -> Function:
    def call(compiler: _Compiler, node: ast.Call, arguments: list[ast.expr], _: dict[str, ast.expr]) -> Value:
        _arguments(compiler, node, arguments, 1, 1)
        value = compiler.number(arguments[0])
        return compiler._joined(
            node, [value], _fp64(value.type), lambda x: function(np.asarray(x, np.float64)), divides=divides
        )

    return call


def _extreme(join: Any, empty: float) -> Function:
    """Return min or max: of several values row by row, or of one over its rows."""

    def reduced(column: Array, places: Array, count: int) -> Array:
        found = np.full(count, empty)
        join.at(found, places, column)
        return found

    def call(compiler: _Compiler, node: ast.Call, arguments: list[ast.expr], keywords: dict[str, ast.expr]) -> Value:
        _arguments(compiler, node, arguments, 1, 16)
        if len(arguments) > 1:
            found = [compiler.number(each) for each in arguments]
            shape = next((value.type.shape for value in found if value.type.shape), ())
            return compiler._joined(
                node,
                found,
                ColumnType(NUMBER, shape),
                lambda *columns: _folded(join, columns),
            )
        value = compiler.scalar(arguments[0])
        whole = compiler.over_rows(node, value, NUMBER_TYPE, reduced)
        return _with_default(compiler, node, whole, keywords, value)

    return call


def _folded(join: Any, columns: Sequence[Any]) -> Any:
    found = columns[0]
    for column in columns[1:]:
        found = join(found, column)
    return found


def _with_default(
    compiler: _Compiler,
    node: ast.Call,
    whole: Value,
    keywords: dict[str, ast.expr],
    source: Value,
) -> Value:
    """Return a value over rows that is absent where there are no rows, or has the default of the call there."""
    rows = source.rows
    if rows is None:
        raise compiler.error(node, "needs rows")
    counted = compiler.over_rows(
        node, source, NUMBER_TYPE, lambda _, places, count: np.bincount(places, minlength=count)
    )

    def there(values: Values) -> Any:
        return counted.of(values) > 0

    if "default" not in keywords:
        return replace(whole, type=replace(whole.type, optional=True), present=there)
    default = compiler.value(keywords.pop("default"))
    if default.rows is not None or default.type.kind != whole.type.kind:
        raise compiler.error(node, f"'default' must be a constant {whole.type.kind}")
    constant = default.of([])

    def filled(values: Values) -> Any:
        column = whole.of(values)
        has = there(values)
        if has.all():
            return column
        column = column.copy()
        column[~has] = constant
        return column

    return replace(whole, of=filled)


def _total(compiler: _Compiler, node: ast.Call, arguments: list[ast.expr], _: dict[str, ast.expr]) -> Value:
    _arguments(compiler, node, arguments, 1, 1)
    value = compiler.scalar(arguments[0])
    return compiler.over_rows(
        node, value, NUMBER_TYPE, lambda column, places, count: np.bincount(places, column, minlength=count)
    )


def _mean(compiler: _Compiler, node: ast.Call, arguments: list[ast.expr], keywords: dict[str, ast.expr]) -> Value:
    _arguments(compiler, node, arguments, 1, 16)
    if len(arguments) > 1:
        found = [compiler.number(each) for each in arguments]
        shape = next((value.type.shape for value in found if value.type.shape), ())
        return compiler._joined(
            node,
            found,
            ColumnType(NUMBER, shape),
            lambda *columns: np.divide(_folded(np.add, columns), len(columns), dtype=np.float64),
        )
    value = compiler.scalar(arguments[0])

    def reduced(column: Array, places: Array, count: int) -> Array:
        counts = np.bincount(places, minlength=count)
        return np.bincount(places, column, minlength=count) / np.maximum(counts, 1)

    whole = compiler.over_rows(node, value, NUMBER_TYPE, reduced)
    return _with_default(compiler, node, whole, keywords, value)


def _count(compiler: _Compiler, node: ast.Call, arguments: list[ast.expr], _: dict[str, ast.expr]) -> Value:
    """Return the number of rows of a step, or of those for which a flag is true."""
    _arguments(compiler, node, arguments, 1, 1)
    (argument,) = arguments
    rows = compiler._scope.rows.get(argument.id) if isinstance(argument, ast.Name) else None
    if rows is not None:
        size = rows.count
        value = Value(FLAG_TYPE, rows, lambda values: np.ones(values[size], bool))
    else:
        value = compiler.flag(argument)
    return compiler.over_rows(
        node, value, INTEGER_TYPE, lambda column, places, count: np.bincount(places[column], minlength=count)
    )


def _quantifier(*, every: bool) -> Function:
    def call(compiler: _Compiler, node: ast.Call, arguments: list[ast.expr], _: dict[str, ast.expr]) -> Value:
        _arguments(compiler, node, arguments, 1, 1)
        value = compiler.flag(arguments[0])

        def reduced(column: Array, places: Array, count: int) -> Array:
            counted = np.bincount(places[~column if every else column], minlength=count)
            return counted == 0 if every else counted > 0

        return compiler.over_rows(node, value, FLAG_TYPE, reduced)

    return call


def _first(compiler: _Compiler, node: ast.Call, arguments: list[ast.expr], keywords: dict[str, ast.expr]) -> Value:
    _arguments(compiler, node, arguments, 1, 1)
    value = compiler.value(arguments[0])
    if value.type.kind == IMAGE:
        raise compiler.error(node, "is for numbers, texts and flags")

    def reduced(column: Array, places: Array, count: int) -> Array:
        found = np.zeros((count, *column.shape[1:]), column.dtype)
        if column.dtype == object:
            found[:] = b""
        for row in range(len(places) - 1, -1, -1):
            found[places[row]] = column[row]
        return found

    whole = compiler.over_rows(node, value, value.type, reduced)
    return _with_default(compiler, node, whole, keywords, value)


def _default(compiler: _Compiler, node: ast.Call, arguments: list[ast.expr], _: dict[str, ast.expr]) -> Value:
    _arguments(compiler, node, arguments, 2, 2)
    value, other = compiler.optional(arguments[0]), compiler.value(arguments[1])
    if value.present is None:
        raise compiler.error(arguments[0], "is always there; remove default")
    if value.type.kind != other.type.kind or value.type.kind == IMAGE:
        raise compiler.error(node, f"is {value.type.words} or {other.type.words}; both must be of one kind")
    rows = common_rows(compiler._text, [value, other], node)
    first, second = lifted(value, rows), lifted(other, rows)
    of, there, otherwise, is_text = first.of, first.present, second.of, value.type.kind == TEXT

    def filled(values: Values) -> Any:
        has, column = np.asarray(there(values) if there else True), of(values)
        found = np.asarray(np.where(has.reshape(has.shape + (1,) * (column.ndim - 1)), column, otherwise(values)))
        return found.astype(object) if is_text else found

    return Value(replace(value.type, optional=False), rows, filled, divides=value.divides or other.divides)


def _present(compiler: _Compiler, node: ast.Call, arguments: list[ast.expr], _: dict[str, ast.expr]) -> Value:
    _arguments(compiler, node, arguments, 1, 1)
    value = compiler.optional(arguments[0])
    if value.present is None:
        raise compiler.error(node, "is always true; remove present")
    return Value(FLAG_TYPE, value.rows, value.present)


def _argmax(compiler: _Compiler, node: ast.Call, arguments: list[ast.expr], _: dict[str, ast.expr]) -> Value:
    _arguments(compiler, node, arguments, 1, 1)
    value = compiler.vector(arguments[0], -1)
    return compiler._joined(node, [value], INTEGER_TYPE, lambda x: np.argmax(x, axis=-1))


def _top(compiler: _Compiler, node: ast.Call, arguments: list[ast.expr], _: dict[str, ast.expr]) -> Value:
    _arguments(compiler, node, arguments, 1, 1)
    value = compiler.vector(arguments[0], -1)
    return compiler._joined(node, [value], NUMBER_TYPE, lambda x: np.max(x, axis=-1))


def _softmax(compiler: _Compiler, node: ast.Call, arguments: list[ast.expr], _: dict[str, ast.expr]) -> Value:
    _arguments(compiler, node, arguments, 1, 1)
    value = compiler.vector(arguments[0], -1)
    return compiler._joined(
        node, [value], _fp64(value.type), lambda x: softmax(np.asarray(x, np.float64)), divides=True
    )


def _dot(compiler: _Compiler, node: ast.Call, arguments: list[ast.expr], _: dict[str, ast.expr]) -> Value:
    _arguments(compiler, node, arguments, 2, 2)
    one, two = (compiler.vector(each, -1) for each in arguments)
    compiler._broadcast(node, one, two)
    return compiler._joined(
        node, [one, two], NUMBER_TYPE, lambda a, b: np.sum(np.multiply(a, b, dtype=np.float64), axis=-1)
    )


def _label(compiler: _Compiler, node: ast.Call, arguments: list[ast.expr], _: dict[str, ast.expr]) -> Value:
    """Return the label that a step's model has for the number of a class."""
    _arguments(compiler, node, arguments, 2, 2)
    number, step = compiler.scalar(arguments[0]), arguments[1]
    labels = compiler._scope.labels.get(step.id) if isinstance(step, ast.Name) else None
    if labels is None:
        raise compiler.error(step, "is no step that runs a model")
    return compiler._joined(node, [number], TEXT_TYPE, lambda x: named(np.atleast_1d(x), labels))


def named(classes: Array, labels: Sequence[str]) -> Array:
    """Return the label of each class; the number of a class without one."""
    found = np.empty(len(classes), object)
    for row, index in enumerate(classes.tolist()):
        known = math.isfinite(index) and 0 <= int(index) < len(labels)
        found[row] = labels[int(index)].encode() if known else f"{index:g}".encode()
    return found


def _vote(compiler: _Compiler, node: ast.Call, arguments: list[ast.expr], _: dict[str, ast.expr]) -> Value:
    """Return the text that most of several have; of equally many the one that is named first."""
    _arguments(compiler, node, arguments, 2, 16)
    found = [compiler.text(each) for each in arguments]

    def voted(*columns: Any) -> Array:
        count = max(len(column) if isinstance(column, np.ndarray) else 1 for column in columns)
        rows = zip(*(column if isinstance(column, np.ndarray) else [column] * count for column in columns), strict=True)
        winners = np.empty(count, object)
        winners[:] = [max(texts, key=texts.count) for texts in rows]
        return winners

    return compiler._joined(node, found, TEXT_TYPE, voted)


def _of_text(function: Callable[[str], Any], of_type: ColumnType) -> Function:
    def call(compiler: _Compiler, node: ast.Call, arguments: list[ast.expr], _: dict[str, ast.expr]) -> Value:
        _arguments(compiler, node, arguments, 1, 1)

        def each(texts: Any) -> Any:
            if isinstance(texts, bytes):
                return function(texts.decode(errors="replace"))
            found = np.empty(len(texts), of_type.datatype.dtype)
            found[:] = [function(text.decode(errors="replace")) for text in texts]
            return found

        return compiler._joined(node, [compiler.text(arguments[0])], of_type, each)

    return call


def _contains(compiler: _Compiler, node: ast.Call, arguments: list[ast.expr], _: dict[str, ast.expr]) -> Value:
    _arguments(compiler, node, arguments, 2, 2)
    text, part = (compiler.text(each) for each in arguments)
    if part.rows is not None:
        raise compiler.error(arguments[1], "must be a constant")
    wanted = part.of([])
    return compiler._joined(
        node,
        [text],
        FLAG_TYPE,
        lambda texts: (
            wanted in texts
            if isinstance(texts, bytes)
            else np.fromiter((wanted in each for each in texts), bool, len(texts))
        ),
    )


def _parsed(text: str) -> float:
    try:
        return float(text) if len(text) <= 64 else math.nan
    except ValueError:
        return math.nan


def _sides(function: Callable[[Array], Array]) -> Function:
    def call(compiler: _Compiler, node: ast.Call, arguments: list[ast.expr], _: dict[str, ast.expr]) -> Value:
        _arguments(compiler, node, arguments, 1, 1)
        return compiler._joined(
            node, [compiler.vector(arguments[0], 4)], NUMBER_TYPE, lambda box: function(np.asarray(box, np.float64))
        )

    return call


def _crop(compiler: _Compiler, node: ast.Call, arguments: list[ast.expr], _: dict[str, ast.expr]) -> Value:
    """Return the part of an image in a box, which grows by a factor around its centre."""
    _arguments(compiler, node, arguments, 2, 3)
    image, box = compiler.image(arguments[0]), compiler.vector(arguments[1], 4)
    margin = compiler.scalar(arguments[2]) if len(arguments) > 2 else Value(NUMBER_TYPE, None, lambda _: 1.0)
    if margin.rows is not None:
        raise compiler.error(arguments[2], "must be a constant")
    factor = margin.of([])
    if not 0.1 <= factor <= 10.0:
        raise compiler.error(arguments[2], "must be between 0.1 and 10")
    return _of_views(compiler, node, image, box, lambda view, row: crop(view, row, factor))


def _warp(compiler: _Compiler, node: ast.Call, arguments: list[ast.expr], _: dict[str, ast.expr]) -> Value:
    """Return the part of an image between four corners, as a rectangle."""
    _arguments(compiler, node, arguments, 2, 2)
    image, corners = compiler.image(arguments[0]), compiler.vector(arguments[1], 4, 2)
    return _of_views(compiler, node, image, corners, warp)


def _turn(compiler: _Compiler, node: ast.Call, arguments: list[ast.expr], _: dict[str, ast.expr]) -> Value:
    """Return an image turned clockwise by a multiple of 90 degrees."""
    _arguments(compiler, node, arguments, 2, 2)
    image, degrees = compiler.image(arguments[0]), compiler.scalar(arguments[1])
    if degrees.rows is None:
        angle = degrees.of([])
        degrees = Value(NUMBER_TYPE, image.rows, lambda values: np.full(len(image.of(values)), angle))
    return _of_views(compiler, node, image, degrees, turn)


def _of_views(
    compiler: _Compiler, node: ast.Call, image: Value, shape: Value, function: Callable[[Any, Array], Any]
) -> Value:
    rows = common_rows(compiler._text, [image, shape], node)
    views, places = lifted(image, rows).of, lifted(shape, rows).of

    def each(values: Values) -> Array:
        found = np.empty(len(where := places(values)), object)
        found[:] = [function(view, row) for view, row in zip(views(values), where, strict=True)]
        return found

    return Value(ColumnType(IMAGE, datatype=Datatype.BYTES), rows, each)


_FUNCTIONS: Mapping[str, Function] = {
    "abs": _elementwise(np.abs),
    "all": _quantifier(every=True),
    "any": _quantifier(every=False),
    "area": _sides(lambda box: (box[:, 2] - box[:, 0]) * (box[:, 3] - box[:, 1])),
    "argmax": _argmax,
    "contains": _contains,
    "count": _count,
    "crop": _crop,
    "default": _default,
    "dot": _dot,
    "exp": _elementwise(np.exp, divides=True),
    "first": _first,
    "floor": _elementwise(np.floor),
    "height": _sides(lambda box: box[:, 3] - box[:, 1]),
    "label": _label,
    "len": _of_text(len, NUMBER_TYPE),
    "log": _elementwise(np.log, divides=True),
    "lower": _of_text(lambda text: text.lower().encode(), TEXT_TYPE),
    "max": _extreme(np.maximum, -np.inf),
    "mean": _mean,
    "min": _extreme(np.minimum, np.inf),
    "number": _of_text(_parsed, NUMBER_TYPE),
    "present": _present,
    "round": _elementwise(np.rint),
    "softmax": _softmax,
    "sqrt": _elementwise(np.sqrt, divides=True),
    "sum": _total,
    "top": _top,
    "turn": _turn,
    "upper": _of_text(lambda text: text.upper().encode(), TEXT_TYPE),
    "vote": _vote,
    "warp": _warp,
    "width": _sides(lambda box: box[:, 2] - box[:, 0]),
}
