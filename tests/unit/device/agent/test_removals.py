"""A model is taken away by an explicit order only, within bounds that hold also where no policy was signed."""

from __future__ import annotations

import pytest

from gateway.common.domain.policy import REMOVAL_HOLD_H, Policy
from gateway.device.agent.report.report import document, read_standing
from gateway.device.agent.state.policy import LAST
from tests.unit.device.agent import test_policy
from tests.unit.device.agent.test_policy import DEVICE, FREE, HOUR, PATH, SLOT, Device

device = test_policy.device
OTHER = "camera"


def ask(device: Device, slots: dict[str, str], *files: str, removed: tuple[str, ...] = ()) -> str:
    """Assign, poll and work. Return the problem of the poll."""
    device.repository.assign(DEVICE, slots, files, extra={"removed": list(removed)} if removed else {})
    problem = device.agent.poll().problem
    device.agent.work(test_policy.Alarm())
    return problem


def running(device: Device) -> dict[str, str]:
    return {slot: one.version for slot, one in device.storage.active().slots.items()}


def state(device: Device) -> tuple[str, str]:
    told = document(read_standing(device.storage, device.agent.identity))
    return told["state"], told["why"]


@pytest.fixture
def two(device: Device) -> Device:
    """Return a device that runs two models, with no policy."""
    slots = {SLOT: device.publish("1"), OTHER: device.repository.add_release(OTHER, "1")}
    assert not ask(device, slots)
    assert running(device) == {SLOT: "1", OTHER: "1"}
    return device


def test_an_empty_assignment_takes_nothing_away(two: Device) -> None:
    assert not ask(two, {})
    two.now += 100 * HOUR
    assert not ask(two, {})
    assert running(two) == {SLOT: "1", OTHER: "1"}
    assert state(two)[0] == "unassigned"
    assert "camera runs models/acme/camera/1/release" in state(two)[1]


def test_without_a_policy_a_removal_waits_and_never_takes_the_last_model(two: Device) -> None:
    assert not ask(two, {}, removed=(SLOT,))
    assert two.held["change"] == "withdraw"
    two.now += (REMOVAL_HOLD_H - 1) * HOUR
    two.again()
    assert running(two) == {SLOT: "1", OTHER: "1"}
    two.now += 12 * HOUR
    two.again()
    assert running(two) == {OTHER: "1"}
    assert not ask(two, {}, removed=(SLOT, OTHER))
    two.now += 1000 * HOUR
    two.again()
    assert running(two) == {OTHER: "1"}
    assert LAST in state(two)[1]


def test_a_removal_of_all_models_at_once_removes_none(two: Device) -> None:
    assert not ask(two, {}, removed=(SLOT, OTHER))
    two.now += 1000 * HOUR
    two.again()
    assert running(two) == {SLOT: "1", OTHER: "1"}


def test_a_signed_policy_may_let_the_last_model_go(two: Device) -> None:
    policy = two.policy(FREE)
    assert not ask(two, {}, policy, removed=(SLOT, OTHER))
    assert running(two) == {}


def test_a_removal_is_no_removal_of_what_is_assigned(two: Device) -> None:
    second = two.publish("2")
    assert not ask(two, {SLOT: second}, two.policy(FREE), removed=(SLOT, OTHER))
    assert running(two) == {SLOT: "2"}


def test_a_floor_above_what_runs_costs_no_slot_its_model(two: Device) -> None:
    """The owner raises the floor above everything that is released but the newest, which is not assigned yet."""
    first, camera = two.storage.active().slots[SLOT].target, two.repository.add_release(OTHER, "2")
    two.repository.add_release(SLOT, "9", floor="9")
    assert not ask(two, {SLOT: first, OTHER: camera})
    assert running(two) == {SLOT: "1", OTHER: "2"}


def test_an_error_of_one_owner_costs_its_own_slots_only(two: Device) -> None:
    second, camera = two.publish("2"), two.repository.add_release(OTHER, "2")
    two.repository.add_release(SLOT, "9", floor="9")
    assert "below-floor" in ask(two, {SLOT: second, OTHER: camera})
    assert running(two) == {SLOT: "1", OTHER: "2"}
    assert state(two)[0] == "refused"


@pytest.mark.parametrize("floor", [7, "", "9" * 500, {"a": 1}, None])
def test_a_floor_that_is_no_version_costs_its_owners_slots_only(two: Device, floor: object) -> None:
    two.repository.add_owner("beta")
    gate, camera = two.repository.add_release("gate", "1", owner="beta"), two.repository.add_release(OTHER, "2")
    signed = two.repository.owner_targets("beta")
    signed.signed.targets[gate].unrecognized_fields["custom"] = {"floor": floor}
    signed.signed.version += 1
    two.repository.forge("models-beta", signed, two.repository.keys["models-beta"])
    first = two.storage.active().slots[SLOT].target
    assert "damaged" in ask(two, {SLOT: first, OTHER: camera, "gate": gate})
    assert running(two) == {SLOT: "1", OTHER: "2"}


def test_an_owner_whose_metadata_cannot_be_had_costs_its_own_slots_only(two: Device) -> None:
    """A mirror lost it: what runs goes on, and the other owner's slot is updated."""
    two.repository.add_owner("beta")
    theirs = two.repository.add_release("gate", "1", owner="beta")
    camera = two.repository.add_release(OTHER, "2")
    first = two.storage.active().slots[SLOT].target
    two.repository.assign(DEVICE, {SLOT: first, OTHER: camera, "gate": theirs})
    for file in (two.repository.public / "metadata").glob("*.models-beta.json"):
        file.unlink()
    assert "models-beta" in two.agent.poll().problem
    two.agent.work(test_policy.Alarm())
    assert running(two) == {SLOT: "1", OTHER: "2"}


