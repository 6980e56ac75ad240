"""Samples from tables of numbers: a row each or, for an input [rows, steps, channels], windows of rows. Pure."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gateway.common.domain.manifest import ModelManifest, TensorSpec
from gateway.common.domain.tensor import Array
from gateway.serving.tasks.catalog import task_of
from gateway.workshop.making.samples import sample_shape
from gateway.workshop.making.truth.cells import NAMES, read_cells, truth_columns
from gateway.workshop.making.truth.kinds import TruthKind, truth_kind

TIMES = ("time", "timestamp", "date", "datetime", "index", "id")
"""Names of columns that are no values of a model."""


@dataclass(frozen=True, slots=True)
class TableSamples:
    """Samples of a table: the name of the class of each, or another truth of each; None: not known."""

    inputs: Mapping[str, Array]
    names: list[str] | None = None
    truth: list[Any] | None = None


@dataclass(frozen=True, slots=True)
class _Table:
    """Rows with their header (empty: without names), and the columns that have the truth."""

    header: list[str]
    rows: list[list[str]]
    kind: TruthKind
    truth: list[int] = field(default_factory=list)

    def cells(self) -> list[tuple[str, ...]]:
        """Return the cells of the truth of each row."""
        return [tuple(row[place].strip() for place in self.truth) for row in self.rows]


def read_table(content: bytes, manifest: ModelManifest) -> TableSamples:
    """Return the samples of a table, which may leave out inputs with a default. Raises ValueError."""
    rows = [row for row in csv.reader(io.StringIO(content.decode("utf-8-sig"))) if row]
    if not rows:
        raise ValueError("it has no rows")
    header = [] if any(map(_is_number, rows[0])) else [cell.strip() for cell in rows.pop(0)]
    kind = truth_kind(manifest)
    table = _Table(header, rows, kind, _truth_columns(kind, header, rows, manifest))
    short = next((row for row in rows if table.truth and len(row) <= max(table.truth)), None)
    if short is not None:
        raise ValueError(f"a row has {len(short)} columns, fewer than the first one: {','.join(short)!r:.80}")
    specs = [spec for spec in manifest.inputs if spec.default is None or spec.name in header] or manifest.inputs[:1]
    if len(specs) == 1:
        return _one_input(table, specs[0], manifest)
    if not all(spec.name in header for spec in specs):
        raise ValueError(f"its columns must be called {', '.join(spec.name for spec in specs)}")
    columns = {spec.name: _numbers(rows, [header.index(spec.name)]) for spec in specs}
    inputs = {
        spec.name: columns[spec.name]
        .reshape(-1, *([1] * len(sample_shape(manifest, spec))))
        .astype(spec.datatype.dtype)
        for spec in specs
    }
    return _with_truth(inputs, table, 1)


def _truth_columns(
    kind: TruthKind, header: Sequence[str], rows: Sequence[Sequence[str]], manifest: ModelManifest
) -> list[int]:
    """Return the columns of the truth: by name or, of classes without names, the only one that is no number."""
    if header or not rows or kind is not TruthKind.CLASSES:
        return [] if kind is TruthKind.FORECASTS else truth_columns(kind, header, manifest)
    words = [place for place, cell in enumerate(rows[0]) if not _is_number(cell)]
    return words if len(words) == 1 else []


def _one_input(table: _Table, spec: TensorSpec, manifest: ModelManifest) -> TableSamples:
    rows = table.rows
    shape = sample_shape(manifest, spec)
    if not 1 <= len(shape) <= 2 or shape[-1] < 1:
        raise ValueError(f"a table gives samples [columns] or [steps, channels], not {list(shape)}; give .npz")
    values = _numbers(rows, _columns(table, len(rows[0]) if rows else 0, shape[-1], manifest))
    if len(shape) == 1:
        return _with_truth({spec.name: values.astype(spec.datatype.dtype)}, table, 1)
    steps = shape[0] if shape[0] > 0 else len(values)
    count = len(values) // steps if steps else 0
    if not count:
        raise ValueError(f"it has {len(values)} rows, fewer than one window of {shape[0]}")
    inputs = {spec.name: values[: count * steps].reshape(count, steps, -1).astype(spec.datatype.dtype)}
    if table.kind is TruthKind.FORECASTS:
        return TableSamples(inputs, truth=_following(table, values, steps, manifest))
    return _with_truth(inputs, table, steps)


def _following(table: _Table, values: Array, steps: int, manifest: ModelManifest) -> list[Any] | None:
    """Return the rows after each window of `steps` rows, in the forecast's channels; None at the end of the table.

    There are none for a model whose forecast has another scale than its input, or channels that are not in the table.
    """
    task, options = task_of(manifest), manifest.task_options or {}
    if task is None or {"scale", "offset"} & options.keys():
        return None
    horizon, width = task.results[0].shape[:2]
    names = tuple(options.get("channels", ())) or (manifest.window.channels if manifest.window else ())
    if names and all(name in table.header for name in names):
        values = _numbers(table.rows, [table.header.index(name) for name in names])
    if horizon < 1 or width != values.shape[1]:
        return None
    parts = [values[end : end + horizon] for end in range(steps, len(values) + 1, steps)]
    return [part if len(part) == horizon else None for part in parts]


def _with_truth(inputs: Mapping[str, Array], table: _Table, steps: int) -> TableSamples:
    """Return the samples with the truth of their `steps` rows: the most frequent class, any anomaly, the last value."""
    if not table.truth:
        return TableSamples(inputs)
    cells = table.cells()
    windows = [cells[end - steps : end] for end in range(steps, len(cells) + 1, steps)]
    if table.kind is TruthKind.CLASSES:
        return TableSamples(inputs, names=[Counter(window).most_common(1)[0][0][0] for window in windows])
    read = read_cells(table.kind, cells)
    parts = [read[end - steps : end] for end in range(steps, len(cells) + 1, steps)]
    if table.kind is TruthKind.FLAGS:
        return TableSamples(inputs, truth=[max(part, key=lambda each: each.is_anomalous) for part in parts])
    return TableSamples(inputs, truth=[part[-1] for part in parts])


def _columns(table: _Table, there: int, wanted: int, manifest: ModelManifest) -> list[int]:
    """Return the columns of the values: the channels of the manifest's window, else all but the truth and times."""
    channels = manifest.window.channels if manifest.window else ()
    if channels and all(channel in table.header for channel in channels):
        return [table.header.index(channel) for channel in channels]
    left_out = {*table.truth} | {at for at, name in enumerate(table.header) if name.lower() in TIMES}
    columns = [at for at in range(there) if at not in left_out]
    if len(columns) != wanted:
        names = NAMES.get(table.kind, ())
        raise ValueError(
            f"it has {len(columns)} columns of values ({', '.join(table.header) or 'without names'}), but the model "
            f"takes {wanted}" + (f"; a column of {table.kind.value} is called {' or '.join(names)}" if names else "")
        )
    return columns


def _numbers(rows: Sequence[Sequence[str]], columns: Sequence[int]) -> Array:
    for number, row in enumerate(rows, 1):
        if len(row) <= max(columns) or not all(_is_number(row[place]) for place in columns):
            raise ValueError(f"row {number} has no number in each of its {len(columns)} columns: {','.join(row)!r:.80}")
    return np.array([[float(row[place]) for place in columns] for row in rows], np.float64)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
