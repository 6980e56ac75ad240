"""Pauses of simulated devices, which are those of agents."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.load.actor import pause_s
from tests.load.settings import Settings

seconds = st.floats(0.1, 10_000.0)


def settings(poll_s: float | None = None) -> Settings:
    return Settings("https://localhost", 1, poll_s=poll_s, retry_s=5.0)


@given(st.none() | seconds, st.none() | seconds, st.integers(0, 60), st.floats(0, 10_000), st.floats(0, 1))
def test_never_sooner_than_asked_and_never_later_than_a_poll(
    wanted: float | None, told: float | None, failures: int, least: float, chance: float
) -> None:
    found = pause_s(settings(wanted), told, failures, least, chance)
    base = (told if wanted is None else wanted) if told is not None else 5.0
    assert least <= found <= max(least, base * 1.2 + 1e-9)


def test_it_waits_as_it_was_told_or_as_the_operator_says() -> None:
    assert pause_s(settings(), 60.0, 0, 0.0, 0.5) == 60.0
    assert (pause_s(settings(), 60.0, 0, 0.0, 0.0), pause_s(settings(), 60.0, 0, 0.0, 1.0)) == (48.0, 72.0)
    assert pause_s(settings(7.0), 60.0, 0, 0.0, 0.5) == 7.0


def test_failures_double_the_pause() -> None:
    assert [pause_s(settings(), 60.0, failures, 0.0, 0.5) for failures in range(1, 7)] == [5, 10, 20, 40, 60, 60]
    assert pause_s(settings(), 60.0, 1, 30.0, 0.5) == 30.0
