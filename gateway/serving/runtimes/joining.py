"""Runs of rows apart and together, which may contradict a proof that rows are independent. Runs in the trial's child.

Such runs never prove it: a maximum over all rows, a NaN, or an overflow acts on some numbers only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from gateway.common.domain.errors import VariantError, is_temporary
from gateway.common.domain.tensor import Array, Tensors
from gateway.common.domain.verdict import Joining
from gateway.serving.domain.joining import worst

SMALL_SIZES = (2, 3)
"""Rows of the runs that are compared with runs of one row, in addition to a run of all rows; one number is odd."""
REPEATED_ROWS = 3
"""Rows that are run apart a second time, in reverse order, to find state and randomness."""
Run = Callable[[Tensors], dict[str, Array]]


def difference(run: Run, rows: Sequence[Tensors], extremes: Sequence[Sequence[Tensors]], precision: str) -> str:
    """Run `rows` (one row each) apart and together, and next to groups of extreme rows. Return what differs, or "".

    `run` returns finished outputs that it does not change later.
    """
    try:
        apart = [run(row) for row in rows]
        again = [run(row) for row in reversed(rows[:REPEATED_ROWS])]
        return (
            _unstable(apart, again, precision)
            or _dependent(run, rows, apart, precision)
            or next(filter(None, (_disturbed(run, rows, apart, group, precision) for group in extremes)), "")
        )
    except VariantError as error:
        return f"a run of several generated rows failed: {error.reason}"


def row_runs(rows: int, extremes: Sequence[Sequence[Tensors]]) -> int:
    """Return the number of rows that `difference` runs in all: `rows` (at least 2) different ones, and extreme ones."""
    mixed = sum(len(group) - len(group) // (1 - rows) * rows for group in extremes)
    return rows + min(rows, REPEATED_ROWS) + 2 * (rows + sum(size for size in SMALL_SIZES if size < rows)) + mixed


def stacked(rows: Sequence[Tensors]) -> dict[str, Array]:
    """Return the inputs of one run of several rows."""
    return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}


def decided(basis: str, obstacle: str, found: str, rows: int) -> Joining:
    """Return the result: what permits joining (`basis`), or the `obstacle`; what runs `found` ends a proof only.

    A lack of memory ends nothing for good: the trial is repeated.
    """
    if is_temporary(found):
        obstacle, found = obstacle or found, ""
    elif basis == "proved" and found:
        obstacle = f"its graph proves that rows are independent, but runs contradict it: {found}"
    return Joining(basis, obstacle, found, 1 if obstacle else rows)


def widened(joining: Joining, run: Run, rows: Sequence[Tensors], most: int, precision: str) -> Joining:
    """Return a result for a run of `most` rows, in which `rows` repeat.

    If that run fails, the result stays as it is: the gateway joins no more rows than have run.
    """
    if not joining.allowed or most <= len(rows):
        return joining
    try:
        apart = [run(row) for row in rows]
        found = _joined_differs(run, rows, apart, [index % len(rows) for index in range(most)], precision)
    except (VariantError, MemoryError):
        return joining
    return decided(joining.basis, "", found, most) if found else replace(joining, rows=most)


def _unstable(apart: Sequence[Tensors], again: Sequence[Tensors], precision: str) -> str:
    for first, second in zip(reversed(apart[: len(again)]), again, strict=True):
        apart_by, output = worst(first, second, precision)
        if output:
            return f"answers to the same input differ by up to {apart_by:.3g} between runs (output {output!r})"
    return ""


def _dependent(run: Run, rows: Sequence[Tensors], apart: Sequence[Tensors], precision: str) -> str:
    # the largest first: TensorRT builds an engine per range of shapes
    for size in (len(rows), *(size for size in SMALL_SIZES if size < len(rows))):
        for order in (range(size), range(size - 1, -1, -1)):
            if reason := _joined_differs(run, rows, apart, order, precision):
                return reason
    return ""


def _disturbed(
    run: Run, rows: Sequence[Tensors], apart: Sequence[Tensors], extremes: Sequence[Tensors], precision: str
) -> str:
    """Compare rows next to extreme ones, as many as `rows` in all. Extreme rows that the model refuses are left out."""
    room = len(rows) - 1
    for start in range(0, len(extremes), room):
        added, answers = list[Tensors](), list[Tensors]()
        for row in extremes[start : start + room]:
            try:
                answer = run(row)
            except VariantError:
                continue
            added.append(row)
            answers.append(answer if all(map(_is_finite, answer.values())) else {})
        mixed, own = [*added, *rows[: len(rows) - len(added)]], [*answers, *apart]
        if added and (reason := _joined_differs(run, mixed, own, range(len(mixed)), precision)):
            return reason
    return ""


def _is_finite(array: Array) -> bool:
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def _joined_differs(
    run: Run, rows: Sequence[Tensors], apart: Sequence[Tensors], order: Sequence[int], precision: str
) -> str:
    """Compare a run of rows with their answers alone; a row without one is a neighbour only."""
    together = run(stacked([rows[index] for index in order]))
    for name, array in together.items():
        if array.shape[:1] != (len(order),):
            return f"output {name!r} has shape {list(array.shape)} for {len(order)} joined rows"
    for place, index in enumerate(order):
        own = {name: array[place : place + 1] for name, array in together.items()}
        apart_by, output = worst(apart[index], own, precision)
        if output:
            return f"joined answers differ by up to {apart_by:.3g} (output {output!r})"
    return ""
