from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.vitals import energy_delta_uj


@given(limit=st.integers(1, 2**40), start=st.integers(0, 2**40), used=st.integers(0, 2**40))
def test_energy_across_a_wrap(limit: int, start: int, used: int) -> None:
    """Whatever is used, less than one wrap, comes back."""
    start, used = start % limit, used % limit
    assert energy_delta_uj(start, (start + used) % limit, limit) == used


@pytest.mark.parametrize(("before", "after", "limit"), [(-1, 5, 10), (5, 11, 10), (11, 5, 10), (0, 0, -1)])
def test_readings_outside_the_range_give_nothing(before: int, after: int, limit: int) -> None:
    assert energy_delta_uj(before, after, limit) is None
