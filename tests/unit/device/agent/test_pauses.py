"""Pause until the next poll."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.device.agent.pauses import pause_s
from gateway.device.agent.settings import AgentSettings

SETTINGS = AgentSettings(poll_s=900.0, retry_s=60.0)


@pytest.mark.parametrize(
    ("asked_s", "failures", "retry_after_s", "wanted_s"),
    [
        (None, 0, 0.0, 900.0),
        (30.0, 0, 0.0, 30.0),  # the fleet decides
        (None, 1, 0.0, 60.0),
        (None, 3, 0.0, 240.0),
        (None, 10, 0.0, 900.0),  # never longer than without failures
        (None, 10_000, 0.0, 900.0),
        (30.0, 1, 0.0, 30.0),
        (None, 1, 3600.0, 3600.0),  # a server that asks for quiet gets it
    ],
)
def test_pauses(asked_s: float | None, failures: int, retry_after_s: float, wanted_s: float) -> None:
    assert pause_s(SETTINGS, asked_s, failures, retry_after_s, 0.5) == pytest.approx(wanted_s)


@given(chance=st.floats(0, 1), failures=st.integers(0, 50), retry_after_s=st.floats(0, 4000))
def test_jitter_stays_in_its_bounds(chance: float, failures: int, retry_after_s: float) -> None:
    least, most = (pause_s(SETTINGS, None, failures, retry_after_s, end) for end in (0.0, 1.0))
    assert max(retry_after_s, 0.0) <= least <= pause_s(SETTINGS, None, failures, retry_after_s, chance) <= most
    assert most <= max(retry_after_s, 900.0 * 1.2)
