"""Functions of expressions, by name. Pure."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gateway.common.domain.expressions import Expression
from gateway.common.domain.tensor import Array, Datatype
from gateway.serving.domain.postprocess import softmax
from gateway.serving.pipelines.columns import (
    FLAG_TYPE,
    IMAGE,
    INTEGER_TYPE,
    NUMBER,
    NUMBER_TYPE,
    TEXT_TYPE,
    ColumnType,
    ColumnValue,
    StepError,
    Values,
    common_rows,
    lifted,
)
from gateway.serving.pipelines.compiler import Compiler, ExpressionNames, Function, deepened, fp64, joined_texts
from gateway.serving.tasks.views import FAR, align, crop, turn, warp

WHOLE_LIMIT = 1e15
"""Whole numbers below are written with all their digits."""
ALIGNED_LIMIT_PX = 2048
"""Longest side of a part that key points align."""


def compiled(expression: Expression, scope: ExpressionNames, *, optional: bool = False) -> ColumnValue:
    """Return an expression as a function of a request's values, which are all there unless it may be `optional`.

    Raises ExpressionError where types do not fit.
    """
    compiler = Compiler(expression.text, scope, _FUNCTIONS)
    return compiler.optional(expression.tree) if optional else compiler.value(expression.tree)


def _arguments(compiler: Compiler, node: ast.Call, arguments: Sequence[ast.expr], least: int, most: int) -> None:
    if not least <= len(arguments) <= most:
        wanted = f"{least}" if least == most else f"{least} to {most}"
        raise compiler.error(node, f"needs {wanted} values in parentheses, not {len(arguments)}")


def _elementwise(function: Callable[..., Any], *, divides: bool = False) -> Function:
    def call(compiler: Compiler, node: ast.Call, arguments: list[ast.expr], _: dict[str, ast.expr]) -> ColumnValue:
        _arguments(compiler, node, arguments, 1, 1)
        value = compiler.number(arguments[0])
        return compiler.joined(
            node, [value], fp64(value.type), lambda x: function(np.asarray(x, np.float64)), divides=divides
        )

    return call


def _extreme(join: Any, empty: float) -> Function:
    """Return min or max: of several values row by row, or of one over its rows."""

    def reduced(column: Array, places: Array, count: int) -> Array:
        found = np.full(count, empty)
        join.at(found, places, column)
        return found

    def call(
        compiler: Compiler, node: ast.Call, arguments: list[ast.expr], keywords: dict[str, ast.expr]
    ) -> ColumnValue:
        _arguments(compiler, node, arguments, 1, 16)
        if len(arguments) > 1:
            return _of_several(compiler, node, arguments, lambda *columns: _folded(join, columns))
        value = compiler.scalar(arguments[0])
        whole = compiler.over_rows(node, value, NUMBER_TYPE, reduced)
        return _with_default(compiler, node, whole, keywords, value)

    return call


def _of_several(
    compiler: Compiler, node: ast.Call, arguments: list[ast.expr], function: Callable[..., Any]
) -> ColumnValue:
    found = [compiler.number(each) for each in arguments]
    shaped = [value for value in found if value.type.shape]
    for value in shaped[1:]:
        compiler.broadcast(node, shaped[0], value)
    return compiler.joined(node, found, ColumnType(NUMBER, shaped[0].type.shape if shaped else ()), function)


def _folded(join: Any, columns: Sequence[Any]) -> Any:
    found = np.asarray(columns[0], np.float64)
    for column in columns[1:]:
        found = join(found, column)
    return found


def _mean_of(*columns: Any) -> Any:
    return _folded(np.add, columns) / len(columns)


def _with_default(
    compiler: Compiler,
    node: ast.Call,
    whole: ColumnValue,
    keywords: dict[str, ast.expr],
    source: ColumnValue,
) -> ColumnValue:
    """Return a value over rows that is absent where there are no rows, or has the default of the call there."""
    rows = source.rows
    if rows is None:
        raise compiler.error(node, "needs rows")
    placed = replace(source, of=lambda _: None)  # only the places of the rows are counted
    counted = compiler.over_rows(
        node, placed, NUMBER_TYPE, lambda _, places, count: np.bincount(places, minlength=count)
    )

    def there(values: Values) -> Any:
        return counted.of(values) > 0

    if "default" not in keywords:
        return replace(whole, type=replace(whole.type, optional=True), present=there)
    default = compiler.value(keywords.pop("default"))
    if default.rows is not None or default.type.kind != whole.type.kind:
        raise compiler.error(node, f"'default' must be a constant {whole.type.kind}")
    constant, of_type = default.of([]), _widened(whole.type, default)

    def filled(values: Values) -> Any:
        column = whole.of(values)
        has = there(values)
        if has.all() and of_type is whole.type:
            return column
        column = np.array(column, of_type.datatype.dtype)
        column[~has] = constant
        return column

    return replace(whole, type=of_type, of=filled)


def _widened(of_type: ColumnType, other: ColumnValue) -> ColumnType:
    """Return the type of numbers in place of which `other` may come: FP64 if their datatype does not hold it."""
    dtype = of_type.datatype.dtype
    if of_type.kind != NUMBER:
        return of_type
    if other.rows is not None:
        held = np.can_cast(other.type.datatype.dtype, dtype, "same_kind" if dtype.kind == "f" else "safe")
    elif dtype.kind == "f":
        held = abs(other.of([])) <= float(np.finfo(dtype).max)
    else:
        bounds, constant = np.iinfo(dtype), other.of([])
        held = float(constant).is_integer() and bounds.min <= constant <= bounds.max
    return of_type if held else fp64(of_type)


def _total(compiler: Compiler, node: ast.Call, arguments: list[ast.expr], _: dict[str, ast.expr]) -> ColumnValue:
    _arguments(compiler, node, arguments, 1, 1)
    value = compiler.scalar(arguments[0])
    return compiler.over_rows(
        node, value, NUMBER_TYPE, lambda column, places, count: np.bincount(places, column, minlength=count)
    )


def _mean(compiler: Compiler, node: ast.Call, arguments: list[ast.expr], keywords: dict[str, ast.expr]) -> ColumnValue:
    _arguments(compiler, node, arguments, 1, 16)
    if len(arguments) > 1:
        return _of_several(compiler, node, arguments, _mean_of)
    value = compiler.scalar(arguments[0])

    def reduced(column: Array, places: Array, count: int) -> Array:
        counts = np.bincount(places, minlength=count)
        return np.bincount(places, column, minlength=count) / np.maximum(counts, 1)

    whole = compiler.over_rows(node, value, NUMBER_TYPE, reduced)
    return _with_default(compiler, node, whole, keywords, value)


def _count(compiler: Compiler, node: ast.Call, arguments: list[ast.expr], _: dict[str, ast.expr]) -> ColumnValue:
    """Return the number of rows of a step, or of those for which a flag is true."""
    _arguments(compiler, node, arguments, 1, 1)
    (argument,) = arguments
    rows = compiler.scope.rows.get(argument.id) if isinstance(argument, ast.Name) else None
    if rows is not None:
        size = rows.count
        value = ColumnValue(FLAG_TYPE, rows, lambda values: np.ones(values[size], bool))
    else:
        value = compiler.flag(argument)
    return compiler.over_rows(
        node, value, INTEGER_TYPE, lambda column, places, count: np.bincount(places[column], minlength=count)
    )


def _quantifier(*, every: bool) -> Function:
    def call(compiler: Compiler, node: ast.Call, arguments: list[ast.expr], _: dict[str, ast.expr]) -> ColumnValue:
        _arguments(compiler, node, arguments, 1, 1)
        value = compiler.flag(arguments[0])

        def reduced(column: Array, places: Array, count: int) -> Array:
            counted = np.bincount(places[~column if every else column], minlength=count)
            return counted == 0 if every else counted > 0

        return compiler.over_rows(node, value, FLAG_TYPE, reduced)

    return call


def _first(compiler: Compiler, node: ast.Call, arguments: list[ast.expr], keywords: dict[str, ast.expr]) -> ColumnValue:
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


def _default(compiler: Compiler, node: ast.Call, arguments: list[ast.expr], _: dict[str, ast.expr]) -> ColumnValue:
    _arguments(compiler, node, arguments, 2, 2)
    value, other = compiler.optional(arguments[0]), compiler.value(arguments[1])
    if value.present is None:
        raise compiler.error(arguments[0], "is always there; remove default")
    if value.type.kind != other.type.kind or value.type.kind == IMAGE:
        raise compiler.error(node, f"is {value.type.words} or {other.type.words}; both must be of one kind")
    if other.type.shape not in {(), value.type.shape}:
        raise compiler.error(node, f"is {value.type.words} or {other.type.words}; both must be of one shape")
    rows = common_rows(compiler.words, [value, other], node)
    first, second = lifted(value, rows), lifted(other, rows)
    of, there, of_type = first.of, first.present, _widened(replace(value.type, optional=False), other)
    dtype = of_type.datatype.dtype
    otherwise = second.of if second.rows is None else deepened(second, len(value.type.shape))

    def filled(values: Values) -> Any:
        has, column = np.asarray(there(values) if there else True), of(values)
        if not column.size and not has.any():  # no row tells how many values a list has: the default is the only one
            column = np.zeros((len(column), *(max(size, 1) for size in of_type.shape)), dtype)
        found = np.asarray(otherwise(values), dtype)
        return np.where(has.reshape(has.shape + (1,) * (column.ndim - 1)), column.astype(dtype, copy=False), found)

    return ColumnValue(of_type, rows, filled, divides=value.divides or other.divides)


def _present(compiler: Compiler, node: ast.Call, arguments: list[ast.expr], _: dict[str, ast.expr]) -> ColumnValue:
    _arguments(compiler, node, arguments, 1, 1)
    value = compiler.optional(arguments[0])
    if value.present is None:
        raise compiler.error(node, "is always true; remove present")
    return ColumnValue(FLAG_TYPE, value.rows, value.present)


def _argmax(compiler: Compiler, node: ast.Call, arguments: list[ast.expr], _: dict[str, ast.expr]) -> ColumnValue:
    _arguments(compiler, node, arguments, 1, 1)
    value = compiler.vector(arguments[0], -1)
    return compiler.joined(node, [value], INTEGER_TYPE, lambda x: np.argmax(_some(x), axis=-1))


def _atan2(compiler: Compiler, node: ast.Call, arguments: list[ast.expr], _: dict[str, ast.expr]) -> ColumnValue:
    _arguments(compiler, node, arguments, 2, 2)
    return _of_several(compiler, node, arguments, lambda y, x: np.arctan2(np.asarray(y, np.float64), x))


def _top(compiler: Compiler, node: ast.Call, arguments: list[ast.expr], _: dict[str, ast.expr]) -> ColumnValue:
    _arguments(compiler, node, arguments, 1, 1)
    value = compiler.vector(arguments[0], -1)
    return compiler.joined(node, [value], NUMBER_TYPE, lambda x: np.max(_some(x), axis=-1))


def _some(vectors: Any) -> Any:
    """Return vectors, of which no rows may have an unknown size. Raises StepError for rows without values."""
    if np.shape(vectors)[-1]:
        return vectors
    if len(vectors):
        raise StepError("argmax, top and softmax are of lists with values; a model returned an empty one")
    return np.zeros((0, 1))


def _softmax(compiler: Compiler, node: ast.Call, arguments: list[ast.expr], _: dict[str, ast.expr]) -> ColumnValue:
    _arguments(compiler, node, arguments, 1, 1)
    value = compiler.vector(arguments[0], -1)
    return compiler.joined(
        node, [value], fp64(value.type), lambda x: softmax(np.asarray(_some(x), np.float64)), divides=True
    )


def _dot(compiler: Compiler, node: ast.Call, arguments: list[ast.expr], _: dict[str, ast.expr]) -> ColumnValue:
    _arguments(compiler, node, arguments, 2, 2)
    one, two = (compiler.vector(each, -1) for each in arguments)
    compiler.broadcast(node, one, two)
    return compiler.joined(
        node, [one, two], NUMBER_TYPE, lambda a, b: np.sum(np.multiply(a, b, dtype=np.float64), axis=-1)
    )


def _label(compiler: Compiler, node: ast.Call, arguments: list[ast.expr], _: dict[str, ast.expr]) -> ColumnValue:
    """Return the label that a step's model has for the number of a class."""
    _arguments(compiler, node, arguments, 2, 2)
    number, step = compiler.scalar(arguments[0]), arguments[1]
    labels = compiler.scope.labels.get(step.id) if isinstance(step, ast.Name) else None
    if labels is None:
        raise compiler.error(step, "is no step that runs a model")
    return compiler.joined(node, [number], TEXT_TYPE, lambda x: named(np.atleast_1d(x), labels))


