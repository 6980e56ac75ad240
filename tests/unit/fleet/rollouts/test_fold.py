"""Sum of the facts: the path of a rollout, and devices whose reports come late, twice, in any order, or lie."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.controller.rollouts.decisions import Abort, Finish, MarkSilent, Offer, OpenWave, Pause, Retry, RollBack
from fleet.controller.rollouts.facts import (
    Aborted,
    Approved,
    ClockSetBack,
    Created,
    Decided,
    Fact,
    Joined,
    Left,
    Paused,
    Reported,
    Resumed,
    RollbackRequested,
    Started,
    Superseded,
    Unattended,
    WaveApproved,
)
from fleet.controller.rollouts.facts_form import read_event
from fleet.controller.rollouts.fold import CLOCK_STEP, fold, refusal, set_back
from fleet.controller.rollouts.spec_form import spec_digest
from fleet.controller.rollouts.state import DeviceState, RolloutState, Status
from tests.simulators.rollouts import DIGEST, MONDAY, OTHER, Record, spec_of

SPEC = spec_of(standing=True)
APPROVAL = Approved("ann", spec_digest(SPEC))
WAYS = {
    Status.DRAFT: [],
    Status.APPROVED: [APPROVAL],
    Status.RUNNING: [APPROVAL, Started("ann")],
    Status.PAUSED: [APPROVAL, Started("ann"), Paused("ann", "lunch")],
    Status.STANDING: [APPROVAL, Started("ann"), Decided(Finish())],
    Status.FINISHED: [APPROVAL, Started("ann"), Superseded("r-2")],
    Status.ABORTED: [APPROVAL, Started("ann"), Aborted("ann", "enough")],
}
MOVES = [
    (APPROVAL, {Status.DRAFT: Status.APPROVED}),
    (Started("ann"), {Status.APPROVED: Status.RUNNING}),
    (Paused("ann"), dict.fromkeys((Status.RUNNING, Status.STANDING), Status.PAUSED)),
    (Resumed("ann"), {Status.PAUSED: Status.RUNNING}),
    (
        Aborted("ann"),
        dict.fromkeys((Status.APPROVED, Status.RUNNING, Status.PAUSED), Status.ABORTED)
        | {Status.STANDING: Status.FINISHED},
    ),
    (RollbackRequested("ann"), {Status.ABORTED: Status.ABORTED}),
    (Decided(Pause("bad", halt=True)), {Status.RUNNING: Status.PAUSED}),
    (Decided(Abort("bad")), {Status.RUNNING: Status.ABORTED}),
    (Decided(Finish()), {Status.RUNNING: Status.STANDING}),
    (Superseded("r-2"), dict.fromkeys((Status.RUNNING, Status.PAUSED, Status.STANDING), Status.FINISHED)),
]


def record_of(events):
    record = Record(SPEC)
    record.add(Created("r-1", "ann"), *events)
    return record


def running(devices=1, **changes):
    """Return the record of a rollout whose first wave is open and whose devices are offered the release."""
    record = Record(spec_of(waves=[{"percent": 100}], **changes)).start(devices)
    record.tick()
    return record


@pytest.mark.parametrize("status", list(Status))
@pytest.mark.parametrize(("event", "ways"), MOVES, ids=[str(event)[:30] for event, _ in MOVES])
def test_a_rollout_goes_its_way_and_no_other(status, event, ways):
    record = record_of(WAYS[status])
    assert record.state.status is status
    if not isinstance(event, Decided):
        assert (refusal(SPEC, record.state, event) == "") is (status in ways)
    record.add(event)
    assert record.state.status is ways.get(status, status)
    assert (record.state.ignored == {}) is (status in ways)


def test_only_a_standing_rollout_stands():
    plain = Record(spec_of()).start(0)
    plain.add(Decided(Finish()))
    assert (plain.state.status, plain.state.round) == (Status.FINISHED, 0)


def test_between_two_rounds_resuming_stands_again_and_the_approval_holds():
    record = record_of([*WAYS[Status.STANDING], Paused("ann"), Resumed("ann")])
    assert (record.state.status, record.state.round, record.state.wave) == (Status.STANDING, 1, -1)
    record.add(Decided(OpenWave(1)), Paused("ann"), Resumed("ann"))
    assert (record.state.status, record.state.round, record.state.wave) == (Status.RUNNING, 1, 1)
    assert record.state.ignored == {}


def test_an_approval_of_another_specification_is_none():
    record = record_of([Approved("ann", OTHER)])
    assert record.state.status is Status.DRAFT
    assert "another specification" in refusal(SPEC, record.state, Approved("ann", OTHER))


def test_a_rollout_is_created_once():
    record = record_of([Created("r-2", "bob")])
    assert record.state.rollout == "r-1"
    assert record.state.ignored == {"Created: it exists already": 1}


def test_waves_that_need_it_are_approved_once():
    spec = spec_of(waves=[{"percent": 10}, {"percent": 100, "needs_approval": True}])
    state = fold(spec, [Fact(1, MONDAY, Created("r-1", "ann"))])
    assert refusal(spec, state, WaveApproved(1, "ann")) == "wave 1 needs no approval"
    assert refusal(spec, state, WaveApproved(0, "ann")) == "the canary needs no approval"
    assert refusal(spec, state, WaveApproved(3, "ann")) == "wave 3 needs no approval"
    assert refusal(spec, state, WaveApproved(2, "ann")) == ""
    state = fold(spec, [Fact(2, MONDAY, WaveApproved(2, "ann"))], state)
    assert refusal(spec, state, WaveApproved(2, "ann")) == "wave 2 was approved already"


def test_facts_that_are_known_are_skipped():
    record = running(3)
    record.report("d-0", "committed")
    assert fold(record.spec, record.facts, record.state) == record.state


@pytest.mark.parametrize(
    "decision",
    [
        OpenWave(2),
        Offer("d-0", 1, 1),
        Offer("d-0", 1, 2),
        Offer("d-9", 1, 1),
        Retry("d-0", 1, 2),
        MarkSilent("d-9", ""),
        RollBack("d-0"),
    ],
    ids=str,
)
def test_a_decision_out_of_turn_changes_nothing_but_a_count(decision):
    record = running()
    record.add(Paused("ann")) if isinstance(decision, OpenWave) else None
    before = record.member("d-0")
    record.add(Decided(decision))
    assert record.member("d-0") == before
    assert sum(record.state.ignored.values()) == 1


def test_a_wave_opens_once():
    record = running()
    record.add(Decided(OpenWave(1)), Decided(OpenWave(0)))
    assert record.state.wave == 1
    assert record.state.ignored == {"a wave out of turn": 2}


@pytest.mark.parametrize("wave", [0, 2])
def test_nobody_is_offered_it_in_another_wave_than_the_newest(wave):
    record = running()
    record.join([Joined("late")])
    record.add(Decided(Offer("late", wave, 1)))
    assert record.state.ignored == {"offered out of turn": 1}
    record.add(Decided(Offer("late", 1, 1)))
    assert record.member("late").state is DeviceState.OFFERED


def test_who_joined_after_the_start_of_a_fixed_rollout_or_after_its_end_is_not_in_it():
    record = running(dynamic=False)
    record.join([Joined("late")])
    assert record.state.ignored == {"joined after the start": 1}
    record = record_of([*WAYS[Status.ABORTED], Joined("late")])
    assert record.state.ignored == {"joined after the end": 1}
    assert record.state.members == {}


def test_leaving_twice_or_without_being_there_is_counted():
    record = running(1)
    record.add(Left("d-0", "scrapped"), Left("d-0"), Left("d-9"))
    assert record.state.ignored == {"left without being there": 2}
    assert (record.member("d-0").present, record.member("d-0").reason) == (False, "scrapped")


def test_a_suspended_device_that_is_then_revoked_does_not_return():
    record = running(1)
    record.add(Left("d-0", "it is suspended", suspended=True))
    assert (record.member("d-0").present, record.member("d-0").belongs) == (False, True)
    record.add(Left("d-0", "it is revoked"))
    assert (record.member("d-0").belongs, record.member("d-0").reason) == (False, "it is revoked")


def test_a_fact_without_the_word_of_suspension_is_read():
    assert read_event({"kind": "left", "device": "d-0", "reason": ""}) == Left("d-0")


# ---- what devices say


def test_reports_lead_forward():
    record = running()
    for state in ("downloading", "probation", "committed"):
        record.report("d-0", state)
        assert record.member("d-0").state is DeviceState(state)


reports = st.lists(
    st.sampled_from(["pending", "offered", "downloading", "probation", "committed", "rolled_back", "failed"]),
    max_size=8,
)


@given(reports, st.randoms())
def test_the_order_and_number_of_reports_do_not_matter_to_the_verdict(states, random):
    shuffled = [*states, *states[: len(states) // 2]]
    random.shuffle(shuffled)
    one, other = running(), running()
    for record, said in ((one, states), (other, shuffled)):
        for state in said:
            record.report("d-0", state)
    first, second = one.member("d-0"), other.member("d-0")
    assert first.failing is second.failing
    assert first.failures == second.failures <= 1
    assert (first.state is DeviceState.COMMITTED) is (second.state is DeviceState.COMMITTED)
    assert first.failing is bool({"rolled_back", "failed"} & {*states})


def test_a_roll_back_after_the_commit_counts_as_failed():
    record = running()
    record.report("d-0", "committed")
    record.report("d-0", "rolled_back")
    assert record.member("d-0").failing


def test_reports_of_strangers_other_attempts_and_other_releases_are_counted_and_nothing_else():
    record = running()
    before = record.member("d-0")
    record.add(Reported("d-9", "committed", DIGEST))
    record.report("d-0", "committed", attempt=7)
    record.report("d-0", "failed", OTHER)
    record.report("d-0", "committed", OTHER, attempt=0)
    assert record.member("d-0") == before
    assert record.state.ignored == {
        "a report without an offer": 1,
        "a report of another attempt": 1,
        "a report of another release": 2,
    }


def test_success_with_another_release_is_a_failure():
    record = running()
    record.report("d-0", "committed", OTHER)
    assert record.member("d-0").state is DeviceState.FAILED
    assert "runs another release (bbbbbbbbbbbb…)" in record.member("d-0").reason


@pytest.mark.parametrize("attempt", [0, 1])
def test_a_device_that_committed_and_then_runs_something_else_failed(attempt):
    record = running()
    record.report("d-0", "committed")
    record.report("d-0", "committed", OTHER, attempt=attempt)
    assert record.member("d-0").state is DeviceState.FAILED
    record.report("d-0", "committed")
    assert record.member("d-0").state is DeviceState.FAILED


def test_a_silent_device_is_heard_again_only_when_it_is_done():
    record = running()
    record.tick(3600)
    assert record.member("d-0").state is DeviceState.SILENT
    record.report("d-0", "probation")
    assert record.member("d-0").state is DeviceState.SILENT
    record.report("d-0", "committed")
    assert record.member("d-0").state is DeviceState.COMMITTED
    assert not record.member("d-0").failing


def test_what_was_rolled_back_by_the_fleet_says_so_when_it_is_done():
    record = running(rollback="forced")
    record.report("d-0", "committed")
    record.add(Aborted("ann"))
    assert record.tick() == (RollBack("d-0"),)
    record.report("d-0", "committed", OTHER)
    assert record.member("d-0").state is DeviceState.ROLLED_BACK


# ---- clocks


def test_a_clock_that_is_set_back_makes_nobody_wait_for_a_time_that_was_a_mistake():
    record = Record(spec_of(waves=[{"percent": 100}]), MONDAY + timedelta(days=7000)).start(1)
    record.tick()
    record.now = MONDAY
    record.add(Joined("d-1"))
    assert record.member("d-0").heard_at == record.state.latest_at == MONDAY
    assert MarkSilent("d-0", "nothing was heard of it for 3600 s") in record.tick(3600)


def test_where_nothing_else_happens_a_fact_of_its_own_says_that_the_clock_was_set_back():
    record = running()
    assert not set_back(record.state, record.now - CLOCK_STEP)
    record.now -= timedelta(days=300)
    assert set_back(record.state, record.now)
    record.add(ClockSetBack())
    assert not set_back(record.state, record.now)
    assert record.member("d-0").heard_at == record.now


def test_clocks_of_replicas_may_differ_a_little():
    record = running()
    heard = record.member("d-0").heard_at
    record.now -= CLOCK_STEP
    record.add(Joined("d-1"))
    assert record.member("d-0").heard_at == heard


names = st.sampled_from(["a", "b"])
said = st.sampled_from(["pending", "downloading", "committed", "failed"])
waves, attempts = st.integers(0, 2), st.integers(0, 3)
words = (
    Created("r", ""),
    ClockSetBack(),
    Unattended(MONDAY),
    APPROVAL,
    Started(""),
    Paused(""),
    Resumed(""),
    Aborted(""),
    RollbackRequested(""),
)
decisions = st.one_of(
    st.builds(OpenWave, waves),
    st.builds(Offer, names, waves, attempts),
    st.builds(Retry, names, waves, attempts),
    st.builds(MarkSilent, names, st.just("")),
    st.builds(RollBack, names),
    st.sampled_from([Pause("", halt=True), Finish(), Abort("")]),
)
events = st.one_of(
    st.builds(Joined, names),
    st.builds(Left, names),
    st.builds(Reported, names, said, st.sampled_from([DIGEST, OTHER]), attempts),
    st.sampled_from(words),
    st.builds(Decided, decisions),
)
histories = st.lists(st.tuples(st.integers(-90, 90), events), max_size=40)


@given(histories, st.integers(0, 40))
def test_a_fold_goes_on_from_any_state_as_if_it_had_never_stopped(history, cut):
    at, facts = MONDAY, []
    for seq, (seconds, event) in enumerate(history, 1):
        at += timedelta(seconds=seconds)
        facts.append(Fact(seq, at, event))
    whole = fold(SPEC, facts)
    first = fold(SPEC, facts[:cut])
    kept = (dict(first.members), dict(first.ignored))
    assert fold(SPEC, facts[cut:], first) == whole
    assert (first.members, first.ignored) == kept
    assert fold(SPEC, facts, RolloutState()) == whole
