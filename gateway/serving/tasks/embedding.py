"""Embedding: a vector per row, of length 1, that is compared by cosine similarity.

Kind: `embedding`.

Formula: v = x / ‖x‖₂, where x is the output of a row, reduced over the axes before the last one if `pool` is set. The
similarity of two vectors of length 1 is their inner product. A vector of zeros stays as it is.

Expected of the model: one output with the vector on its last axis, as networks for faces (ArcFace), re-identification,
images (CLIP, DINO) and speakers give it. Text encoders give one vector per token: `pool = "first"` takes the first one
(CLS, as BERT and ViT mean it), `mean` the mean of all, which is right only for inputs without padding.

| option | type, default | meaning |
| --- | --- | --- |
| `output` | text | output with the vector; required if the model has several float outputs |
| `pool` | `none`, `first`, `mean`; `none` | reduction of the axes before the last one |
| `normalise` | flag, true | the vector gets length 1 |

Document: `{"embedding": [...]}`; null if the vector is not finite.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gateway.common.domain.document import Table
from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest import ModelManifest, TensorSpec
from gateway.common.domain.tensor import Array, Datatype, Tensors
from gateway.serving.domain.decimals import decimals
from gateway.serving.tasks.frame import Frame
from gateway.serving.tasks.row_outputs import FLOATS, read_output, to_fp32


@dataclass(frozen=True, slots=True)
class EmbeddingResult:
    """Vector [size] of one row, FP32."""

    vector: Array

    def document(self) -> dict[str, Any]:
        """Return the vector as a list of numbers; null if it is not finite."""
        return {"embedding": decimals(self.vector) if np.isfinite(self.vector).all() else None}

    def tensors(self) -> dict[str, Array]:
        """Return the array `embedding` [size]."""
        return {"embedding": self.vector}


class Embedding:
    """Task of models that give a vector for comparison. Raises ConfigurationError if the output is no vector."""

    def __init__(self, manifest: ModelManifest, options: Table) -> None:
        self._output = read_output(manifest, options, among=FLOATS)
        self._pool = options.text("pool", "none", among=("none", "first", "mean"))
        self._normalise = options.flag("normalise", True)
        options.finish()
        axes = len(self._output.sizes)
        if axes > 2 or (axes == 2) != (self._pool != "none"):
            problem = f"output '{self._output.name}' has {axes} axes in one row, not counting those of size 1"
            options.refuse("pool", f"{problem}; none takes 1, first and mean take 2")

    @property
    def results(self) -> tuple[TensorSpec, ...]:
        """Return the declaration of the vector."""
        return (TensorSpec("embedding", Datatype.FP32, self._output.sizes[-1:] or (1,)),)

    def interpret(self, outputs: Tensors, frame: Frame | None) -> EmbeddingResult:
        """Return the vector of one row. `frame` is not used: a vector has no place in an image."""
        values = self._output.values(outputs)
        if not values.size:
            raise RequestError(Fault.UNSUPPORTED, f"output '{self._output.name}' of the model is empty")
        with np.errstate(over="ignore", invalid="ignore"):  # infinite values: null in the document
            vector = self._pooled(values.astype(np.float64))
        return EmbeddingResult(to_fp32(unit(vector) if self._normalise else vector))

    def _pooled(self, values: Array) -> Array:
        """Return the vector [size] of FP64 values."""
        if self._pool == "none":
            return values.reshape(-1)
        return np.asarray(values[0] if self._pool == "first" else values.mean(axis=0))


def unit(vectors: Array) -> Array:
    """Return FP64 vectors [..., size] with length 1. Zeros stay zeros; a vector that is not finite becomes NaN."""
    with np.errstate(invalid="ignore"):
        largest = np.abs(vectors).max(axis=-1, keepdims=True)
        scaled = vectors / np.where(largest == 0.0, 1.0, largest)  # squares of FP64 would overflow
        length = np.linalg.norm(scaled, axis=-1, keepdims=True)
        return np.asarray(scaled / np.where(length == 0.0, 1.0, length))


def cosine(first: Array, second: Array) -> Array:
    """Return the cosine similarities [n, m] of vectors [n, size] and [m, size]; 0 for a vector of zeros."""
    similarities: Array = unit(first.astype(np.float64)) @ unit(second.astype(np.float64)).T
    return similarities.clip(-1.0, 1.0)
