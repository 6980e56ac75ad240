"""Quality of variants on held-out samples, and what follows from it. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gateway.common.domain.manifest import Tolerance
from gateway.common.domain.tensor import Array, Tensors
from gateway.serving.domain.golden import GoldenSet, compare_golden

SPARE_SHARE = 0.01
"""Share of the samples (at least one) that may change their class elsewhere: int8 differs between processors."""
SPARE_FACTOR = 5.0
"""Factor by which differences may be greater elsewhere than where they were measured."""
LEAST_MEAN_ABS = 0.005
"""Least mean absolute difference that is allowed."""


@dataclass(frozen=True, slots=True)
class Quality:
    """Quality of a variant. `accuracy` is in 0..1; `agreement` and `mean_abs` are as in `compare_golden`.

    `figures` are other measures of its task, by name.
    """

    accuracy: float
    agreement: float
    mean_abs: float
    figures: Mapping[str, float] = field(default_factory=dict)


def basis_of(golden: GoldenSet) -> str:
    """Return what accuracy is by tensors.

    `labels`: share of right classes; `agreement`: of the reference's classes; `similarity`: of the values.
    """
    if not _has_classes(golden.outputs[_judged(golden.outputs)]):
        return "similarity"
    return "labels" if golden.label is not None else "agreement"


def quality(golden: GoldenSet, answers: Tensors) -> Quality:
    """Return the quality of a variant's answers to the inputs of a golden set."""
    result, basis, name = compare_golden(golden, answers, Tolerance()), basis_of(golden), _judged(golden.outputs)
    expected, answer = golden.outputs[name], answers[name]
    if basis == "similarity" or expected.shape != answer.shape:
        return Quality(similarity(expected, answer), result.agreement, result.mean_abs)
    right = expected.argmax(axis=1) if golden.label is None else golden.label
    return Quality(float(np.mean(answer.argmax(axis=1) == right)), result.agreement, result.mean_abs)


def _judged(outputs: Tensors) -> str:
    """Return the output that decides: the first one with scores of classes, else the first one."""
    return next((name for name, array in outputs.items() if _has_classes(array)), next(iter(outputs)))


def _has_classes(array: Array) -> bool:
    return array.dtype.kind == "f" and array.ndim == 2 and array.shape[1] > 1


def similarity(expected: Array, answer: Array) -> float:
    """Return 1 less the norm of the difference relative to the norm of the expected values, at least 0."""
    if expected.shape != answer.shape or expected.dtype.kind not in "fiu":
        return float(np.array_equal(expected, answer))
    whole = float(np.linalg.norm(expected.astype(np.float64)))
    difference = float(np.linalg.norm(answer.astype(np.float64) - expected.astype(np.float64)))
    if not math.isfinite(difference):
        return 0.0
    return max(0.0, 1.0 - difference / whole) if whole else float(difference == 0.0)


def tolerances(qualities: Mapping[str, Sequence[Quality]], rows: int) -> dict[str, Tolerance]:
    """Return what a variant of each runtime must reach on a golden set of `rows`, from the worst that was measured."""
    return {runtime: _tolerance(found, rows) for runtime, found in qualities.items()}


def _tolerance(found: Sequence[Quality], rows: int) -> Tolerance:
    spare = max(1, math.floor(rows * SPARE_SHARE)) / rows
    agreement = max(0.0, min(each.agreement for each in found) - spare)
    mean_abs = max(LEAST_MEAN_ABS, SPARE_FACTOR * max(each.mean_abs for each in found))
    return Tolerance(math.floor(round(agreement * 1000, 6)) / 1000, math.ceil(round(mean_abs * 1000, 6)) / 1000)


def is_lossy(accuracy: float, best: float, max_loss: float) -> bool:
    """Return True if a variant loses more than `max_loss` of the best accuracy."""
    return best - accuracy > max_loss + 1e-9