def test_a_withdrawn_release_goes_on_and_is_not_installed(two: Device) -> None:
    second = two.publish("2")
    two.repository.withdraw(SLOT, "1", "offer")
    two.repository.withdraw(SLOT, "2", "offer")
    assert "withdrawn" in ask(two, {SLOT: second})
    assert running(two) == {SLOT: "1", OTHER: "1"}


def test_what_its_owner_removes_stops_at_once_whatever_the_policy(two: Device) -> None:
    policy = two.policy(Policy(share_percent_per_hour=0.1, profiles=("another",), profile_delay_h=100.0))
    slots = {slot: one.target for slot, one in two.storage.active().slots.items()}
    assert not ask(two, slots, policy)
    for slot in slots:
        two.repository.withdraw(slot, "1", "remove")
    ask(two, slots, policy)
    assert running(two) == {}


def test_what_its_owner_removes_is_not_gone_back_to(two: Device) -> None:
    camera, second = two.storage.active().slots[OTHER].target, two.publish("2")
    assert not ask(two, {SLOT: second, OTHER: camera})
    assert two.storage.active().previous[SLOT].version == "1"
    two.repository.withdraw(SLOT, "1", "remove")
    assert not ask(two, {SLOT: second, OTHER: camera})
    assert running(two) == {SLOT: "2", OTHER: "1"}
    assert SLOT not in two.storage.active().previous


def test_an_update_to_what_its_owner_withdraws_is_given_up(two: Device) -> None:
    camera, second = two.storage.active().slots[OTHER].target, two.publish("2")
    two.repository.assign(DEVICE, {SLOT: second, OTHER: camera})
    assert not two.agent.poll().problem
    assert [update.slot for update in two.storage.journal.updates()] == [SLOT]
    two.repository.withdraw(SLOT, "2", "offer")
    assert "withdrawn" in two.agent.poll().problem
    (ended,) = two.storage.journal.finished(1)
    assert (ended.failure and ended.failure.reason) == "its owner withdrew the release"
    assert two.storage.journal.updates() == ()
    assert running(two) == {SLOT: "1", OTHER: "1"}


# ---- which release may take which slot -------------------------------------------------------------------------------
def test_another_model_does_not_take_an_occupied_slot(two: Device) -> None:
    """The director's key alone assigns the other model, whose owner signed it, to the slot."""
    pose = two.repository.add_release("pose", "1")
    assert "wrong-slot" in ask(two, {SLOT: pose})
    assert running(two)[SLOT] == "1"
    assert two.storage.active().slots[SLOT].target.startswith("models/acme/meter/")


def test_another_model_of_the_owner_takes_the_slot_that_it_is_signed_for(two: Device) -> None:
    pose = two.repository.add_release("pose", "1", slots=(SLOT,))
    assert not ask(two, {SLOT: pose})
    assert two.storage.active().slots[SLOT].target == pose


def test_a_release_is_not_taken_into_a_slot_that_it_is_not_signed_for(two: Device) -> None:
    pose = two.repository.add_release("pose", "1", slots=("posture",))
    assert "wrong-slot" in ask(two, {"empty": pose})


def test_another_owner_takes_an_occupied_slot_by_a_policy_only(two: Device) -> None:
    two.repository.add_owner("beta")
    theirs = two.repository.add_release(SLOT, "1", owner="beta", slots=(SLOT,))
    assert "wrong-slot" in ask(two, {SLOT: theirs})
    policy = two.policy(Policy(slots=((SLOT, ("acme/meter", "beta/meter")),)))
    assert not ask(two, {SLOT: theirs}, policy)
    assert two.storage.active().slots[SLOT].target == theirs


def test_a_policy_names_the_models_of_an_empty_slot(device: Device) -> None:
    policy = device.policy(Policy(slots=((SLOT, ("acme/meter",)),)), PATH)
    assert "wrong-slot" in ask(device, {SLOT: device.repository.add_release("pose", "1")}, policy)


def test_other_tensors_are_refused_unless_their_owner_signs_that_they_change(two: Device) -> None:
    other = two.repository.add_release(SLOT, "2", inputs=(("motion", (-1, 100, 6)),))
    assert "requires the input" in (problem := ask(two, {SLOT: other}))
    assert "incompatible" in problem
    meant = two.repository.add_release(SLOT, "3", inputs=(("motion", (-1, 100, 6)),), changes_signature=True)
    assert not ask(two, {SLOT: meant})
    assert running(two)[SLOT] == "3"
    first = two.repository.add_release(SLOT, "4")
    assert not ask(two, {SLOT: first})  # the way back from what was signed to change them
    assert running(two)[SLOT] == "4"


def test_a_policys_key_and_the_directors_together_lift_every_bound_of_removals(two: Device) -> None:
    """fleet/README.md says so; what the policy's thief cannot do alone, or with it, is to change tensors."""
    strict = two.policy(Policy(removal_hold_h=720.0))
    assert not ask(two, {}, strict, removed=(SLOT, OTHER))
    assert running(two) == {SLOT: "1", OTHER: "1"}
    assert not ask(two, {}, two.policy(FREE), removed=(SLOT, OTHER))
    assert running(two) == {}


def test_an_emptied_slot_takes_any_release_that_names_no_other_one(two: Device) -> None:
    assert not ask(two, {}, two.policy(FREE), removed=(SLOT,))
    pose = two.repository.add_release("pose", "1")
    assert not ask(two, {SLOT: pose})
    assert two.storage.active().slots[SLOT].target == pose
