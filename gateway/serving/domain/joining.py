"""Comparison of answers apart and joined, and operators that forbid joining or bounds. Pure functions.

Answers of the same rows, computed apart and together, differ by rounding: engines sum in another order if a matrix
has another number of rows. Measured with ONNX Runtime on models of packages, that is 0 to 4 steps of the least
significant bit of the largest element; rows that do depend on each other differ by far more (decision 0023).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gateway.common.domain.tensor import Array, Tensors

ROUNDING: Mapping[str, float] = {"fp32": 2.0**-13, "int8": 2.0**-13, "fp16": 2.0**-6, "bf16": 2.0**-4}
"""Rounding error of a row's answer relative to its largest element, by a variant's precision.

1024 steps of fp32, 16 of fp16, 8 of bf16 (engines sum narrow floats in fp32).
"""
HALF_BYTES = 2
"""Size of the floats whose rounding is at least that of fp16, whatever the variant's precision says."""

UNREADABLE = "unreadable graph"
"""Placeholder for the operators of a file that could not be read: it may contain any."""
CONTROL_FLOW = frozenset(
    {UNREADABLE, "If", "Loop", "Scan", "TensorIterator", "WHILE", "IF", "CALL_ONCE", "STABLEHLO_WHILE"}
)
"""Operators that choose or repeat parts of a graph (ONNX, OpenVINO, TensorFlow Lite)."""
STATE = frozenset({"ReadValue", "Assign", "VAR_HANDLE", "ASSIGN_VARIABLE", "READ_VARIABLE"})
"""Operators that keep values between runs."""
DATA_DEPENDENT = frozenset(
    {
        *("NonZero", "Unique", "Compress", "NonMaxSuppression", "StringSplit"),
        *("WHERE", "UNIQUE", "NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5"),
    }
)
"""Operators whose output shape depends on values."""


def has_state(operators: frozenset[str]) -> str:
    """Return why a graph with these operators may not run several requests together, or ""."""
    found = sorted(operators & STATE)
    return f"the model keeps state between runs ({', '.join(found)})" if found else ""


def unbounded(operators: frozenset[str]) -> str:
    """Return why a trial cannot bound the time of a run of such a graph, or ""."""
    for kind, known in (("control flow", CONTROL_FLOW), ("data-dependent shapes", DATA_DEPENDENT)):
        if found := sorted(operators & known):
            return f"{kind} ({', '.join(found)})"
    return ""


def difference(expected: Array, answer: Array) -> float:
    """Return the largest absolute difference; infinite for other shapes, texts that differ or a NaN on one side."""
    if expected.shape != answer.shape or expected.dtype != answer.dtype:
        return float("inf")
    if np.array_equal(expected, answer, equal_nan=expected.dtype.kind == "f"):
        return 0.0
    if expected.dtype.kind not in "fiu":
        return float("inf")
    left, right = expected.astype(np.float64), answer.astype(np.float64)
    same = (left == right) | (np.isnan(left) & np.isnan(right))  # infinities have no difference
    with np.errstate(invalid="ignore"):
        apart = np.nan_to_num(np.abs(right - left), nan=np.inf, posinf=np.inf)
    return float(np.where(same, 0.0, apart).max())


def rounding(expected: Array, precision: str) -> float:
    """Return the difference that rounding alone may cause in one row's output of a variant of this precision."""
    if expected.dtype.kind != "f" or not expected.size:
        return 0.0
    finite = np.abs(expected[np.isfinite(expected)].astype(np.float64))
    half = expected.dtype.itemsize <= HALF_BYTES
    return float(finite.max(initial=0.0)) * max(ROUNDING[precision], ROUNDING["fp16"] if half else 0.0)


def worst(expected: Tensors, answers: Tensors, precision: str) -> tuple[float, str]:
    """Return the largest difference beyond rounding over all outputs, and that output's name; (0, "") for none."""
    found = (0.0, "")
    for name, array in expected.items():
        apart = difference(array, answers[name])
        if apart > rounding(array, precision) and apart > found[0]:
            found = (apart, name)
    return found
