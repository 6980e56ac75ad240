"""Choice of the output that a task reads, its values for one row, and numbers for documents. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from gateway.common.domain.document import Table
from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest import ModelManifest, TensorSpec, fits
from gateway.common.domain.tensor import Array, Datatype, Tensors
from gateway.serving.domain.decimals import decimals

NUMBERS = frozenset(datatype for datatype in Datatype if datatype not in {Datatype.BYTES, Datatype.BOOL})
FLOATS = frozenset({Datatype.FP16, Datatype.BF16, Datatype.FP32, Datatype.FP64})


@dataclass(frozen=True, slots=True)
class RowOutput:
    """Tensor of a model, for one row: `shape` has no row dimension; -1 is an open size."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the shape without dimensions of size 1, which some exporters add."""
        return tuple(size for size in self.shape if size != 1)

    def values(self, outputs: Tensors) -> Array:
        """Return the tensor's array, of shape `sizes`.

        Raises RequestError UNSUPPORTED if it is absent or not of the declared shape.
        """
        array = outputs.get(self.name)
        if array is None:
            raise RequestError(
                Fault.UNSUPPORTED, f"the model's answer has no output '{self.name}', which its task reads"
            )
        if not fits(array.shape, self.shape):
            problem = f"output '{self.name}' of the model has shape {list(array.shape)} in one row"
            raise RequestError(Fault.UNSUPPORTED, f"{problem}; its manifest declares {list(self.shape)}")
        return array.reshape([size for size, declared in zip(array.shape, self.shape, strict=True) if declared != 1])


def row_tensor(manifest: ModelManifest, spec: TensorSpec) -> RowOutput:
    """Return the tensor `spec` of a model without its row dimension."""
    return RowOutput(spec.name, spec.datatype, spec.shape[1:] if manifest.batched else spec.shape)


def read_output(
    manifest: ModelManifest, options: Table, key: str = "output", among: Collection[Datatype] = NUMBERS
) -> RowOutput:
    """Take the option `key`, the name of an output with one of the datatypes `among`.

    Without the option, the model must have exactly one such output. Raises ConfigurationError otherwise.
    """
    fitting = [spec for spec in manifest.outputs if spec.datatype in among]
    names = ", ".join(spec.name for spec in fitting) or "none"
    if key not in options:
        if len(fitting) != 1:
            options.refuse(key, f"missing; name one output of the model (those of a fitting datatype: {names})")
        return row_tensor(manifest, fitting[0])
    wanted = options.text(key)
    found = next((spec for spec in fitting if spec.name == wanted), None)
    if found is None:
        options.refuse(key, f"must name an output of a fitting datatype ({names}), not {wanted!r:.150}")
    return row_tensor(manifest, found)


def finite(value: float) -> float | None:
    """Return the value; None, which JSON can carry, if it is infinite or NaN."""
    return value if math.isfinite(value) else None


def to_fp64(values: Array) -> Array:
    """Return the values as FP64: of FP16 and FP32 their shortest decimals, so that 27.1 is no 27.100000381469727."""
    return np.array(decimals(values), np.float64).reshape(values.shape)


def to_fp32(values: Array) -> Array:
    """Return the values as FP32; those beyond its range become infinite."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32)
