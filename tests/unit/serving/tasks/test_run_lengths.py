"""Run lengths of masks, compared with pycocotools."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from pycocotools import mask as coco

from gateway.common.domain.tensor import Array
from gateway.serving.tasks.run_lengths import encode_classes, encode_region
from tests.simulators.coco_masks import decoded_mask


def decoded(counts: Array, size: tuple[int, int]) -> Array:
    return decoded_mask({"size": list(size), "counts": counts.tolist()})


def naive(mask: Array) -> list[int]:
    """Return the counts, pixel by pixel."""
    counts, inside = [0], False
    for pixel in mask.T.ravel().tolist():
        if pixel != inside:
            counts, inside = [*counts, 0], pixel
        counts[-1] += 1
    return counts


@given(
    region=arrays.arrays(np.bool_, st.tuples(st.integers(0, 6), st.integers(0, 6))),
    margins=st.tuples(*[st.integers(0, 3)] * 4),
)
def test_a_region_of_a_mask(region: Array, margins: tuple[int, int, int, int]) -> None:
    top, bottom, left, right = margins
    mask = np.pad(region, ((top, bottom), (left, right)))
    counts = encode_region(region, left, top, mask.shape)
    assert counts.tolist() == naive(mask)
    if mask.size:
        assert np.array_equal(decoded(counts, mask.shape), mask)


@given(numbers=arrays.arrays(np.int32, st.tuples(st.integers(1, 6), st.integers(1, 6)), elements=st.integers(-1, 3)))
def test_the_masks_of_a_map_of_classes(numbers: Array) -> None:
    masks = dict(encode_classes(numbers))
    assert list(masks) == np.unique(numbers).tolist()
    for number, counts in masks.items():
        assert counts.tolist() == naive(numbers == number)
        assert np.array_equal(decoded(counts, numbers.shape), numbers == number)


def test_pycocotools_measures_the_same_area_and_box() -> None:
    region = np.zeros((20, 30), bool)
    region[5:15, 8:20] = True
    counts = encode_region(region, 100, 40, (480, 640))
    packed = coco.frPyObjects({"size": [480, 640], "counts": counts.tolist()}, 480, 640)
    assert int(coco.area(packed)) == 120
    assert coco.toBbox(packed).tolist() == [108.0, 45.0, 12.0, 10.0]
