"""Bounds that a device never lets anyone exceed: the share per hour, the order of profiles, blackouts."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.policy import (
    BLACKOUT_LIMIT,
    BLACKOUTS_LIMIT,
    POLICY_LIMIT_BYTES,
    PROFILE_DELAY_LIMIT_H,
    PROFILES_LIMIT,
    Blackout,
    Policy,
    blocked,
    earliest,
    read_policy,
    share_hour,
)
from tests.simulators.policy_document import policy_bytes

NOW = datetime(2027, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
RELEASE, OTHER = "a" * 64, "b" * 64
DEVICES = [f"device-{number}" for number in range(4000)]

seconds = st.integers(1_600_000_000, 3_800_000_000).map(lambda moment: datetime.fromtimestamp(moment, UTC))
blackouts = st.builds(
    lambda start, length, reason: Blackout(start, start + length, reason),
    seconds,
    st.timedeltas(timedelta(seconds=1), BLACKOUT_LIMIT).map(lambda t: timedelta(seconds=int(t.total_seconds()))),
    st.text(max_size=20),
)
policies = st.builds(
    Policy,
    st.floats(0.1, 100.0),
    st.lists(st.from_regex(r"[a-z0-9][a-z0-9.-]{0,10}", fullmatch=True), unique=True, max_size=5).map(tuple),
    st.floats(0.0, PROFILE_DELAY_LIMIT_H),
    st.lists(blackouts, max_size=3).map(tuple),
)


def wait(policy, device="device-1", profile="", release=RELEASE):
    return earliest(policy, device, release, NOW, NOW, profile) - NOW


def test_a_device_without_bounds_may_begin_at_once():
    assert wait(Policy()) == timedelta()
    assert blocked(Policy(), NOW) is None


@pytest.mark.parametrize(("percent", "hours"), [(100.0, 1), (50.0, 2), (25.0, 4), (40.0, 3), (7.0, 15), (0.1, 1000)])
def test_each_hour_has_its_share_and_no_more(percent, hours):
    turns = [share_hour(percent, device, RELEASE) for device in DEVICES]
    assert set(turns) <= set(range(hours))
    for hour in range(min(hours, 10)):
        expected = len(DEVICES) * min(percent, 100 - percent * hour) / 100
        assert abs(turns.count(hour) - expected) < 5 * (expected + 1) ** 0.5


def test_the_turn_is_another_with_another_release():
    policy = Policy(10.0)
    turns = [
        (
            share_hour(policy.share_percent_per_hour, device, RELEASE),
            share_hour(policy.share_percent_per_hour, device, OTHER),
        )
        for device in DEVICES[:200]
    ]
    assert sum(one == other for one, other in turns) < 50


def test_the_turn_stays_what_it_is_from_version_to_version():
    """Computed by sha256sum and bc from `device \\0 release`."""
    assert [share_hour(1.0, f"device-{n}", RELEASE) for n in range(4)] == [7, 31, 42, 72]


def test_profiles_go_one_after_the_other_and_unknown_ones_last():
    policy = Policy(profiles=("lab", "office"), profile_delay_h=6.0)
    assert [wait(policy, profile=name) for name in ("lab", "office", "roof", "")] == [
        timedelta(), 6 * HOUR, 12 * HOUR, 12 * HOUR,
    ]  # fmt: skip


def test_the_hours_count_from_the_first_sight_but_never_before_the_owners_date():
    seen, dated = NOW, NOW + 5 * HOUR
    assert earliest(Policy(), "d", RELEASE, seen, dated, "") == dated
    assert earliest(Policy(), "d", RELEASE, dated, seen, "") == dated


def test_a_release_of_the_last_year_never_comes():
    last = datetime.max.replace(tzinfo=UTC)
    assert earliest(Policy(0.1), "device-2", RELEASE, NOW, last, "") == last


def test_a_blackout_holds_from_its_start_to_before_its_end():
    short, long = Blackout(NOW, NOW + HOUR), Blackout(NOW, NOW + 2 * HOUR, "election")
    policy = Policy(blackouts=(short, long))
    assert blocked(policy, NOW - timedelta(microseconds=1)) is None
    assert blocked(policy, NOW) is long
    assert blocked(policy, NOW + HOUR) is long
    assert blocked(policy, NOW + 2 * HOUR) is None


MINUTE = timedelta(minutes=1)
TURNS = {share_hour(10.0, device, RELEASE): device for device in DEVICES}
"""A device for each hour."""


def test_hours_stand_still_in_blackouts_that_overlap_adjoin_and_hold_already():
    around = Blackout(NOW - HOUR, NOW + HOUR), Blackout(NOW, NOW + 2 * HOUR), Blackout(NOW, NOW + HOUR)
    adjoining, far = Blackout(NOW + 2 * HOUR, NOW + 3 * HOUR), Blackout(NOW + 9 * HOUR, NOW + 99 * HOUR)
    before = Blackout(NOW - 9 * HOUR, NOW)
    policy = Policy(10.0, blackouts=(far, adjoining, *around, before))
    waits = [wait(policy, TURNS[hour]) for hour in range(10)]
    assert waits == [3 * HOUR + hour * HOUR + (hour >= 6) * 90 * HOUR for hour in range(10)]


def test_the_delay_of_profiles_stands_still_in_a_blackout_too():
    policy = Policy(profiles=("lab",), profile_delay_h=6.0, blackouts=(Blackout(NOW + HOUR, NOW + 2 * HOUR),))
    assert [wait(policy, profile=name) for name in ("lab", "roof")] == [timedelta(), 7 * HOUR]


minutes = st.integers(-600, 2000)


@given(st.lists(st.tuples(minutes, st.integers(1, 900)), max_size=6), st.sampled_from([10.0, 25.0]))
def test_no_hour_after_a_blackout_has_more_than_its_share(drawn, percent):
    """`spans` in minutes from now. Counted device by device, minute by minute, as `earliest` and `blocked` say."""
    spans = [(start, start + length) for start, length in drawn]
    policy = Policy(percent, blackouts=tuple(Blackout(NOW + a * MINUTE, NOW + b * MINUTE) for a, b in spans))
    turns = [wait(policy, device) // MINUTE for device in DEVICES[:1000]]
    hours = [share_hour(policy.share_percent_per_hour, device, RELEASE) for device in DEVICES[:1000]]
    still = {minute for a, b in spans for minute in range(a, b)}
    most = max(hours.count(hour) for hour in set(hours))
    for turn, hour in set(zip(turns, hours, strict=True)):
        assert blocked(policy, NOW + turn * MINUTE) is None
        assert sum(minute not in still for minute in range(turn)) == 60 * hour
    for _, end in spans:
        assert sum(end <= turn < end + 60 for turn in turns) <= most


@given(policies)
def test_what_is_written_reads_back(policy):
    assert read_policy(policy_bytes(policy), "p.json") == policy


@given(policies, st.text(min_size=1, max_size=20), seconds, seconds, st.text(max_size=5))
def test_nobody_goes_before_the_first_sight_and_all_have_their_turn(policy, device, seen, dated, profile):
    start = max(seen, dated)
    last = 100 / policy.share_percent_per_hour + len(policy.profiles) * policy.profile_delay_h
    still = sum((one.end - one.start for one in policy.blackouts), timedelta())
    assert start <= earliest(policy, device, RELEASE, seen, dated, profile) <= start + timedelta(hours=last + 1) + still


def document(**changes):
    return json.dumps({"schema": 1, **changes}).encode()


def blackout(start="2027-03-01T00:00:00Z", end="2027-03-02T00:00:00Z", **more):
    return {"start": start, "end": end, **more}


def test_what_is_left_out_does_not_bound():
    assert read_policy(document(), "p.json") == Policy()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\xff", "p.json: is not UTF-8 text (byte 0)"),
        (b"{", "p.json: is no JSON"),
        (b"[" * 5000, "p.json: is no JSON"),
        (b"[]", "p.json: is no JSON object"),
        (b'{"schema": 1, "schema": 1}', "has a key twice"),
        (b" " * (POLICY_LIMIT_BYTES + 1), "at most 65536"),
        (b"{}", "schema: missing"),
        (document(schema=2), "schema: must be between 1 and 1"),
        (document(schema=True), "schema: must be an integer"),
        (document(share=5), "share: unknown key"),
        (document(share_percent_per_hour=0), "share_percent_per_hour: must be between 0.1 and 100"),
        (document(share_percent_per_hour=101), "share_percent_per_hour: must be between"),
        (document(share_percent_per_hour=float("nan")), "share_percent_per_hour: must be between"),
        (document(share_percent_per_hour="5"), "share_percent_per_hour: must be a number"),
        (document(profile_delay_h=-1), "profile_delay_h: must be between 0"),
        (document(profile_delay_h=721), "profile_delay_h: must be between 0"),
        (document(profiles=["a", "a"]), "profiles: must name at most"),
        (document(profiles=[f"p{n}" for n in range(PROFILES_LIMIT + 1)]), "profiles: must name at most"),
        (document(profiles=["../a"]), "profiles: '../a' is no profile's name"),
        (document(blackouts=[blackout()] * (BLACKOUTS_LIMIT + 1)), "blackouts: at most 100"),
        (document(blackouts=[blackout(start="today")]), "blackouts[0].start: must be a time in UTC"),
        (document(blackouts=[blackout(end="2027-03-01T00:00:00Z")]), "blackouts[0].end: must come after start"),
        (document(blackouts=[blackout(end="2027-05-31T00:00:00Z")]), "blackouts[0].end: must come after start"),
        (document(blackouts=[blackout(reason="x" * 201)]), "blackouts[0].reason: must have at most 200"),
        (document(blackouts=[blackout(zone="x")]), "blackouts[0].zone: unknown key"),
    ],
)
def test_what_is_wrong_is_said(content, problem):
    with pytest.raises(ConfigurationError) as caught:
        read_policy(content, "p.json")
    assert problem in str(caught.value)


@given(
    st.binary(max_size=200)
    | st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(st.sampled_from(["schema", "profiles", "blackouts", "share_percent_per_hour"]), inner)
        ),
    ).map(lambda v: json.dumps(v).encode())
)
def test_nothing_but_a_policy_or_a_refusal_comes_out(content):
    try:
        assert isinstance(read_policy(content, "p.json"), Policy)
    except ConfigurationError:
        return