def named(classes: Array, labels: Sequence[str]) -> Array:
    """Return the label of each class; the number of a class without one."""
    found = np.empty(len(classes), object)
    for row, index in enumerate(classes.tolist()):
        known = math.isfinite(index) and 0 <= int(index) < len(labels)
        found[row] = labels[int(index)].encode() if known else f"{index:g}".encode()
    return found


def _vote(compiler: Compiler, node: ast.Call, arguments: list[ast.expr], _: dict[str, ast.expr]) -> ColumnValue:
    """Return the text that most of several have; of equally many the one that is named first."""
    _arguments(compiler, node, arguments, 2, 16)
    found = [compiler.text(each) for each in arguments]

    def voted(*columns: Any) -> Array:
        count = next((len(column) for column in columns if isinstance(column, np.ndarray)), 1)
        rows = zip(*(column if isinstance(column, np.ndarray) else [column] * count for column in columns), strict=True)
        winners = np.empty(count, object)
        winners[:] = [max(texts, key=texts.count) for texts in rows]
        return winners

    return compiler.joined(node, found, TEXT_TYPE, voted)


def _of_text(function: Callable[[str], Any], of_type: ColumnType) -> Function:
    def call(compiler: Compiler, node: ast.Call, arguments: list[ast.expr], _: dict[str, ast.expr]) -> ColumnValue:
        _arguments(compiler, node, arguments, 1, 1)

        def each(texts: Any) -> Any:
            if isinstance(texts, bytes):
                return function(texts.decode(errors="replace"))
            found = np.empty(len(texts), of_type.datatype.dtype)
            found[:] = [function(text.decode(errors="replace")) for text in texts]
            return found

        return compiler.joined(node, [compiler.text(arguments[0])], of_type, each)

    return call


