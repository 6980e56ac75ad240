"""Postprocessing of a variant's outputs: softmax, and Triton's classification extension."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gateway.common.domain.manifest import ModelManifest
from gateway.common.domain.tensor import Array, Tensors


def softmax(scores: Array) -> Array:
    """Return the softmax over the last axis, in the scores' own dtype.

    Each row is shifted by its maximum, so that the exponential never overflows.
    """
    shifted = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=-1, keepdims=True))


def finish_outputs(manifest: ModelManifest, raw: Tensors) -> dict[str, Array]:
    """Return the manifest's outputs in its order, each with its declared postprocess applied."""
    return {
        spec.name: softmax(raw[spec.name]) if spec.postprocess == "softmax" else raw[spec.name]
        for spec in manifest.outputs
    }


def classify(scores: Array, count: int, labels: Sequence[str], *, batched: bool) -> Array:
    """Return the `count` best classes of each row as BYTES "score:index[:label]", best first.

    The shape is [rows, k] if `batched`, else [k]; k = min(count, classes). Source: Triton's classification extension.
    """
    rows = scores.reshape(scores.shape[0], -1) if batched else scores.reshape(1, -1)
    count = min(count, rows.shape[-1])
    order = np.argsort(-rows.astype(np.float64), axis=-1, kind="stable")[:, :count]
    named = np.empty(order.shape, object)
    for row, ranked in enumerate(order):
        named[row] = [_class_text(float(rows[row, index]), int(index), labels) for index in ranked]
    return named if batched else named[0]


def _class_text(score: float, index: int, labels: Sequence[str]) -> bytes:
    label = f":{labels[index]}" if index < len(labels) else ""
    return f"{score:f}:{index}{label}".encode()
