"""Shares of requests, and how far two versions' answers agree."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.errors import Fault, RequestError
from gateway.serving.domain.sharing import WeightedRoundRobin, check_weights, compare, main_version, percentages


@st.composite
def shares(draw: st.DrawFn) -> dict[str, int]:
    """Draw percentages of up to five versions, 100 in all."""
    cuts = sorted(draw(st.lists(st.integers(0, 100), max_size=4)))
    return {str(n): high - low for n, (low, high) in enumerate(zip([0, *cuts], [*cuts, 100], strict=True))}


@given(shares(), st.integers(0, 250))
def test_any_hundred_requests_in_a_row_are_shared_exactly(weights: dict[str, int], skipped: int) -> None:
    check_weights("m", weights)
    turns = WeightedRoundRobin(weights)
    for _ in range(skipped):
        turns.next()
    counted = Counter(turns.next() for _ in range(100))
    assert counted == Counter({version: weight for version, weight in weights.items() if weight})


@given(shares(), st.integers(1, 100))
def test_turns_are_spread_evenly(weights: dict[str, int], count: int) -> None:
    turns = WeightedRoundRobin(weights)
    counted = Counter(turns.next() for _ in range(count))
    assert all(abs(counted[v] - count * weight / 100) < len(weights) for v, weight in weights.items())


def test_five_percent_is_every_twentieth() -> None:
    turns = WeightedRoundRobin({"1": 95, "2": 5})
    places = [place for place in range(100) if turns.next() == "2"]
    assert {later - sooner for sooner, later in pairwise(places)} == {20}


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ({}, "add up to 0; make them 100"),
        ({"1": 99}, "add up to 99; make them 100"),
        ({"1": 95, "2": 6}, "add up to 101"),
        ({"1": 101, "2": -1}, "version 1 has the weight 101; write a whole number of percent"),
        ({"1": 100, "2": -1}, "version 2 has the weight -1"),
        ({"1": 99.5, "2": 0.5}, "version 1 has the weight 99.5"),
        ({"1": True, "2": 99}, "version 1 has the weight True"),
    ],
)
def test_weights_that_are_none_are_refused(weights: dict[str, int], words: str) -> None:
    with pytest.raises(RequestError, match="model 'm'") as error:
        check_weights("m", weights)
    assert error.value.fault is Fault.INVALID
    assert words in error.value.message


def test_the_version_with_most_weight_stands_for_all() -> None:
    assert main_version({"1": 5, "2": 95}) == "2"
    assert main_version({"9": 50, "10": 50}) == "10"
    assert percentages({"1": 60, "2": 20}) == {"1": 75, "2": 25}


def scores(*rows: list[float]) -> dict[str, np.ndarray]:
    return {"y": np.array(rows, np.float32)}


def test_rows_are_compared_by_their_best_class() -> None:
    found = compare(scores([0.9, 0.1], [0.2, 0.8]), scores([0.6, 0.4], [0.7, 0.3]), 2)
    assert (found.rows, found.disagreed) == (2, 1)
    assert found.mean_abs == pytest.approx(0.4)


def test_values_without_classes_agree_within_what_golden_sets_are_allowed() -> None:
    answers, others = np.array([[1.0], [1.0], [100.0]]), np.array([[1.001], [1.5], [100.5]])
    assert compare({"y": answers}, {"y": others}, 3).disagreed == 1


def test_a_row_disagrees_where_any_output_does() -> None:
    answers = {"a": np.array([1, 2, 3]), "b": np.array([b"x", b"y", b"z"], object)}
    others = {"a": np.array([1, 0, 3]), "b": np.array([b"x", b"y", b"?"], object)}
    assert compare(answers, others, 3).disagreed == 2


def test_answers_of_another_shape_disagree_whole_and_have_no_difference() -> None:
    found = compare({"y": np.zeros((2, 3))}, {"y": np.zeros((2, 4))}, 2)
    assert (found.rows, found.disagreed, found.mean_abs) == (2, 2, math.inf)


def test_nothing_agrees_with_nothing() -> None:
    assert compare({"y": np.zeros((1, 0))}, {"y": np.zeros((1, 0))}, 1).disagreed == 0


def test_an_output_that_the_other_lacks_cannot_be_compared() -> None:
    with pytest.raises(KeyError):
        compare(scores([1.0]), {}, 1)
