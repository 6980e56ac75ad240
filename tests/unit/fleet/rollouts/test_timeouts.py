"""Timeouts of a device: holds that it reports, gaps in which rollouts were not evaluated."""

from __future__ import annotations

from datetime import timedelta

import pytest

from fleet.controller.rollouts.decisions import Finish, MarkSilent, Retry
from fleet.controller.rollouts.facts import ClockSetBack, Unattended
from fleet.controller.rollouts.replay import replay
from fleet.controller.rollouts.spec_form import read_spec
from fleet.controller.rollouts.state import DeviceState
from tests.simulators.rollouts import Record, document, offered, spec_of

HOUR, DAY = 3600, 86_400
ALL = [{"percent": 100}]


def running(devices: int = 1, **changes) -> Record:
    record = Record(spec_of(waves=ALL, silence_s=DAY, **changes)).start(devices)
    record.tick()
    return record


def usual(devices: int) -> Record:
    """Return a record with the default timeouts of a specification that states none."""
    said = document(waves=ALL)
    del said["silence_s"], said["deadline_s"]
    record = Record(read_spec(said)).start(devices)
    record.tick()
    return record


def follows(record: Record) -> bool:
    return replay(record.spec, record.facts).difference is None


# ---- holds


def test_who_is_held_for_34_hours_and_says_so_every_six_commits_in_the_end():
    record = usual(5)
    for _ in range(5):
        for device in record.state.members:
            record.report(device, "pending")
        assert record.tick(6 * HOUR) == ()
    assert record.tick(4 * HOUR) == ()
    for device in record.state.members:
        record.report(device, "downloading")
        record.report(device, "committed")
    assert record.tick() == (Finish(),)
    assert follows(record)


def test_who_is_held_and_says_nothing_more_is_silent():
    record = usual(1)
    record.report("d-0", "pending")
    assert record.tick(DAY - 1) == ()
    assert record.tick(1)[0] == MarkSilent("d-0", "nothing was heard of it for 86400 s")


def test_a_hold_stops_the_deadline_until_it_ends():
    record = running(deadline_s=10 * HOUR)
    record.tick(4 * HOUR)
    for _ in range(3):
        record.report("d-0", "pending")
        record.tick(3 * HOUR)
    record.report("d-0", "downloading")
    assert record.member("d-0").held_for == timedelta(hours=9)
    assert record.tick(6 * HOUR - 1) == ()
    assert record.tick(1)[0] == MarkSilent("d-0", "it was not done 36000 s after the offer")
    assert follows(record)


def test_what_follows_a_hold_without_a_word_is_only_waited_for():
    """It reported that it is held, then that it is not: the second report is the only known end of the hold."""
    record = running(deadline_s=10 * HOUR)
    record.report("d-0", "pending")
    record.tick(5 * HOUR)
    record.report("d-0", "offered")
    assert (record.member("d-0").held, record.member("d-0").held_for) == (False, timedelta(hours=5))


def test_who_says_for_ever_that_it_is_held_failed():
    record = running(deadline_s=10 * HOUR)
    said = 0
    while not (decisions := record.tick(HOUR)):
        record.report("d-0", "pending")
        said += 1
    assert decisions[0] == MarkSilent("d-0", "its policy held it for 36000 s")
    assert said == 10, "an hour until it said so first, and ten"


def test_who_begins_and_stops_to_be_held_again_and_again_failed_too():
    record = running(deadline_s=10 * HOUR)
    said = 0
    while not record.tick(HOUR):
        record.report("d-0", ("pending", "offered")[said % 2])
        said += 1
    assert said < 20


def test_who_began_is_not_held_any_more_whatever_it_says():
    record = running()
    record.report("d-0", "downloading")
    record.report("d-0", "pending")
    assert (record.member("d-0").state, record.member("d-0").held) == (DeviceState.DOWNLOADING, False)


