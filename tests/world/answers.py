"""Comparison of one answer with the runtime's own answer for the same input."""

from __future__ import annotations

from enum import Enum

import numpy as np

from tests.world.entry import Array, Tensors

ROUNDING_STEPS = {2: 16, 4: 1024, 8: 1024}
"""Allowed difference by item size, in units of the type's epsilon times the output's largest magnitude.

A joined run may compute in another order than a run alone; what is joined wrongly differs by far more.
"""


class Judgement(Enum):
    """Comparison of an answer: bit for bit, within float rounding, or not."""

    EXACT = "exact"
    ROUNDED = "rounded"
    WRONG = "wrong"


def compare(got: Tensors, expected: Tensors, *, shapes_only: bool = False) -> Judgement:
    """Compare all outputs; the worst one decides. `shapes_only`: the model's values are random or depend on state."""
    if got.keys() != expected.keys():
        return Judgement.WRONG
    found = {_compare(got[name], expected[name], shapes_only=shapes_only) for name in expected}
    return next(each for each in reversed(Judgement) if each in found or each is Judgement.EXACT)


def _compare(got: Array, expected: Array, *, shapes_only: bool) -> Judgement:
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return Judgement.WRONG
    if shapes_only or np.array_equal(got, expected, equal_nan=expected.dtype.kind == "f"):
        return Judgement.EXACT
    if expected.dtype.kind != "f" or not _same_special(got, expected):
        return Judgement.WRONG
    finite = np.isfinite(expected)
    wide, true = got[finite].astype(np.float64), expected[finite].astype(np.float64)
    allowed = ROUNDING_STEPS[expected.itemsize] * float(np.finfo(expected.dtype).eps) * np.abs(true).max(initial=0)
    return Judgement.ROUNDED if (np.abs(wide - true) <= allowed).all() else Judgement.WRONG


def _same_special(got: Array, expected: Array) -> bool:
    """Return whether NaN and infinities are at the same places."""
    finite = np.isfinite(expected)
    return np.array_equal(got[~finite], expected[~finite], equal_nan=True) and bool(np.isfinite(got[finite]).all())