def _text(compiler: Compiler, node: ast.Call, arguments: list[ast.expr], _: dict[str, ast.expr]) -> ColumnValue:
    """Return a number as a text: with some digits after the point, or a whole one as it is, others with six digits."""
    _arguments(compiler, node, arguments, 1, 2)
    form = ""
    if len(arguments) > 1:
        digits = compiler.scalar(arguments[1])
        if digits.rows is not None or digits.of([]) not in range(10):
            raise compiler.error(arguments[1], "must be 0 to 9, the digits after the point")
        form = f".{int(digits.of([]))}f"

    def shown(number: float) -> bytes:
        if not math.isfinite(number):
            raise StepError("text() of a number that is infinite or no number, as of a division by zero")
        is_whole = not form and number == int(number) and abs(number) < WHOLE_LIMIT
        text = str(int(number)) if is_whole else format(number, form or ".6g")
        return (text if float(text) else text.removeprefix("-")).encode()

    def written(numbers: Any) -> Any:
        if not isinstance(numbers, np.ndarray):
            return shown(numbers)
        return joined_texts([[shown(number)] for number in numbers.tolist()])

    return compiler.joined(node, [compiler.scalar(arguments[0])], TEXT_TYPE, written)


def _join(compiler: Compiler, node: ast.Call, arguments: list[ast.expr], _: dict[str, ast.expr]) -> ColumnValue:
    """Return the texts of rows as one, with a text between them."""
    _arguments(compiler, node, arguments, 1, 2)
    text, between = compiler.text(arguments[0]), b", "
    if len(arguments) > 1:
        given = compiler.text(arguments[1])
        if given.rows is not None:
            raise compiler.error(arguments[1], "must be a constant")
        between = given.of([])

    def reduced(column: Array, places: Array, count: int) -> Array:
        found: list[list[bytes]] = [[] for _ in range(count)]
        for place, each in zip(places.tolist(), column, strict=True):
            found[place].append(each)
        return joined_texts(found, between)

    return compiler.over_rows(node, text, TEXT_TYPE, reduced)


