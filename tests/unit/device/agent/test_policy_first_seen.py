"""Times at which a change was first seen: how long they count, and what a thief of the controller can do with them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.common.domain.assignment import Target
from gateway.common.domain.policy import Policy, share_hour
from gateway.device.agent.state.first_seen import (
    INSTALL,
    SIGHT_LASTS_H,
    SIGHTS_LIMIT,
    WITHDRAW,
    FirstSeen,
    Present,
    Sight,
    seen,
)
from gateway.device.agent.state.policy import hold
from tests.simulators.examples import examples

HOUR = timedelta(hours=1)
DAY = timedelta(hours=SIGHT_LASTS_H)
NOW = datetime(2027, 3, 28, 1, tzinfo=UTC)
LATER = Present(NOW + HOUR, trusted=True)
SEEN = {
    "never": (None, LATER, Sight(NOW + HOUR, trusted=True)),
    "before": (Sight(NOW, trusted=True), LATER, Sight(NOW, trusted=True)),
    "by a bad clock, still bad": (
        Sight(NOW, trusted=False),
        Present(NOW + HOUR, trusted=False),
        Sight(NOW, trusted=False),
    ),
    "by a bad clock, now good": (Sight(NOW, trusted=False), LATER, Sight(NOW + HOUR, trusted=True)),
    "by a good clock, now bad": (
        Sight(NOW, trusted=True),
        Present(NOW + HOUR, trusted=False),
        Sight(NOW, trusted=True),
    ),
    "in the future": (Sight(NOW + 9 * HOUR, trusted=True), LATER, Sight(NOW + HOUR, trusted=True)),
}


@pytest.mark.parametrize("case", SEEN)
def test_which_sight_counts(case: str) -> None:
    known, now, wanted = SEEN[case]
    assert seen(known, now) == wanted


SLOT, ONE, TWO = "meter", "1" * 64, "2" * 64


def assigned(release: str) -> dict[str, Target]:
    return {SLOT: Target("models/acme/meter/1/release", 1, release)} if release else {}


def question(text: str, now: datetime, release: str, *, trusted: bool = True) -> tuple[datetime, str]:
    """Return when `release`, asked for now, was seen first, and what is kept for the next poll."""
    first_seen = FirstSeen(text, Present(now, trusted))
    return first_seen.see(INSTALL, SLOT, release), first_seen.text(assigned(release))


def unasked(text: str, now: datetime, release: str = "", *, trusted: bool = True) -> str:
    """Return what is kept of a poll in which nothing is to be done."""
    return FirstSeen(text, Present(now, trusted)).text(assigned(release))


def test_what_is_assigned_is_remembered_and_written_once() -> None:
    _, text = question("{}", NOW, ONE)
    assert question(text, NOW + 100 * DAY, ONE) == (NOW, text)
    assert unasked(text, NOW + 100 * DAY, ONE) == text


def test_what_is_not_assigned_any_more_is_remembered_for_a_day() -> None:
    _, text = question("{}", NOW, ONE)
    left = unasked(text, NOW + HOUR)
    assert unasked(left, NOW + 2 * HOUR) == left
    assert question(left, NOW + HOUR + DAY - timedelta(seconds=1), ONE) == (NOW, text)
    assert question(left, NOW + HOUR + DAY, ONE)[0] == NOW + HOUR + DAY
    assert unasked(left, NOW + HOUR + DAY) == "{}"


def test_what_ran_here_needs_no_sight_for_a_day() -> None:
    first_seen = FirstSeen("{}", Present(NOW, trusted=True))
    first_seen.see(INSTALL, SLOT, TWO)
    first_seen.leave(SLOT, ONE)
    text = first_seen.text(assigned(TWO))
    assert question(text, NOW + DAY - timedelta(seconds=1), ONE)[0] < NOW - 1000 * DAY
    assert question(text, NOW + DAY, ONE)[0] == NOW + DAY


def test_a_clock_that_is_set_right_makes_nothing_last() -> None:
    _, text = question("{}", NOW, ONE)
    ahead = unasked(text, NOW + 300 * DAY, TWO)
    assert question(ahead, NOW + HOUR, ONE)[0] == NOW + HOUR
    untrusted = unasked(text, NOW + HOUR, TWO, trusted=False)
    assert question(untrusted, NOW + 2 * HOUR, ONE)[0] == NOW + 2 * HOUR
    assert question(untrusted, NOW + 2 * HOUR, ONE, trusted=False)[0] == NOW


def test_a_withdrawal_that_is_taken_back_is_forgotten() -> None:
    first_seen = FirstSeen("{}", Present(NOW, trusted=True))
    first_seen.see(WITHDRAW, SLOT, ONE)
    text = first_seen.text({})
    assert FirstSeen(text, LATER).see(WITHDRAW, SLOT, ONE) == NOW
    assert unasked(text, NOW, ONE) == "{}"


def test_the_oldest_sights_go() -> None:
    first_seen = FirstSeen("{}", Present(NOW, trusted=True))
    for number in range(SIGHTS_LIMIT + 1):
        first_seen.see(INSTALL, f"slot-{number}", ONE)
    text = first_seen.text({})
    assert FirstSeen(text, LATER).see(INSTALL, "slot-1", ONE) == NOW
    assert FirstSeen(text, LATER).see(INSTALL, "slot-0", ONE) == LATER.now


# ---- a fleet, and who steals its controller --------------------------------------------------------------------------
POLICIES = {"policy/fleet.json": Policy(10.0)}
RELEASES = [str(number) * 64 for number in range(4)]
RELEASED = NOW - 1000 * DAY
Change = tuple[str, str]


@cache
def hour(device: str, release: str) -> int:
    return share_hour(POLICIES["policy/fleet.json"].share_percent_per_hour, device, release)


@dataclass
class Played:
    """A device as far as its policy goes. `until`: when it was last told, or ran, what."""

    name: str
    active: str = ""
    told: str = ""
    text: str = "{}"
    until: dict[str, datetime] = field(default_factory=dict)

    def ask(self, release: str, now: datetime) -> Change | None:
        """Return the change that is begun, and ended at once; `release`: what is assigned, "" for nothing."""
        first_seen = FirstSeen(self.text, Present(now, trusted=True))
        self.until.update(dict.fromkeys((self.told, self.active, release), now))
        change = self._begun(first_seen, release, now)
        self.told, self.text = release, first_seen.text(assigned(release))
        return change

    def _begun(self, first_seen: FirstSeen, release: str, now: datetime) -> Change | None:
        if release == self.active:
            return None
        change = (INSTALL, release) if release else (WITHDRAW, self.active)
        times = first_seen.see(change[0], SLOT, change[1]), RELEASED
        if hold(POLICIES, (self.name, ""), *change, times, now=now):
            return None
        if self.active:
            first_seen.leave(SLOT, self.active)
        self.active = release
        return change

    def free(self, theft: datetime) -> set[Change]:
        """Return the changes that a thief may make with it at once."""
        last = {release for release, until in self.until.items() if until > theft - DAY}
        withdrawn = set() if self.told else {(WITHDRAW, self.active)}
        return {(INSTALL, release) for release in last | {self.told, self.active}} | withdrawn


cohorts = st.lists(st.sampled_from(["", *RELEASES]), min_size=1, max_size=5)
"""Releases assigned to every first, second, … device."""
tactics = cohorts | st.sampled_from(["soonest"]) | st.tuples(st.sampled_from(RELEASES), st.integers(0, 9))
"""A thief's: also to each device what its turn comes for first, or one release to those whose turn comes later."""
quarters = st.integers(0, 200).map(lambda count: count * HOUR / 4)


