"""Columns of a pipeline: their types, and the rows that they have.

A request has rows. A step that finds objects or tiles makes other rows of each of them, and a column belongs to the
rows of one step. An expression that reads columns of several steps has the rows of the last one; values of the rows
that these were made of are repeated. Values of all columns of a request are in one list, by slot.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gateway.common.domain.expressions import ExpressionError
from gateway.common.domain.tensor import Array, Datatype

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
class ColumnValue:
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
IMAGE_TYPE = ColumnType(IMAGE, datatype=Datatype.BYTES)


def lifted(value: ColumnValue, rows: RowSet | None) -> ColumnValue:
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


def common_rows(expression: str, found: Sequence[ColumnValue], node: ast.AST | None = None) -> RowSet | None:
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


def spread(value: ColumnValue, values: Values, count: int) -> Any:
    """Return the rows of a value: those of a constant are all the same."""
    column = value.of(values)
    if value.rows is not None:
        return column
    if value.type.kind == TEXT:
        whole = np.empty(count, object)
        whole[:] = column
        return whole
    return np.full(count, column)


def placed(value: ColumnValue, rows: RowSet) -> ColumnValue:
    """Return a value with one row for each of `rows`, also of a constant."""
    if value.rows is None:
        return replace(value, rows=rows, of=lambda values: spread(value, values, values[rows.count]))
    return lifted(value, rows)


def owner_of(rows: RowSet, owner: RowSet, values: Values) -> Array:
    """Return the place of each row's owner among the rows of `owner`."""
    places: Array | None = None
    for each in rows.lineage():
        if each is owner:
            break
        index = values[each.index]
        places = index if places is None else index[places]
    return np.arange(values[rows.count]) if places is None else places


def place_in_group(groups: Array) -> Array:
    """Return how many earlier elements are in the same group, for each."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    begins = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(groups) else np.zeros(0, int)
    places = np.empty(len(groups), int)
    places[order] = np.arange(len(groups)) - np.repeat(begins, np.diff(np.r_[begins, len(groups)]))
    return places


class StepError(Exception):
    """Failure of a step for the data of one request."""
