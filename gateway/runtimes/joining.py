"""Joining proof: different rows are run apart and together, and every output is compared. Runs in the trial's child."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from gateway.domain.errors import VariantError
from gateway.domain.joining import constant, forbidden, spreads, worst
from gateway.domain.tensor import Array, Tensors
from gateway.domain.verdict import Joining

SMALL_SIZES = (2, 3)
"""Rows of the runs that are compared with runs of one row, in addition to a run of all rows; one number is odd."""
REPEATED_ROWS = 3
"""Rows that are run apart a second time, in reverse order, to find state and randomness."""
UNDECIDED = "which proves nothing"
"""End of the reason of a proof whose rows had equal answers: they may or may not affect each other."""

Run = Callable[[Tensors], dict[str, Array]]


def prove(run: Run, rows: Sequence[Tensors], precision: str, operators: frozenset[str]) -> Joining:
    """Run `rows` (one row each) apart and together, and return what that proves.

    `run` returns finished outputs that it does not change later.
    """
    try:
        apart = [run(row) for row in rows]
        again = [run(row) for row in reversed(rows[:REPEATED_ROWS])]
        reason = _unstable(apart, again, precision) or _uninformative(apart) or _dependent(run, rows, apart, precision)
    except VariantError as error:
        reason = f"a run of several generated rows failed: {error.reason}"
    if reason:
        return Joining(reason=reason)
    obstacle = forbidden(operators)
    return Joining(independent=True, allowed=not obstacle, reason=obstacle, rows=len(rows))


def row_runs(rows: int) -> int:
    """Return the number of rows that a proof with so many different ones runs in all."""
    return rows + REPEATED_ROWS + 2 * sum(_sizes(rows))


def _sizes(rows: int) -> tuple[int, ...]:
    return (rows, *(size for size in SMALL_SIZES if size < rows))


def stacked(rows: Sequence[Tensors]) -> dict[str, Array]:
    """Return the inputs of one run of several rows."""
    return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}


def _unstable(apart: Sequence[Tensors], again: Sequence[Tensors], precision: str) -> str:
    for first, second in zip(reversed(apart[: len(again)]), again, strict=True):
        apart_by, output = worst(first, second, precision)
        if output:
            return f"answers to the same input differ by up to {apart_by:.3g} between runs (output {output!r})"
    return ""


def _uninformative(apart: Sequence[Tensors]) -> str:
    output = constant(apart)
    return f"output {output!r} was the same for every row that was tried, {UNDECIDED}" if output else ""


def widened(joining: Joining, run: Run, rows: Sequence[Tensors], most: int, precision: str) -> Joining:
    """Return a proof extended to a run of `most` rows, in which `rows` repeat.

    If that run fails, the proof stays as it is: the gateway joins no more rows than it covers.
    """
    if not joining.independent or most <= len(rows):
        return joining
    try:
        apart = [run(row) for row in rows]
        reason = _joined_differs(run, rows, apart, [index % len(rows) for index in range(most)], precision)
    except (VariantError, MemoryError):
        return joining
    return Joining(reason=reason) if reason else replace(joining, rows=most)


def _dependent(run: Run, rows: Sequence[Tensors], apart: Sequence[Tensors], precision: str) -> str:
    for size in _sizes(len(rows)):  # the largest first: TensorRT builds an engine per range of shapes
        for order in (range(size), range(size - 1, -1, -1)):
            if reason := _joined_differs(run, rows, apart, order, precision):
                return reason
    return ""


def _joined_differs(
    run: Run, rows: Sequence[Tensors], apart: Sequence[Tensors], order: Sequence[int], precision: str
) -> str:
    together, spread = run(stacked([rows[index] for index in order])), spreads(apart)
    for place, index in enumerate(order):
        reason = _row_differs(apart[index], together, place, len(order), precision=precision, spread=spread)
        if reason:
            return reason
    return ""


def _row_differs(
    alone: Tensors, together: Tensors, place: int, size: int, *, precision: str, spread: Mapping[str, float]
) -> str:
    for name, array in together.items():
        if array.shape[:1] != (size,):
            return f"output {name!r} has shape {list(array.shape)} for {size} joined rows"
    own = {name: array[place : place + 1] for name, array in together.items()}
    apart_by, output = worst(alone, own, precision, spread)
    return f"joined answers differ by up to {apart_by:.3g} (output {output!r})" if output else ""
