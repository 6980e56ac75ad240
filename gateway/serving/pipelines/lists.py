"""Work on long lists: the nearest vectors of a gallery, and merging of objects without those that overlap. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from gateway.common.domain.tensor import Array
from gateway.serving.pipelines.columns import ColumnValue, Values
from gateway.serving.pipelines.slices import Slices
from gateway.serving.tasks.boxes import iou_overlaps, suppress
from gateway.serving.tasks.candidates import within_classes
from gateway.serving.tasks.views import FAR

SLICE_WORK = 500_000_000
"""Most multiplications of one slice of a comparison: about 20 ms."""
ASKED_ROWS = 256
"""Most rows that are compared with a gallery at once."""


def unit_vectors(vectors: Array) -> Array:
    """Return vectors [n, d] with the length 1; one of zeros as it is."""
    with np.errstate(all="ignore"):
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return np.asarray(vectors / np.where(lengths > 0, lengths, 1.0), np.float32)


def nearest(asked: Array, vectors: Array) -> Slices[tuple[Array, Array]]:
    """Return the largest similarity of each vector, and where it is; 0 without `vectors`."""
    scores, best = np.zeros(len(asked), np.float32), np.zeros(len(asked), int)
    if not len(vectors):
        return scores, best
    scores[:] = -np.inf
    for begin in range(0, len(asked), ASKED_ROWS):
        rows = asked[begin : begin + ASKED_ROWS]
        top, place = scores[begin : begin + ASKED_ROWS], best[begin : begin + ASKED_ROWS]
        several = max(1, SLICE_WORK // max(1, rows.size))
        for first in range(0, len(vectors), several):
            alike = rows @ vectors[first : first + several].T
            places = np.argmax(alike, axis=1)
            found = alike[np.arange(len(rows)), places]
            better = ~(found <= top)
            top[better], place[better] = found[better], places[better] + first
            yield
    return scores, best


def merged(
    values: Values, fills: Iterable[tuple[int, list[ColumnValue]]], owned: Array, nms: Sequence[ColumnValue], iou: float
) -> Array:
    """Fill the columns of merged rows, which have the owners `owned`, in the order of these; return the owners."""
    order = np.argsort(owned, kind="stable")
    for slot, parts in fills:
        values[slot] = np.concatenate([part.of(values) for part in parts])[order]
    owned = owned[order]
    if nms:
        boxes, scores, labels = (value.of(values) for value in nms)
        kept = unsuppressed(boxes, scores, labels, owned, iou)
        for slot, _ in fills:
            values[slot] = values[slot][kept]
        owned = owned[kept]
    return owned


def unsuppressed(boxes: Array, scores: Array, labels: Array, groups: Array, iou: float) -> Array:
    """Return the places of the boxes that no better one of the same group and label overlaps by more than `iou`."""
    _, kinds = np.unique(labels, return_inverse=True)
    kinds = groups * (kinds.max(initial=0) + 1) + kinds
    order = np.argsort(-np.nan_to_num(scores, nan=-np.inf), kind="stable")
    best_first = np.clip(np.asarray(boxes[order].T, np.float64), -FAR, FAR)
    overlaps = within_classes(iou_overlaps(best_first, iou), kinds[order])
    return np.sort(order[suppress(len(order), overlaps, len(order))])