def assignment(tactic: object, number: int, device: Played) -> str:
    if isinstance(tactic, list):
        return str(tactic[number % len(tactic)])
    if isinstance(tactic, tuple):
        return tactic[0] if hour(device.name, tactic[0]) > tactic[1] else device.active
    return min((one for one in RELEASES if one != device.active), key=lambda one: hour(device.name, one))


@settings(max_examples=examples(32))
@given(
    past=st.lists(st.tuples(quarters, cohorts), max_size=6),
    pause=quarters,
    schedule=st.lists(st.tuples(quarters.map(lambda one: one / 8), tactics), min_size=1, max_size=8),
)
@example([(0 * HOUR, [ONE]), (30 * HOUR, [ONE]), (HOUR, [TWO]), (30 * HOUR, [TWO])], 30 * HOUR, [(0 * HOUR, [ONE])])
@example([], HOUR, [(0 * HOUR, (ONE, 0)), (HOUR, [""]), (9 * HOUR, [ONE])])
@example([], HOUR, [(0 * HOUR, "soonest"), (HOUR, "soonest"), (HOUR, "soonest"), (HOUR, "soonest")])
def test_who_steals_the_controller_brings_no_release_to_more_than_its_turns(past, pause, schedule) -> None:
    """n hours later: to n + 1 hours' share, but for what a device was assigned, or ran, within the day before."""
    fleet, now = [Played(f"device-{number}") for number in range(1000)], NOW
    for gap, releases in past:
        now += gap
        for number, device in enumerate(fleet):
            device.ask(assignment(releases, number, device), now)
    theft = now = now + pause
    free = {device.name: device.free(theft) for device in fleet}
    brought: dict[Change, set[str]] = defaultdict(set)
    for gap, tactic in schedule:
        now += gap
        for number, device in enumerate(fleet):
            change = device.ask(assignment(tactic, number, device), now)
            if change and change not in free[device.name]:
                brought[change].add(device.name)
        hours = (now - theft) // HOUR
        for (_, release), devices in brought.items():
            assert len(devices) <= sum(hour(device.name, release) <= hours for device in fleet)
