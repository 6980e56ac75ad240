"""Overlap of masks: intersection over union (IoU) of their pixels, from run lengths.

Formula: the pixels of a mask before pixel x are a function that grows by 1 in each pixel of a run and is constant
between runs. The intersection is the sum of its differences over the other mask's runs. The result is that of COCO's
`maskApi.c`, `rleIou`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gateway.common.domain.tensor import Array
from gateway.serving.tasks.run_lengths import encode_region
from gateway.workshop.making.metrics.boxes import ratio


@dataclass(frozen=True, slots=True)
class Masks:
    """Masks of `size` (height, width): COCO's counts of each, column by column, outside first."""

    size: tuple[int, int]
    counts: Sequence[Array]

    def overlaps(self, mine: Array, others: Masks, theirs: Array, crowd: Array) -> Array:
        """Return the IoU of each pair. Masks of another size are resampled to this one."""
        fitting = others.resized(self.size)
        first, second = [_Runs(each) for each in self.counts], [_Runs(each) for each in fitting.counts]
        pairs = list(zip(mine.tolist(), theirs.tolist(), strict=True))
        common = np.array([second[there].within(first[here]) for here, there in pairs])
        areas, other_areas = (np.array([each.area for each in runs]) for runs in (first, second))
        if not pairs:
            return np.empty(0)
        return ratio(common, areas[mine], other_areas[theirs], crowd)

    def resized(self, size: tuple[int, int]) -> Masks:
        """Return the masks in another size, by their nearest pixels."""
        if size == self.size:
            return self
        rows, columns = (
            np.minimum(((np.arange(wanted) + 0.5) * (given / wanted)).astype(int), given - 1)
            for wanted, given in zip(size, self.size, strict=True)
        )
        regions = (decoded(each, self.size)[np.ix_(rows, columns)] for each in self.counts)
        return type(self)(size, [encode_region(region, 0, 0, size) for region in regions])


class _Runs:
    """Runs of one mask, and the number of its pixels before each of their ends."""

    def __init__(self, counts: Array) -> None:
        self.edges = np.concatenate(([0], np.cumsum(counts)))
        self.before = np.concatenate(([0], np.cumsum(np.where(np.arange(len(counts)) % 2, counts, 0))))
        self.area = float(self.before[-1])

    def within(self, other: _Runs) -> float:
        """Return the number of pixels that are in both masks."""
        before = np.interp(other.edges, self.edges, self.before)
        return float((before[2::2] - before[1:-1:2]).sum())


def decoded(counts: Array, size: tuple[int, int]) -> Array:
    """Return a mask as flags [height, width]."""
    flags = np.repeat(np.arange(len(counts)) % 2 == 1, counts)
    return np.asarray(flags.reshape(size[::-1]).T)
