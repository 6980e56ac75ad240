"""Mean IoU against scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gateway.workshop.making.metrics.class_iou import NO_CLASS, NOT_JUDGED, ClassRuns, mean_iou

MAPS = arrays(np.int64, (3, 5), elements=st.integers(0, 4))


@given(st.lists(st.tuples(MAPS, MAPS), min_size=1, max_size=3))
def test_it_is_the_mean_jaccard_index(maps: list[tuple[np.ndarray, np.ndarray]]) -> None:
    from sklearn.metrics import jaccard_score

    found, expected = (np.stack(each) for each in zip(*maps, strict=True))
    wanted = jaccard_score(expected.ravel(), found.ravel(), average="macro")
    runs = [[ClassRuns.of(each) for each in stack] for stack in (found, expected)]
    assert mean_iou(*runs) == pytest.approx(wanted)


def test_pixels_that_are_not_judged_do_not_count_and_no_class_is_no_class() -> None:
    found = ClassRuns.of(np.array([[0, 0, 0, NO_CLASS]]))
    expected = ClassRuns.of(np.array([[0, NOT_JUDGED, NO_CLASS, 0]]))
    assert mean_iou([found], [expected]) == pytest.approx(1 / 3)
    assert math.isnan(mean_iou([found], [ClassRuns.of(np.full((1, 4), NOT_JUDGED))]))


def test_an_expected_map_of_another_size_is_resampled() -> None:
    numbers = np.array([[0, 1], [2, 1]])
    assert mean_iou([ClassRuns.of(numbers)], [ClassRuns.of(np.kron(numbers, np.ones((3, 2), int)))]) == 1.0
