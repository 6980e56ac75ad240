"""Mean average precision of detections: mAP at an overlap of 0.5.

Formula (COCO's `COCOeval`, which measures VOC's criterion of 0.5 with 101 points): in each image, detections take the
expected object of their class with the greatest overlap, best score first; an overlap below `threshold` is none, and an
object is taken once. Detections that take an object marked as crowd count neither way. Over all images, the precision
at a recall r is the greatest one at any recall of r or more; the average precision of a class is its mean at the
recalls 0, 0.01, …, 1. The result is the mean over the classes that are expected.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from gateway.common.domain.tensor import Array

RECALLS = np.linspace(0.0, 1.0, 101)
"""Recalls at which the precision is taken."""


class Shapes(Protocol):
    """Places of n objects of an image: boxes, polygons, masks or points."""

    def overlaps(self, mine: Array, others: Any, theirs: Array, crowd: Array) -> Array:
        """Return the overlap 0..1 of each pair [p]: of `mine[i]` here and `theirs[i]` of `others`, of the same type.

        Where `crowd`, the overlap is the share of `mine` that is covered.
        """


@dataclass(frozen=True, slots=True)
class Objects:
    """Objects of an image: found ones with scores, or expected ones, some of which are a crowd. All are [n]."""

    classes: Array
    scores: Array
    crowd: Array
    shapes: Shapes


def mean_average_precision(found: Sequence[Objects], expected: Sequence[Objects], threshold: float = 0.5) -> float:
    """Return the mean average precision of the images; NaN if no object is expected in any of them."""
    classes = np.concatenate([each.classes for each in found])
    scores = np.concatenate([each.scores for each in found])
    taken = [matches(*pair, threshold) for pair in zip(found, expected, strict=True)]
    is_right = np.concatenate([right for right, _ in taken])
    is_counted = np.concatenate([counted for _, counted in taken])
    numbers, counts = np.unique(np.concatenate([e.classes[~e.crowd] for e in expected]), return_counts=True)
    if not len(numbers):
        return math.nan
    chosen = [(classes == number) & is_counted for number in numbers]
    pairs = zip(chosen, counts, strict=True)
    return float(np.mean([average_precision(scores[own], is_right[own], int(count)) for own, count in pairs]))


def matches(found: Objects, expected: Objects, threshold: float) -> tuple[Array, Array]:
    """Return whether each detection [n] of an image takes an expected object, and whether it counts."""
    mine, theirs = np.nonzero(found.classes[:, np.newaxis] == expected.classes)
    overlaps = np.zeros((len(found.classes), len(expected.classes)))
    overlaps[mine, theirs] = found.shapes.overlaps(mine, expected.shapes, theirs, expected.crowd[theirs])
    is_right, is_counted = np.zeros(len(overlaps), bool), np.ones(len(overlaps), bool)
    is_free = ~expected.crowd
    for index in np.argsort(-found.scores, kind="stable"):
        near = overlaps[index] >= threshold
        if (near & is_free).any():
            best = np.where(near & is_free, overlaps[index], -1.0)
            is_free[len(best) - 1 - best[::-1].argmax()] = False  # of equal overlaps the last one, as COCO has it
            is_right[index] = True
        else:
            is_counted[index] = not (near & expected.crowd).any()
    return is_right, is_counted


def average_precision(scores: Array, is_right: Array, expected: int) -> float:
    """Return the average precision of one class, of which `expected` objects are there."""
    order = np.argsort(-scores, kind="stable")
    right = np.cumsum(is_right[order])
    recall, precision = right / expected, right / np.arange(1, len(order) + 1)
    envelope = np.append(np.maximum.accumulate(precision[::-1])[::-1], 0.0)
    return float(envelope[np.searchsorted(recall, RECALLS, side="left")].mean())
