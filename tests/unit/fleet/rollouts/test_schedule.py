"""Windows by the wall clock, across midnight and changes of the clock, and blackouts; held against every minute."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.controller.rollouts.schedule import known_zone, may_offer, next_opening
from fleet.controller.rollouts.spec_form import DAYS
from tests.simulators.examples import examples
from tests.simulators.rollouts import spec_of

BERLIN = ZoneInfo("Europe/Berlin")
MINUTE = timedelta(minutes=1)
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/St_Johns", "Asia/Kathmandu")


def window(start, end, zone="UTC", days=DAYS):
    return {"start": start, "end": end, "zone": zone, "days": list(days)}


def at(text, zone=UTC, fold=0):
    return datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold).astimezone(UTC)


def openings(spec, start, hours, site=""):
    """Return the local times of the minutes at which the schedule opens and closes."""
    states = [(start + n * MINUTE, may_offer(spec, site, start + n * MINUTE)) for n in range(hours * 60)]
    return [
        (moment.astimezone(BERLIN).strftime("%H:%M"), is_open)
        for (_, was), (moment, is_open) in pairwise(states)
        if is_open != was
    ]


def test_without_windows_it_is_always_open():
    assert may_offer(spec_of(), "nowhere/at-all", at("2027-03-01T12:00"))
    assert next_opening(spec_of(), "", at("2027-03-01T12:00")) == at("2027-03-01T12:00")


def test_a_window_holds_from_its_start_to_before_its_end():
    spec = spec_of(windows=[window("09:00", "17:00", days=["mon"])])
    for moment, is_open in (("08:59:59.999999", False), ("09:00", True), ("16:59:59.999999", True), ("17:00", False)):
        assert may_offer(spec, "", at(f"2027-03-01T{moment}")) is is_open
    assert not may_offer(spec, "", at("2027-03-02T12:00"))


def test_a_window_across_midnight_belongs_to_the_day_it_began():
    spec = spec_of(windows=[window("22:00", "05:00", days=["sun"])])
    opened = [
        moment
        for moment in ("02-28T21:59", "02-28T22:00", "03-01T04:59", "03-01T05:00", "03-01T22:00")
        if may_offer(spec, "", at(f"2027-{moment}"))
    ]
    assert opened == ["02-28T22:00", "03-01T04:59"]


def test_equal_start_and_end_are_a_whole_day():
    spec = spec_of(windows=[window("06:00", "06:00", days=["mon"])])
    assert [
        may_offer(spec, "", at(f"2027-03-{moment}")) for moment in ("01T05:59", "01T06:00", "02T05:59", "02T06:00")
    ] == [False, True, True, False]


def test_a_site_goes_by_its_own_clock():
    spec = spec_of(windows=[window("02:00", "03:00", "site")])
    moment = at("2027-01-05T02:30", BERLIN)
    assert may_offer(spec, "Europe/Berlin", moment)
    assert not may_offer(spec, "America/New_York", moment)
    assert may_offer(spec, "", at("2027-01-05T02:30"))


def test_a_site_in_a_zone_that_nobody_knows_is_left_alone():
    spec = spec_of(windows=[window("00:00", "00:00", "site")])
    assert not may_offer(spec, "Mars/Olympus", at("2027-01-05T02:30"))
    assert next_opening(spec, "Mars/Olympus", at("2027-01-05T02:30")) is None


@pytest.mark.parametrize("name", ["Mars/Olympus", "../etc/passwd", "/etc/passwd", "Europe", "a\0b", "x" * 65, "\ud800"])
def test_what_is_no_zone_is_none(name):
    assert not known_zone(name)


def test_the_hour_that_is_left_out_opens_nothing_and_the_repeated_one_twice():
    spec = spec_of(windows=[window("02:15", "02:45", "Europe/Berlin")])
    assert openings(spec, at("2027-03-28T00:00", BERLIN), 12) == []
    assert openings(spec, at("2027-10-31T00:00", BERLIN), 12) == [("02:15", True), ("02:45", False)] * 2
    assert next_opening(spec, "", at("2027-10-31T02:50", BERLIN)) == at("2027-10-31T02:15", BERLIN, fold=1)
    assert next_opening(spec, "", at("2027-03-28T01:59", BERLIN)) == at("2027-03-29T02:15", BERLIN)


def test_a_weekly_window_that_falls_into_the_hour_left_out_opens_a_week_later():
    spec = spec_of(windows=[window("02:15", "02:45", "Europe/Berlin", ["sun"])])
    assert next_opening(spec, "", at("2027-03-21T03:00", BERLIN)) == at("2027-04-04T02:15", BERLIN)


def test_a_window_whose_start_is_left_out_opens_when_the_clock_jumps():
    spec = spec_of(windows=[window("02:15", "05:00", "Europe/Berlin")])
    assert openings(spec, at("2027-03-28T00:00", BERLIN), 12) == [("03:00", True), ("05:00", False)]
    assert next_opening(spec, "", at("2027-03-28T00:00", BERLIN)) == at("2027-03-28T01:00")


def test_a_window_that_ended_opens_again_when_the_clock_is_put_back_into_it():
    spec = spec_of(windows=[window("22:00", "02:30", "Europe/Berlin")])
    found = openings(spec, at("2027-10-30T12:00", BERLIN), 20)
    assert found == [("22:00", True), ("02:30", False), ("02:00", True), ("02:30", False)]
    assert next_opening(spec, "", at("2027-10-31T02:40", BERLIN)) == at("2027-10-31T01:00")


def test_a_blackout_closes_what_is_open():
    blackout = {"start": "2027-03-01T10:00:00Z", "end": "2027-03-09T11:00:00Z", "reason": "fair"}
    spec = spec_of(windows=[window("09:00", "12:00", days=["mon", "tue"])], blackouts=[blackout])
    assert may_offer(spec, "", at("2027-03-01T09:59"))
    assert not may_offer(spec, "", at("2027-03-01T10:00"))
    assert next_opening(spec, "", at("2027-03-01T10:00")) == at("2027-03-09T11:00")
    assert next_opening(spec_of(blackouts=[blackout]), "", at("2027-03-02T10:00")) == at("2027-03-09T11:00")


def test_blackouts_one_after_the_other_are_left_behind_one_by_one():
    days = [{"start": f"2027-03-{n:02}T00:00:00Z", "end": f"2027-03-{n + 1:02}T00:00:00Z"} for n in (3, 1, 2)]
    assert next_opening(spec_of(blackouts=days), "", at("2027-03-01T10:00")) == at("2027-03-04T00:00")


times = st.builds("{:02}:{:02}".format, st.integers(0, 23), st.sampled_from([0, 1, 15, 30, 59]))
windows = st.builds(
    window, times, times, st.sampled_from([*ZONES, "site"]), st.lists(st.sampled_from(DAYS), min_size=1, unique=True)
)
around = st.sampled_from(["2027-03-27", "2027-10-30", "2027-03-13", "2027-11-06", "2027-04-03", "2027-06-01"])


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(windows, min_size=1, max_size=3), st.sampled_from(ZONES), around, st.integers(0, 2880))
def test_the_next_opening_is_the_first_open_minute(chosen, site, day, offset):
    spec = spec_of(windows=chosen)
    now = at(f"{day}T00:00") + offset * MINUTE
    found = next_opening(spec, site, now)
    assert found is not None
    assert may_offer(spec, site, found)
    minutes = int((found - now) / MINUTE)
    assert not any(may_offer(spec, site, now + n * MINUTE) for n in range(min(minutes, 3 * 1440)))
    assert found == now or not may_offer(spec, site, found - timedelta(microseconds=1))
