"""Outputs of one row: their declared shapes, and the arrays without dimensions of size 1 in front."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest import ModelManifest, TensorSpec
from gateway.common.domain.tensor import Array, Tensors


def row_shape(spec: TensorSpec, manifest: ModelManifest, rank: int) -> tuple[int, ...]:
    """Return the shape of one row of an output, with at most `rank` dimensions if the first ones are 1.

    Exports with a batch of exactly one keep that dimension: [1, 84, 8400] is [84, 8400].
    """
    shape = spec.shape[1:] if manifest.batched else spec.shape
    while len(shape) > rank and shape[0] == 1:
        shape = shape[1:]
    return shape


def row_array(outputs: Tensors, name: str, rank: int) -> Array:
    """Return an output of one row with exactly `rank` dimensions, in FP32 or FP64.

    Raises RequestError UNSUPPORTED if it is absent or has another number of dimensions.
    """
    array = outputs.get(name)
    if array is None:
        raise RequestError(Fault.UNSUPPORTED, f"output '{name}' is missing; the task needs it")
    if array.ndim > rank and math.prod(array.shape[: array.ndim - rank]) == 1:
        array = array.reshape(array.shape[array.ndim - rank :])
    if array.ndim != rank:
        raise unfit(name, array.shape, f"{rank} dimensions per row")
    return array if array.dtype in {np.dtype(np.float32), np.dtype(np.float64)} else array.astype(np.float32)


def unfit(name: str, shape: Sequence[int], wanted: str) -> RequestError:
    """Return the refusal of an output that is not as declared."""
    return RequestError(Fault.UNSUPPORTED, f"output '{name}' has shape {list(shape)}; the task needs {wanted}")
