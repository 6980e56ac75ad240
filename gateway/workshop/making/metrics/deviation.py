"""Deviation of numbers from expected ones: mean absolute error (MAE), and the share of the spread that is explained.

Formula: D² = 1 − Σ |y − ŷ| / Σ |y − median(y)| for each quantity, and the mean over the quantities; 1 is exact, 0 is no
better than always answering the median. Source: Koenker and Machado 1999; scikit-learn's `d2_absolute_error_score`.
"""

from __future__ import annotations

import numpy as np

from gateway.common.domain.tensor import Array


def mean_absolute_error(found: Array, expected: Array) -> float:
    """Return the mean absolute error of values [samples, quantities]; infinite if a value is not finite."""
    with np.errstate(invalid="ignore"):
        error = float(np.abs(found - expected).mean())
    return error if np.isfinite(error) else float("inf")


def explained_deviation(found: Array, expected: Array) -> float:
    """Return D² of values [samples, quantities]; minus infinity if a found value is not finite.

    A quantity that is the same in all samples has 1 where it is met exactly, else 0.
    """
    if not np.isfinite(found).all():
        return float("-inf")
    errors = np.abs(found - expected).sum(axis=0)
    spread = np.abs(expected - np.median(expected, axis=0)).sum(axis=0)
    shares = 1.0 - np.divide(errors, spread, out=(errors > 0).astype(np.float64), where=spread > 0)
    return float(shares.mean())
