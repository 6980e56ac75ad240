"""Actions that a device begins, given what it is assigned, what it runs and what is under way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.assignment import Target
from gateway.common.domain.update import ENDS, REVOCABLE, Step, after
from gateway.device.domain.reconcile import Install, Supersede, UnderWay, Withdraw, changes

NEW, OTHER = "a" * 64, "b" * 64


def target(digest=NEW):
    return Target("models/acme/meter/2/release", 10, digest)


def test_a_device_in_step_begins_nothing():
    assert changes({"meter": target()}, {"meter": NEW}, {}) == ()


def test_another_release_is_installed_and_what_is_ordered_away_is_removed():
    assert changes({"meter": target()}, {"meter": OTHER, "old": OTHER}, {}, removed={"old"}) == (
        Install("meter", target()),
        Withdraw("old"),
    )


def test_what_is_only_missing_from_the_assignment_goes_on():
    assert changes({}, {"meter": OTHER, "old": OTHER}, {}, removed={"another"}) == ()


def test_what_failed_here_is_not_tried_again_under_the_same_assignment():
    assert changes({"meter": target()}, {"meter": OTHER}, {}, {("meter", NEW)}) == ()
    assert changes({"meter": target()}, {}, {}, {("other", NEW)}) == (Install("meter", target()),)


def test_an_update_under_way_to_what_is_assigned_runs_on():
    assert changes({"meter": target()}, {"meter": OTHER}, {"meter": UnderWay(NEW, Step.PROBATION)}) == ()


@pytest.mark.parametrize("desired", [{}, {"meter": target(OTHER)}])
@pytest.mark.parametrize("step", [step for step in Step if step not in ENDS])
def test_an_update_to_something_else_is_given_up_unless_it_is_committed_or_rolls_back(desired, step):
    expected = (Supersede("meter"),) if step in REVOCABLE else ()
    assert changes(desired, {"meter": OTHER}, {"meter": UnderWay(NEW, step)}) == expected


digests = st.sampled_from([NEW, OTHER, "c" * 64])
slots = st.sampled_from(["one", "two", "three"])


@given(st.dictionaries(slots, digests.map(target)), st.dictionaries(slots, digests))
def test_carrying_out_the_changes_leaves_nothing_to_change(desired, committed):
    removed = committed.keys() - desired.keys()
    for change in changes(desired, committed, {}, removed=removed):
        if isinstance(change, Install):
            committed[change.slot] = change.target.sha256
        else:
            del committed[change.slot]
    assert changes(desired, committed, {}, removed=removed) == ()
    assert committed == {slot: wanted.sha256 for slot, wanted in desired.items()}


def test_steps_lead_to_done_and_a_roll_back_to_its_end():
    walked = [Step.FETCH]
    while walked[-1] not in ENDS:
        walked.append(after(walked[-1]))
    assert [step.value for step in walked] == [
        "fetch", "load", "shift", "probation", "take-over", "commit", "retire", "done",
    ]  # fmt: skip
    assert after(Step.ROLL_BACK) is Step.ROLLED_BACK
