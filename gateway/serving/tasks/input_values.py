"""Conversion of computed values to the datatype of an input."""

from __future__ import annotations

from typing import Any

import numpy as np

from gateway.common.domain.tensor import Array


def cast_values(values: Array, dtype: np.dtype[Any]) -> Array:
    """Convert to `dtype`. Integers are rounded and clipped to their range, as quantised inputs expect."""
    if dtype.kind in "iu" and not np.can_cast(values.dtype, dtype):
        bounds = np.iinfo(dtype)
        values = np.rint(values).clip(bounds.min, bounds.max)
    return np.ascontiguousarray(values, dtype)
