"""Masks as uncompressed run lengths of COCO: `{"size": [height, width], "counts": [...]}`.

`counts` are lengths of runs in column-major order (down the first column, then the next one). They alternate between
pixels outside and inside of the mask and begin with outside, with 0 if the first pixel is inside. Source: COCO's
`cocoapi`, maskApi.h. Its decoders take `counts` as they are.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gateway.common.domain.tensor import Array


def encode_region(region: Array, left: int, top: int, size: tuple[int, int]) -> Array:
    """Return the counts INT64 [k] of a mask of `size` (height, width) with `region` (flags [h, w]) at (left, top)."""
    height = len(region)
    columns = np.zeros((region.shape[1], height + 2), bool)
    columns[:, 1:-1] = region.T
    column, row = np.divmod(np.flatnonzero(columns[:, 1:] != columns[:, :-1]), height + 1)
    return _counts((left + column) * size[0] + top + row, size[0] * size[1])


def class_runs(numbers: Array) -> tuple[Array, Array]:
    """Return the edges [k + 1] of the runs of a map [height, width], column by column, and their classes [k].

    Changes are looked for along rows of memory and sorted afterwards: they are few, and a transposed copy of the map
    would take longer.
    """
    height, width = numbers.shape
    rows, columns = np.divmod(np.flatnonzero(numbers[1:] != numbers[:-1]), width)
    tops = np.flatnonzero(numbers[0, 1:] != numbers[-1, :-1]) + 1
    starts = np.sort(np.concatenate(([0], columns * height + rows + 1, tops * height)))
    return np.append(starts, height * width), numbers[starts % height, starts // height]


def encode_classes(numbers: Array) -> Iterator[tuple[int, Array]]:
    """Yield each class of a map [height, width] with the counts of its mask, by ascending class."""
    edges, values = class_runs(numbers)
    for number in np.unique(values):
        runs = np.flatnonzero(values == number)
        yield int(number), _counts(np.stack((edges[runs], edges[runs + 1]), axis=1).ravel(), numbers.size)


def _counts(edges: Array, pixels: int) -> Array:
    """Return the counts for the beginnings and ends of runs, ascending. Runs that touch become one."""
    touching = np.flatnonzero(edges[1:] == edges[:-1])
    edges = np.delete(edges, np.concatenate((touching, touching + 1)))
    counts = np.diff(np.concatenate(([0], edges, [pixels])))
    return counts[:-1] if len(edges) and edges[-1] == pixels else counts