def test_another_attempt_may_be_held_anew():
    record = running(retries={"limit": 1, "backoff_s": 60}, deadline_s=10 * HOUR)
    record.report("d-0", "pending")
    record.tick(6 * HOUR)
    record.report("d-0", "failed")
    assert record.tick(60) == (Retry("d-0", 1, 2),)
    assert (record.member("d-0").held, record.member("d-0").held_for) == (False, timedelta())


# ---- gaps


def unattended(record: Record, seconds: float) -> None:
    """Leave the rollout without an evaluation for so long; then let the leader evaluate it."""
    since = record.now
    record.now += timedelta(seconds=seconds)
    record.add(Unattended(since))


def test_a_gap_is_given_back_to_silence_deadline_and_back_off():
    record = running(3, deadline_s=2 * DAY, retries={"limit": 1, "backoff_s": HOUR})
    record.report("d-0", "failed")
    record.tick(HOUR / 2)
    unattended(record, 9 * DAY)
    assert record.tick() == ()
    assert offered(record.tick(HOUR / 2)) == ["d-0"]
    record.tick(DAY - 2 * HOUR)
    record.report("d-1", "downloading")
    silent = record.tick(HOUR)
    assert [one.device for one in silent if isinstance(one, MarkSilent)] == ["d-2"]
    assert follows(record)


def test_what_was_heard_within_a_gap_counts_from_its_end():
    record = running()
    since = record.now
    record.now += timedelta(hours=20)
    record.report("d-0", "downloading")
    record.now += timedelta(hours=20)
    record.add(Unattended(since))
    assert record.member("d-0").heard_at == record.now == record.state.attended_at
    assert record.tick(DAY - 1) == ()
    assert record.tick(1)


def test_a_hold_goes_on_behind_a_gap_and_the_gap_is_none_of_it():
    record = running(deadline_s=10 * HOUR)
    record.report("d-0", "pending")
    record.tick(2 * HOUR)
    unattended(record, 9 * DAY)
    record.tick(2 * HOUR)
    record.report("d-0", "pending")
    assert record.member("d-0").held_for == timedelta(hours=4)


def test_a_hold_that_was_told_again_before_the_gap_was_found_does_not_count_it():
    record = running(deadline_s=10 * HOUR)
    record.report("d-0", "pending")
    record.tick(2 * HOUR)
    since = record.now
    record.now += timedelta(days=9)
    record.report("d-0", "pending")
    record.now += timedelta(seconds=5)
    record.add(Unattended(since))
    assert record.tick() == ()
    assert record.member("d-0").held_for == timedelta(hours=2)
    assert follows(record)


def test_a_hold_that_was_told_again_by_a_clock_that_was_ahead_does_not_count_that():
    record = running(deadline_s=10 * HOUR)
    record.report("d-0", "pending")
    record.tick(2 * HOUR)
    record.now += timedelta(days=30)
    record.report("d-0", "pending")
    record.now -= timedelta(days=30)
    record.add(ClockSetBack())
    assert record.tick() == ()
    assert record.member("d-0").held_for == timedelta(hours=2)


def test_what_never_happened_does_not_move():
    record = running(2)
    record.report("d-0", "committed")
    record.join(3)
    before = dict(record.state.members)
    unattended(record, DAY)
    assert record.member("d-2") == before["d-2"]
    assert record.member("d-1").verdict_at == before["d-1"].verdict_at
    assert record.member("d-0").verdict_at == before["d-0"].verdict_at + timedelta(days=1)


@pytest.mark.parametrize("ahead_s", [0, 5])
def test_no_time_and_less_are_nothing_to_give_back(ahead_s):
    record = running()
    before = record.member("d-0")
    record.add(Unattended(record.now + timedelta(seconds=ahead_s)))
    assert record.member("d-0") == before
    assert record.state.ignored == {"unattended for no time": 1}


def test_a_leap_that_is_taken_back_does_not_hide_the_next_gap():
    record = running()
    unattended(record, 300 * DAY)
    record.now -= timedelta(days=300)
    record.add(ClockSetBack())
    assert record.state.attended_at == record.now
    unattended(record, 2 * DAY)
    assert record.tick(DAY - 1) == ()
    assert record.tick(1)
    assert follows(record)
