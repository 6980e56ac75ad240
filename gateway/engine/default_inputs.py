"""Inputs that a request may leave out: the manifest has a value for all their elements."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gateway.domain.infer import InferRequest
from gateway.domain.manifest import ModelManifest, TensorSpec
from gateway.domain.tensor import Tensor


class DefaultInputs:
    """Inputs with a `default`. Remembers the tensor of each for the last number of rows."""

    def __init__(self, manifest: ModelManifest) -> None:
        self._batched = manifest.batched
        self.specs = tuple(spec for spec in manifest.inputs if spec.default is not None)
        self._tensors: dict[str, Tensor] = {}

    def rows_needed(self, request: InferRequest) -> int:
        """Return the rows of the inputs that a request leaves out: those of its others; 0 if it has all.

        A model without rows gets 1 where the first dimension is open.
        """
        if all(spec.name in request.inputs for spec in self.specs):
            return 0
        sent = (tensor.array.shape[0] for tensor in request.inputs.values() if tensor.array.ndim)
        return max(1, next(sent, 1)) if self._batched else 1

    def complete(self, request: InferRequest, rows: int) -> InferRequest:
        """Return the request with the inputs that it leaves out, in `rows` rows."""
        missing = [spec for spec in self.specs if spec.name not in request.inputs]
        return replace(request, inputs={**request.inputs, **{spec.name: self._tensor(spec, rows) for spec in missing}})

    def _tensor(self, spec: TensorSpec, rows: int) -> Tensor:
        shape = tuple(rows if size < 0 else size for size in spec.shape)
        known = self._tensors.get(spec.name)
        if known is None or known.array.shape != shape:
            array = np.full(shape, spec.default, spec.datatype.dtype)
            array.flags.writeable = False  # requests share it
            known = self._tensors[spec.name] = Tensor(spec.datatype, array)
        return known
