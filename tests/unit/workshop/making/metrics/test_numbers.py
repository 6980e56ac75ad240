"""AUC, mean absolute error and explained deviation against scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gateway.workshop.making.metrics import deviation
from gateway.workshop.making.metrics.roc_auc import roc_auc

SCORED = st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=30)
VALUES = arrays(np.float64, (6, 3), elements=st.integers(-5, 5))


@given(SCORED)
def test_auc_is_that_of_scikit_learn_also_with_equal_scores(scored: list[tuple[int, bool]]) -> None:
    from sklearn.metrics import roc_auc_score

    scores, flags = np.array([each for each, _ in scored], float), np.array([each for _, each in scored])
    assume(flags.any() and not flags.all())
    assert roc_auc(scores, flags) == pytest.approx(roc_auc_score(flags, scores))


def test_auc_needs_both_kinds_and_a_score_that_is_nan_is_the_least() -> None:
    assert math.isnan(roc_auc(np.array([1.0, 2.0]), np.array([True, True])))
    assert roc_auc(np.array([math.nan, 2.0]), np.array([True, False])) == 0.0


@given(VALUES, VALUES)
def test_deviations_are_those_of_scikit_learn(found: np.ndarray, expected: np.ndarray) -> None:
    from sklearn.metrics import d2_absolute_error_score, mean_absolute_error

    assert deviation.mean_absolute_error(found, expected) == pytest.approx(mean_absolute_error(expected, found))
    wanted = d2_absolute_error_score(expected, found)
    assert deviation.explained_deviation(found, expected) == pytest.approx(wanted)


def test_a_value_that_is_no_number_explains_nothing() -> None:
    found, expected = np.array([[math.nan], [1.0]]), np.array([[0.0], [1.0]])
    assert deviation.mean_absolute_error(found, expected) == math.inf
    assert deviation.explained_deviation(found, expected) == -math.inf
