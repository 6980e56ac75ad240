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
        self.specs = tuple(spec for spec in manifest.inputs if spec.default is not None)
        self._tensors: dict[str, Tensor] = {}

    def complete(self, request: InferRequest) -> InferRequest:
        """Return the request with the inputs that it leaves out; itself if it has all."""
        missing = [spec for spec in self.specs if spec.name not in request.inputs]
        if not missing:
            return request
        rows = next((tensor.array.shape[0] for tensor in request.inputs.values() if tensor.array.ndim), 1)
        return replace(request, inputs={**request.inputs, **{spec.name: self._tensor(spec, rows) for spec in missing}})

    def _tensor(self, spec: TensorSpec, rows: int) -> Tensor:
        shape = tuple(rows if size < 0 else size for size in spec.shape)
        known = self._tensors.get(spec.name)
        if known is None or known.array.shape != shape:
            array = np.full(shape, spec.default, spec.datatype.dtype)
            array.flags.writeable = False  # requests share it
            known = self._tensors[spec.name] = Tensor(spec.datatype, array)
        return known