def _contains(compiler: Compiler, node: ast.Call, arguments: list[ast.expr], _: dict[str, ast.expr]) -> ColumnValue:
    _arguments(compiler, node, arguments, 2, 2)
    text, part = (compiler.text(each) for each in arguments)
    if part.rows is not None:
        raise compiler.error(arguments[1], "must be a constant")
    wanted = part.of([])
    return compiler.joined(
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
    def call(compiler: Compiler, node: ast.Call, arguments: list[ast.expr], _: dict[str, ast.expr]) -> ColumnValue:
        _arguments(compiler, node, arguments, 1, 1)
        return compiler.joined(
            node, [compiler.vector(arguments[0], 4)], NUMBER_TYPE, lambda box: function(np.asarray(box, np.float64))
        )

    return call


def _crop(compiler: Compiler, node: ast.Call, arguments: list[ast.expr], _: dict[str, ast.expr]) -> ColumnValue:
    """Return the part of an image in a box, which grows by a factor around its centre."""
    _arguments(compiler, node, arguments, 2, 3)
    image, box = compiler.image(arguments[0]), compiler.vector(arguments[1], 4)
    margin = compiler.scalar(arguments[2]) if len(arguments) > 2 else ColumnValue(NUMBER_TYPE, None, lambda _: 1.0)
    if margin.rows is not None:
        raise compiler.error(arguments[2], "must be a constant")
    factor = margin.of([])
    if not 0.1 <= factor <= 10.0:
        raise compiler.error(arguments[2], "must be between 0.1 and 10")
    return _of_views(compiler, node, image, box, lambda view, row: crop(view, row, factor))


def _warp(compiler: Compiler, node: ast.Call, arguments: list[ast.expr], _: dict[str, ast.expr]) -> ColumnValue:
    """Return the part of an image between four corners, as a rectangle."""
    _arguments(compiler, node, arguments, 2, 2)
    image, corners = compiler.image(arguments[0]), compiler.vector(arguments[1], 4, 2)
    return _of_views(compiler, node, image, corners, warp)


def _align(compiler: Compiler, node: ast.Call, arguments: list[ast.expr], _: dict[str, ast.expr]) -> ColumnValue:
    """Return the part of an image in which key points are where a template has them."""
    _arguments(compiler, node, arguments, 4, 5)
    try:
        template = np.array(ast.literal_eval(arguments[2]))
    except ValueError:  # an expression, or lists of different lengths
        template = np.empty(0)
    is_list = template.dtype.kind in "if" and template.ndim == 2 and template.shape[1] == 2
    template = template.astype(np.float64) if is_list else np.zeros((1, 2))
    if not np.ptp(template, axis=0).any() or np.abs(template).max() > FAR:
        raise compiler.error(arguments[2], "must list different places of key points: [[38.3, 51.7], [73.5, 51.5]]")
    image, points = compiler.image(arguments[0]), compiler.vector(arguments[1], len(template), -1)
    if points.type.shape[0] < 0 or points.type.shape[1] not in {2, 3}:
        raise compiler.error(arguments[1], f"is {points.type.words}; here it must be x, y of {len(template)} points")
    sides = [compiler.scalar(each) for each in arguments[3:]]
    if any(side.rows is not None or side.of([]) not in range(1, ALIGNED_LIMIT_PX + 1) for side in sides):
        raise compiler.error(node, f"needs a width, and a height unless it is the same: 1 to {ALIGNED_LIMIT_PX}")
    width, height = int(sides[0].of([])), int(sides[-1].of([]))
    return _of_views(
        compiler, node, image, points, lambda view, row: align(view, row[:, :2], template, (width, height))
    )


def _turn(compiler: Compiler, node: ast.Call, arguments: list[ast.expr], _: dict[str, ast.expr]) -> ColumnValue:
    """Return an image turned clockwise by a multiple of 90 degrees."""
    _arguments(compiler, node, arguments, 2, 2)
    image, degrees = compiler.image(arguments[0]), compiler.scalar(arguments[1])
    if degrees.rows is None and (rows := image.rows) is not None:
        angle = degrees.of([])
        degrees = ColumnValue(NUMBER_TYPE, rows, lambda values: np.full(values[rows.count], angle))
    return _of_views(compiler, node, image, degrees, turn)


def _of_views(
    compiler: Compiler, node: ast.Call, image: ColumnValue, shape: ColumnValue, function: Callable[[Any, Any], Any]
) -> ColumnValue:
    rows = common_rows(compiler.words, [image, shape], node)
    views, places = lifted(image, rows).of, lifted(shape, rows).of

    def each(values: Values) -> Array:
        found = np.empty(len(where := places(values)), object)
        found[:] = [function(view, row) for view, row in zip(views(values), where, strict=True)]
        return found

    return ColumnValue(ColumnType(IMAGE, datatype=Datatype.BYTES), rows, each)


_FUNCTIONS: Mapping[str, Function] = {
    "abs": _elementwise(np.abs),
    "align": _align,
    "all": _quantifier(every=True),
    "any": _quantifier(every=False),
    "area": _sides(lambda box: (box[:, 2] - box[:, 0]) * (box[:, 3] - box[:, 1])),
    "argmax": _argmax,
    "atan2": _atan2,
    "contains": _contains,
    "count": _count,
    "crop": _crop,
    "default": _default,
    "dot": _dot,
    "exp": _elementwise(np.exp, divides=True),
    "first": _first,
    "floor": _elementwise(np.floor),
    "height": _sides(lambda box: box[:, 3] - box[:, 1]),
    "join": _join,
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
    "text": _text,
    "top": _top,
    "turn": _turn,
    "upper": _of_text(lambda text: text.upper().encode(), TEXT_TYPE),
    "vote": _vote,
    "warp": _warp,
    "width": _sides(lambda box: box[:, 2] - box[:, 0]),
}
