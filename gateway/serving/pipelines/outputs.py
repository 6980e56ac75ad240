"""Outputs of a pipeline: tensors, and one JSON document for each row of the request. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gateway.common.domain.manifest import TensorSpec
from gateway.common.domain.tensor import Array, Datatype
from gateway.serving.pipelines.columns import (
    ColumnValue,
    RowSet,
    Values,
    owner_of,
    place_in_group,
    spread,
)
from gateway.serving.tasks.interpreter import ABSENT

DIGITS = 6
"""Decimals of numbers in documents."""
DOCUMENT_VALUES = 10_000
"""Most values of one entry in a document; outputs with more are tensors only."""


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """Output as a tensor: its value, and the rows of which it has one list for each row of the request (None: one)."""

    spec: TensorSpec
    value: ColumnValue
    made: RowSet | None
    key: tuple[str, ...]


def as_tensor(output: OutputColumn, root: RowSet, values: Values) -> Array:
    """Return an output with the request's rows first. Lists of different lengths are filled up with ABSENT or 0."""
    value, datatype = output.value, output.spec.datatype
    rows, count = output.made, values[root.count]
    column = spread(value, values, values[rows.count] if rows else count)
    if value.present is not None:
        there = value.present(values)
        if not np.all(there):
            column = np.array(column)
            column[~np.asarray(there)] = filler(datatype)
    if rows is None:
        return column if datatype is Datatype.BYTES else np.ascontiguousarray(column, datatype.dtype)
    owned = owner_of(rows, root, values)
    places = place_in_group(owned)
    whole = np.full((count, int(places.max(initial=-1)) + 1, *column.shape[1:]), filler(datatype), datatype.dtype)
    whole[owned, places] = column
    return whole


def work_of(outputs: Sequence[OutputColumn], root: RowSet, values: Values) -> float:
    """Return how many values the outputs have; infinite if a shape is not declared."""
    shapes = [(output.value.type.shape, values[(output.made or root).count]) for output in outputs]
    return sum(rows * math.prod(shape) if min(shape, default=1) >= 0 else math.inf for shape, rows in shapes)


def filler(datatype: Datatype) -> Any:
    """Return the value of what is absent."""
    return b"" if datatype is Datatype.BYTES else ABSENT if datatype.dtype.kind == "i" else 0


def documents(outputs: Sequence[OutputColumn], root: RowSet, values: Values) -> Array:
    """Return one JSON object for each row of the request: its outputs by name. What is absent or no number is null."""
    count = values[root.count]
    rows: list[dict[str, Any]] = [{} for _ in range(count)]
    for output in outputs:
        name, made, value = output.key[0], output.made, output.value
        column = spread(value, values, values[made.count] if made else count)
        if math.prod(column.shape[1:]) > DOCUMENT_VALUES:
            continue
        listed = _plain(column)
        if value.present is not None:
            pairs = zip(listed, value.present(values), strict=True)
            listed = [entry if there else None for entry, there in pairs]
        nested = output.key[1] if len(output.key) > 1 else ""
        if made is None:
            for row, entry in zip(rows, listed, strict=True):
                _put(row, name, nested, entry)
            continue
        lists = [list[Any]() for _ in range(count)]
        for owner, entry in zip(owner_of(made, root, values).tolist(), listed, strict=True):
            lists[owner].append(entry)
        for row, each in zip(rows, lists, strict=True):
            if not nested:
                row[name] = each
                continue
            for thing, entry in zip(row.setdefault(name, [{} for _ in each]), each, strict=True):
                thing[nested] = entry
    found = np.empty(count, object)
    found[:] = [json.dumps(row, ensure_ascii=False, allow_nan=False).encode() for row in rows]
    return found


def _put(row: dict[str, Any], name: str, nested: str, entry: Any) -> None:
    if nested:
        row.setdefault(name, {})[nested] = entry
    else:
        row[name] = entry


def _plain(column: Array) -> list[Any]:
    """Return a column as values that JSON can carry."""
    if column.dtype == object:
        return [text.decode(errors="replace") if isinstance(text, bytes) else _plain(text) for text in column]
    if column.dtype.kind != "f":
        plain: list[Any] = column.tolist()
        return plain
    with np.errstate(over="ignore"):
        rounded = np.round(np.asarray(column, np.float64), DIGITS) + 0.0  # + 0.0: no "-0.0" in JSON
    if np.isfinite(rounded).all():
        finite: list[Any] = rounded.tolist()
        return finite
    return _without_nan(rounded.tolist())


def _without_nan(values: list[Any]) -> list[Any]:
    return [
        _without_nan(value) if isinstance(value, list) else value if math.isfinite(value) else None for value in values
    ]
