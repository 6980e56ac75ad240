"""Mean IoU of maps of classes: the measure of semantic segmentation.

Formula: for each class, the pixels that have it in both maps, over those that have it in one of them, counted over all
images; the mean over the classes that occur. Source: PASCAL VOC (Everingham et al. 2010), "segmentation accuracy". It
is scikit-learn's `jaccard_score` with `average="macro"`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gateway.common.domain.tensor import Array
from gateway.serving.tasks.run_lengths import class_runs

NO_CLASS, NOT_JUDGED = -1, -2
"""Pixels without a class (background of a model of one class); pixels whose class is not known (void)."""


@dataclass(frozen=True, slots=True)
class ClassRuns:
    """Map of classes of `size` (height, width) as runs, column by column: edges [k + 1] and classes [k]."""

    size: tuple[int, int]
    edges: Array
    classes: Array

    @classmethod
    def of(cls, numbers: Array) -> ClassRuns:
        """Return the runs of a map [height, width]."""
        return cls((numbers.shape[0], numbers.shape[1]), *class_runs(numbers))

    def resized(self, size: tuple[int, int]) -> ClassRuns:
        """Return the map in another size, by its nearest pixels."""
        if size == self.size:
            return self
        numbers = np.repeat(self.classes, np.diff(self.edges)).reshape(self.size[::-1]).T
        rows, columns = (
            np.minimum(((np.arange(wanted) + 0.5) * (given / wanted)).astype(int), given - 1)
            for wanted, given in zip(size, self.size, strict=True)
        )
        return self.of(numbers[np.ix_(rows, columns)])


def mean_iou(found: Sequence[ClassRuns], expected: Sequence[ClassRuns]) -> float:
    """Return the mean IoU of the classes that occur; NaN if none does."""
    pairs = [_pixels(*pair) for pair in zip(found, expected, strict=True)]
    mine, theirs, pixels = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    classes = np.unique(np.concatenate((mine, theirs)))
    shares = [_iou(mine == number, theirs == number, pixels) for number in classes[classes >= 0]]
    return float(np.mean(shares)) if shares else math.nan


def _iou(mine: Array, theirs: Array, pixels: Array) -> float:
    return float(pixels[mine & theirs].sum() / pixels[mine | theirs].sum())


def _pixels(found: ClassRuns, expected: ClassRuns) -> tuple[Array, Array, Array]:
    """Return the classes of two maps of an image in the runs of both, and the pixels of each run, if judged."""
    expected = expected.resized(found.size)
    edges = np.unique(np.concatenate((found.edges, expected.edges)))
    starts, pixels = edges[:-1], np.diff(edges)
    mine, theirs = (each.classes[np.searchsorted(each.edges, starts, "right") - 1] for each in (found, expected))
    is_judged = theirs != NOT_JUDGED
    return mine[is_judged], theirs[is_judged], pixels[is_judged]
