"""Rules that decide whether requests may share a run: how answers are compared, and which operators forbid it. Pure.

Answers of the same rows, computed apart and together, differ by rounding: engines sum in another order where a matrix
has another number of rows. Measured with ONNX Runtime on models of packages, that is 0 to 4 steps of the least
significant bit of the largest element; rows that do depend on each other differ by far more (decision 0023).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gateway.domain.tensor import Array, Tensors

EPSILON: Mapping[str, float] = {"fp32": 2.0**-23, "int8": 2.0**-23, "fp16": 2.0**-10, "bf16": 2.0**-7}
"""Relative rounding error of one operation, by a variant's precision."""
ROUNDING_STEPS = 1024
"""Rounding errors that a row's answer may add up, relative to the largest element of that answer."""

UNREADABLE = "unreadable graph"
"""Stands for the operators of a file that could not be read: it may hold any."""
CONTROL_FLOW = frozenset(
    {UNREADABLE, "If", "Loop", "Scan", "TensorIterator", "WHILE", "IF", "CALL_ONCE", "STABLEHLO_WHILE"}
)
"""Operators that choose or repeat parts of a graph (ONNX, OpenVINO, TensorFlow Lite)."""
RANDOM = frozenset(
    {
        *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"),
        *("RANDOM_STANDARD_NORMAL", "RANDOM_UNIFORM", "MULTINOMIAL", "STABLEHLO_RNG_BIT_GENERATOR"),
    }
)
"""Operators whose answers differ from run to run."""
STATE = frozenset({"ReadValue", "Assign", "VAR_HANDLE", "ASSIGN_VARIABLE", "READ_VARIABLE"})
"""Operators that keep values from one run to the next."""
DATA_DEPENDENT = frozenset(
    {
        *("NonZero", "Unique", "Compress", "NonMaxSuppression", "StringSplit"),
        *("WHERE", "UNIQUE", "NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5"),
    }
)
"""Operators whose output shape depends on values."""


def forbidden(operators: frozenset[str]) -> str:
    """Return why a graph with these operators may not run several requests together, "" where it may."""
    for kind, known in (("control flow", CONTROL_FLOW), ("randomness", RANDOM), ("state", STATE)):
        if found := sorted(operators & known):
            return f"the model has {kind} ({', '.join(found)})"
    return ""


def unbounded(operators: frozenset[str]) -> str:
    """Return why a trial cannot bound the time of a run of such a graph, "" where it can."""
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
    finite = np.abs(expected[np.isfinite(expected)])
    step = max(EPSILON[precision], float(np.finfo(expected.dtype).eps))
    return float(finite.max(initial=0.0)) * step * ROUNDING_STEPS


def worst(expected: Tensors, answers: Tensors, precision: str) -> tuple[float, str]:
    """Return the largest difference beyond rounding over all outputs, and that output's name; (0, "") for none."""
    found = (0.0, "")
    for name, array in expected.items():
        apart = difference(array, answers[name])
        if apart > rounding(array, precision) and apart > found[0]:
            found = (apart, name)
    return found


def constant(answers: Sequence[Tensors]) -> str:
    """Return the name of an output that is the same for every row, "" where each differs somewhere."""
    first = answers[0]
    for name, array in first.items():
        if not array.size or all(difference(array, other[name]) == 0.0 for other in answers[1:]):
            return name
    return ""
