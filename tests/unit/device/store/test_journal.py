"""The journal: floors never fall, updates go one way, histories are bounded, all of it there after a restart."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path

import pytest

from gateway.common.domain.activation import Activation
from gateway.common.domain.assignment import Assignment, Target
from gateway.common.domain.update import REVOCABLE, Failure, Step
from gateway.common.store.errors import StoreAbsentError, StoreError
from gateway.common.store.settings import JournalSettings
from gateway.device.store.journal import Journal
from gateway.device.store.journal_rows import Floors, Rejection, Update
from tests.simulators.constants import settings_with

NOW = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)
FAILURE = Failure(Step.PROBATION, "slower than before", {"p99_us": 1.5, "runs": 3, "unit": "us"})


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with contextlib.closing(Journal.create(tmp_path)) as opened:
        yield opened


def reopened(journal: Journal, folder: Path, settings: JournalSettings | None = None) -> Journal:
    journal.close()
    return Journal.open(folder, settings)


def activation(slot: str = "meter", release: int = 2) -> Activation:
    return Activation(slot, f"models/acme/meter/{release}/release", f"{release:064x}", ("small",), ("e" * 64,), 3)


def at(journal: Journal, step: Step, slot: str = "meter") -> Update:
    """Return an update that has come to `step`."""
    update = journal.begin(activation(slot), 7, NOW)
    if step is Step.ROLL_BACK:
        return journal.fail(slot, FAILURE, NOW)
    if step is Step.RETIRE:
        journal.record(slot, Step.COMMIT, NOW)
    return update if step is Step.FETCH else journal.record(slot, step, NOW)


# ---- floors ---------------------------------------------------------------------------------------------------------
def test_where_nothing_was_seen_there_is_no_floor(journal: Journal) -> None:
    assert (journal.floor("root"), journal.version_floor("acme/meter"), journal.time_floor()) == (0, "", None)
    assert journal.floors() == Floors()


def test_floors_rise_alone(journal: Journal, tmp_path: Path) -> None:
    journal.raise_floors(Floors({"root": 3, "timestamp": 9}, {"acme/meter": "1.10"}, NOW))
    journal.raise_floors(Floors({"root": 2, "timestamp": 10}, {"acme/meter": "1.9"}, NOW - timedelta(days=1)))
    expected = Floors({"root": 3, "timestamp": 10}, {"acme/meter": "1.10"}, NOW)
    with contextlib.closing(reopened(journal, tmp_path)) as again:
        assert again.floors() == expected


def test_the_time_floors_name_is_its_own(journal: Journal) -> None:
    with pytest.raises(ValueError, match="'time' is the time floor's own name"):
        journal.raise_floors(Floors({"time": 3}))


def test_floors_are_raised_together_or_not_at_all(journal: Journal, tmp_path: Path) -> None:
    journal = reopened(journal, tmp_path, settings_with(JournalSettings(), floors_limit=2))
    with pytest.raises(StoreError, match="more than 2 names would have a floor"):
        journal.raise_floors(Floors({"a": 1, "b": 1, "c": 1}, {"acme/meter": "2"}, NOW))
    assert journal.floors() == Floors()
    journal.raise_floors(Floors({"a": 1, "b": 1}))
    journal.close()


# ---- the assignment -------------------------------------------------------------------------------------------------
ASSIGNMENT = Assignment(
    "device-1",
    7,
    NOW,
    NOW + timedelta(days=1),
    {"meter": Target("models/acme/meter/2/release", 100, "a" * 64)},
    (Target("policy/fleet.json", 3, "b" * 64),),
    nonce="n",
    poll_s=1.5,
)


def test_an_assignment_is_kept_with_its_floors(journal: Journal, tmp_path: Path) -> None:
    assert journal.accepted() is None
    journal.accept(ASSIGNMENT, b"signed", Floors({"assignment": 7, "timestamp": 3}, {"acme/meter": "2"}, NOW))
    journal = reopened(journal, tmp_path)
    accepted = journal.accepted()
    assert accepted
    assert (accepted.assignment, accepted.content) == (ASSIGNMENT, b"signed")
    assert accepted.digest == sha256(b"signed").hexdigest()
    assert journal.floors() == Floors({"assignment": 7, "timestamp": 3}, {"acme/meter": "2"}, NOW)
    journal.close()


def test_an_assignment_is_accepted_with_all_its_floors_or_not_at_all(journal: Journal, tmp_path: Path) -> None:
    journal = reopened(journal, tmp_path, settings_with(JournalSettings(), floors_limit=1))
    with pytest.raises(StoreError, match="more than 1 names"):
        journal.accept(ASSIGNMENT, b"signed", Floors({"assignment": 7, "timestamp": 3}))
    assert journal.accepted() is None
    assert journal.floors() == Floors()
    journal.close()


# ---- updates --------------------------------------------------------------------------------------------------------
def test_an_update_goes_its_way(journal: Journal, tmp_path: Path) -> None:
    begun = journal.begin(activation(), 7, NOW)
    assert begun == Update(activation(), Step.FETCH, 7, NOW, NOW)
    later = NOW + timedelta(seconds=1)
    for step in (
        Step.LOAD,
        Step.SHIFT,
        Step.PROBATION,
        Step.LOAD,
        Step.TAKE_OVER,
        Step.COMMIT,
        Step.COMMIT,
        Step.RETIRE,
    ):
        journal.record("meter", step, later)
        journal = reopened(journal, tmp_path)
        assert journal.update("meter") == Update(activation(), step, 7, NOW, later)
    assert journal.finish("meter", later) == Update(activation(), Step.DONE, 7, NOW, later)
    assert (journal.update("meter"), journal.updates()) == (None, ())
    assert journal.finished(5) == (Update(activation(), Step.DONE, 7, NOW, later),)
    journal.close()


def test_what_is_learnt_on_the_way_is_recorded_with_the_step(journal: Journal) -> None:
    journal.begin(Activation("meter", "models/acme/meter/2/release", "0" * 64, (), (), 1), 7, NOW)
    assert journal.record("meter", Step.FETCH, NOW, activation()).activation == activation()
    assert journal.record("meter", Step.LOAD, NOW).activation == activation()
    with pytest.raises(ValueError, match="an activation of other is none of meter"):
        journal.record("meter", Step.SHIFT, NOW, activation("other"))


def test_a_slot_has_one_update_at_a_time(journal: Journal) -> None:
    journal.begin(activation("b"), 7, NOW)
    journal.begin(activation("a"), 7, NOW + timedelta(seconds=1))
    with pytest.raises(StoreError, match="an update of a is under way; finish it first"):
        journal.begin(activation("a"), 8, NOW)
    assert [update.slot for update in journal.updates()] == ["b", "a"]


@pytest.mark.parametrize("step", [Step.LOAD, Step.COMMIT])
def test_nothing_is_recorded_of_an_update_that_was_never_begun(journal: Journal, step: Step) -> None:
    with pytest.raises(StoreAbsentError, match="no update of meter is under way"):
        journal.record("meter", step, NOW)
    with pytest.raises(StoreAbsentError):
        journal.fail("meter", FAILURE, NOW)
    with pytest.raises(StoreAbsentError):
        journal.finish("meter", NOW)


@pytest.mark.parametrize("step", sorted(REVOCABLE, key=lambda step: step.value))
def test_before_its_commit_an_update_can_fail_and_its_release_is_rejected(journal: Journal, step: Step) -> None:
    at(journal, step)
    failed = journal.fail("meter", FAILURE, NOW)
    assert (failed.step, failed.failure) == (Step.ROLL_BACK, FAILURE)
    assert journal.rejected("meter", activation().release) == "slower than before"
    ended = journal.finish("meter", NOW)
    assert (ended.step, ended.failure) == (Step.ROLLED_BACK, FAILURE)
    assert journal.finished(1) == (ended,)


def test_an_update_may_fail_without_its_release_being_to_blame(journal: Journal) -> None:
    at(journal, Step.FETCH)
    journal.fail("meter", FAILURE, NOW, reject=False)
    assert journal.rejected("meter", activation().release) == ""


@pytest.mark.parametrize("step", [Step.COMMIT, Step.RETIRE, Step.ROLL_BACK])
def test_from_commit_on_and_from_roll_back_on_there_is_one_way(journal: Journal, step: Step) -> None:
    at(journal, step)
    with pytest.raises(ValueError, match=f"the update of meter is at {step.name}: it is too late to fail"):
        journal.fail("meter", FAILURE, NOW)
    for back in REVOCABLE:
        with pytest.raises(ValueError, match=f"{back.name} may not follow {step.name} in the update of meter"):
            journal.record("meter", back, NOW)
    found = journal.update("meter")
    assert found
    assert found.step is step


@pytest.mark.parametrize("step", [Step.DONE, Step.ROLLED_BACK, Step.ROLL_BACK])
def test_ends_are_not_recorded_as_steps(journal: Journal, step: Step) -> None:
    at(journal, Step.FETCH)
    with pytest.raises(ValueError, match=f"{step.name} is recorded by `fail` or `finish`"):
        journal.record("meter", step, NOW)


@pytest.mark.parametrize("step", [*sorted(REVOCABLE, key=lambda step: step.value), Step.COMMIT])
def test_an_update_is_not_over_before_its_last_step(journal: Journal, step: Step) -> None:
    at(journal, step)
    with pytest.raises(ValueError, match=f"at {step.name}, which is not its last step"):
        journal.finish("meter", NOW)


def test_histories_are_bounded_and_the_oldest_go_first(journal: Journal, tmp_path: Path) -> None:
    journal = reopened(journal, tmp_path, settings_with(JournalSettings(), finished_limit=3, rejected_limit=2))
    for number in range(5):
        journal.begin(activation("meter", number), number, NOW - timedelta(days=number))  # the clock may go backwards
        journal.fail("meter", FAILURE, NOW)
        journal.finish("meter", NOW)
    assert [update.assignment_version for update in journal.finished(9)] == [4, 3, 2]
    assert [update.assignment_version for update in journal.finished(1)] == [4]
    rejected = [number for number in range(5) if journal.rejected("meter", activation("meter", number).release)]
    assert rejected == [3, 4]
    journal.close()


def test_a_rejection_says_its_latest_reason(journal: Journal) -> None:
    for reason in ("slow", ""):
        journal.reject(Rejection("meter", "a" * 64, reason), NOW)
    assert journal.rejected("meter", "a" * 64) == "rejected"
    assert journal.rejected("other", "a" * 64) == ""


def test_a_release_may_be_tried_again_once_another_was_assigned(journal: Journal) -> None:
    def assigned(slot: str, digest: str, version: int) -> None:
        slots = {slot: Target("models/acme/meter/2/release", 1, digest)}
        assignment = Assignment("door", version, NOW, NOW + timedelta(days=1), slots)
        journal.accept(assignment, b"{}", Floors())

    journal.reject(Rejection("meter", "a" * 64, "slow"), NOW)
    assigned("meter", "a" * 64, 8)  # the same, signed again
    assert journal.rejected("meter", "a" * 64) == "slow"
    assigned("meter", "b" * 64, 9)
    assert journal.rejected("meter", "a" * 64) == ""
    journal.reject(Rejection("meter", "b" * 64, "slow"), NOW)
    assigned("other", "b" * 64, 10)
    assert journal.rejected("meter", "b" * 64) == ""


def test_facts_are_kept_together(journal: Journal, tmp_path: Path) -> None:
    assert journal.fact("etag") is None
    journal.keep_facts({"etag": "1", "last sync": "fine"})
    journal.keep_facts({"etag": "2"})
    journal = reopened(journal, tmp_path)
    assert (journal.fact("etag"), journal.fact("last sync")) == ("2", "fine")
    journal.close()
