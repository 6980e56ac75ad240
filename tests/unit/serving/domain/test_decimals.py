"""Shortest decimals of floats."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.tensor import Array
from gateway.serving.domain.decimals import SINGLE_LIMIT, decimals

COUNTS = pytest.mark.parametrize("count", [1, SINGLE_LIMIT + 1])
"""Numbers of elements: those that are converted one by one, and those that are converted as an array."""


@COUNTS
@pytest.mark.parametrize("datatype", [np.float32, np.float16])
def test_numbers_are_as_short_as_they_were_written(datatype: type, count: int) -> None:
    for number in (27.1, -0.3, 1e-3, 65_500.0, 0.0, 12.5):
        assert decimals(np.full(count, number, datatype)) == [number] * count
    assert str(decimals(np.full(count, -np.inf, datatype))[-1]) == "-inf"
    assert str(decimals(np.full(count, np.nan, datatype))[-1]) == "nan"


@COUNTS
@given(st.floats(width=32, allow_nan=False))
def test_every_number_is_read_as_the_same_one(count: int, number: float) -> None:
    array: Array = np.full(count, number, np.float32)
    assert (np.array(decimals(array)).astype(np.float32) == array).all()


def test_other_numbers_are_as_they_are() -> None:
    assert decimals(np.array([[0.1 + 0.2]])) == [0.1 + 0.2]
    assert decimals(np.array([1, 2])) == [1, 2]
    assert decimals(np.array([True])) == [True]
