"""The time on a device whose clock may stand still, run wild or lie."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.trust.clock import (
    RELEASE_TIME,
    Attestation,
    BootClock,
    attested_time,
    clock_trusted,
    continued_time,
    least_time,
    raised_floor,
    reference_time,
)
from gateway.common.trust.distrust import Distrust, Reason

TIMES = st.datetimes(datetime(1970, 1, 1), datetime(2199, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001  bounds are naive
FLOORS = st.none() | TIMES
DAY = timedelta(days=1)
NOW = RELEASE_TIME + 100 * DAY


def test_the_release_is_no_later_than_this_test_and_no_earlier_than_the_changelog() -> None:
    text = (Path(__file__).parents[4] / "CHANGELOG.md").read_text("utf-8")
    dates = re.findall(r"^## \[[^\]]+\] - (\d{4}-\d{2}-\d{2})$", text, re.MULTILINE)
    assert max([*dates, "2026-11-21"]) <= RELEASE_TIME.strftime("%Y-%m-%d")
    assert datetime.now(UTC) >= RELEASE_TIME


@given(TIMES, FLOORS)
def test_the_reference_is_the_latest_of_the_three(system: datetime, floor: datetime | None) -> None:
    assert reference_time(system, floor) == max(system, RELEASE_TIME, floor or RELEASE_TIME)
    assert least_time(floor) <= reference_time(system, floor)


@pytest.mark.parametrize(
    ("system", "synchronised", "trusted"),
    [
        (NOW, True, True),
        (NOW + DAY, True, True),
        (NOW - DAY, True, False),
        (NOW + DAY, False, False),
        (datetime(1970, 1, 1, tzinfo=UTC), True, False),
    ],
)
def test_a_clock_is_trusted_that_is_synchronised_and_not_behind(
    system: datetime, synchronised: bool, trusted: bool
) -> None:
    assert clock_trusted(system, NOW, synchronised=synchronised) is trusted


@given(TIMES, FLOORS, st.lists(TIMES, min_size=1), st.booleans())
def test_the_floor_never_falls_nor_passes_what_is_signed(
    system: datetime, floor: datetime | None, expiries: list[datetime], synchronised: bool
) -> None:
    raised = raised_floor(floor, system, expiries, synchronised=synchronised)
    assert raised >= least_time(floor)
    if raised > least_time(floor):
        assert synchronised
        assert raised == system < min(expiries)


def test_a_clock_gone_wild_leaves_the_floor_where_it_was() -> None:
    wild, expiries = NOW + 30_000 * DAY, [NOW + DAY, NOW + 300 * DAY]
    assert raised_floor(NOW, wild, expiries, synchronised=True) == NOW
    assert raised_floor(NOW, NOW + DAY / 2, expiries, synchronised=False) == NOW
    assert raised_floor(NOW, NOW + DAY / 2, expiries, synchronised=True) == NOW + DAY / 2


def test_an_attested_time_stands_in_for_a_clock() -> None:
    offline = [NOW + 300 * DAY, NOW + 180 * DAY]
    assert attested_time(NOW + DAY, NOW, offline) == NOW + DAY
    assert attested_time(NOW - DAY, NOW, offline) == NOW  # the director's clock is behind
    assert attested_time(NOW, None, offline) == NOW


@given(TIMES, FLOORS, st.lists(TIMES, min_size=1))
def test_an_attested_time_is_within_what_the_offline_keys_allow(
    issued: datetime, floor: datetime | None, offline: list[datetime]
) -> None:
    now = max(issued, least_time(floor))
    if now < min(offline):
        assert attested_time(issued, floor, offline) == now
        return
    with pytest.raises(Distrust) as caught:
        attested_time(issued, floor, offline)
    assert caught.value.reason is Reason.WRONG_TIME


READ = BootClock("a boot", 500.0)
ATTESTATION = Attestation(NOW, READ)


@pytest.mark.parametrize(
    ("clock", "continued"),
    [
        (READ, NOW),
        (BootClock("a boot", 500.0 + 3_600), NOW + DAY / 24),
        (BootClock("a boot", 500.0 + 86_399), NOW + DAY - timedelta(seconds=1)),
        (BootClock("a boot", 500.0 + 86_400), None),
        (BootClock("a boot", 499.0), None),
        (BootClock("another boot", 500.0), None),
    ],
)
def test_an_attested_time_goes_on_within_its_boot_until_it_expires(
    clock: BootClock, continued: datetime | None
) -> None:
    assert continued_time(ATTESTATION, clock, None, DAY) == continued


def test_a_limit_of_zero_asks_for_a_proof_at_each_poll() -> None:
    assert continued_time(ATTESTATION, READ, None, timedelta(0)) is None


@given(st.floats(0, 86_000), st.floats(0, 300), FLOORS)
def test_a_continued_time_never_falls_and_is_never_below_the_floor(
    first_s: float, more_s: float, floor: datetime | None
) -> None:
    one, other = (
        continued_time(ATTESTATION, BootClock("a boot", 500.0 + s), floor, DAY) for s in (first_s, first_s + more_s)
    )
    assert one is not None
    assert other is not None
    assert least_time(floor) <= one <= other
    assert one <= max(NOW + timedelta(seconds=first_s), least_time(floor))  # never ahead of the boot clock
