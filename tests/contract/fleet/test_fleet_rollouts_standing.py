"""Standing rollouts: devices that come later are served in rounds, and later rollouts supersede them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from fleet.controller.control import device_removal, rollouts
from fleet.controller.control.device_removal import RemovalReason
from fleet.controller.control.rollouts_preview import preview
from fleet.controller.database import desired, devices, removal
from fleet.controller.database.errors import ConflictError
from fleet.controller.rollouts.facts import Aborted, Paused, Resumed, RollbackRequested, Unattended
from fleet.controller.rollouts.state import Status
from tests.simulators.rolled_fleet import V1, V2, V3, RolledFleet, fleet

__all__ = ["fleet"]
ALL = [{"percent": 100}]


def standing(fleet: RolledFleet, *names: str, version: str = "2", **changes: object) -> str:
    """Return a standing rollout that these devices committed."""
    fleet.now += timedelta(seconds=1)
    rollout = fleet.start(target=f"acme/meter-reader/{version}", **{"standing": True, "waves": ALL, **changes})
    served(fleet, rollout, *names)
    return rollout


def served(fleet: RolledFleet, rollout: str, *names: str) -> None:
    """Check that exactly these devices are offered the release, and let them commit it."""
    fleet.turn(1)
    assert fleet.members(rollout, "offered") == [*names]
    fleet.report(rollout, names, "committed")
    fleet.turn(1)
    fleet.replayed(rollout)


def label(fleet: RolledFleet, device: str, *tags: str) -> None:
    with fleet.database.write() as connection:
        devices.label(connection, device, tags, "")


def test_who_is_enrolled_or_tagged_later_is_served_in_the_next_round(fleet: RolledFleet) -> None:
    fleet.enrol(["a", "b"], tags=["pilot"])
    fleet.enrol(["c"])
    rollout = standing(fleet, "a", "b", query="tag = pilot")
    assert fleet.status(rollout) is Status.STANDING
    facts = len(fleet.facts(rollout))
    fleet.turn(90_000)  # a night without a controller is no fact of a rollout that waits for nothing
    assert len(fleet.facts(rollout)) == facts
    fleet.enrol(["d"], tags=["pilot"])
    label(fleet, "c", "pilot")
    label(fleet, "a")
    served(fleet, rollout, "c", "d")
    assert fleet.status(rollout) is Status.STANDING
    assert fleet.targets(["a", "b", "c", "d"]) == dict.fromkeys("abcd", V2)
    said = ["create", "test", "test", "wave", "offer", "stand", "wave", "offer", "stand"]
    assert fleet.deeds(rollout) == [f"rollouts.{deed}" for deed in said]
    assert not any(isinstance(fact.event, Unattended) for fact in fleet.facts(rollout))


def test_it_pauses_resumes_and_ends(fleet: RolledFleet) -> None:
    fleet.enrol(["a"])
    rollout = standing(fleet, "a")
    fleet.say(rollout, Paused("ann"))
    fleet.enrol(["b"])
    served(fleet, rollout)
    fleet.say(rollout, Resumed("ann"))
    served(fleet, rollout, "b")
    fleet.say(rollout, Aborted("ann", "no longer needed"))
    fleet.enrol(["c"])
    served(fleet, rollout)
    assert (fleet.known(rollout).stored.state, fleet.targets(["a", "b", "c"])) == ("finished", {"a": V2, "b": V2})


def test_a_round_that_fails_pauses_it_and_is_withdrawn(fleet: RolledFleet) -> None:
    fleet.enrol(["a", "b"])
    rollout = standing(fleet, "a", "b")
    new = fleet.enrol(f"n-{number}" for number in range(8))
    fleet.turn(1)
    fleet.report(rollout, new[:4], "failed")
    fleet.turn(1)
    known = fleet.known(rollout).state
    assert (known.status, known.halted) == (Status.PAUSED, True)
    assert fleet.targets(["a", "b", *new]) == dict.fromkeys(["a", "b", *new[:4]], V2)
    fleet.enrol(["later"])
    served(fleet, rollout)
    fleet.say(rollout, Resumed("ann"))
    served(fleet, rollout, *new[4:])
    served(fleet, rollout, "later")  # those that failed are not offered it again
    assert fleet.members(rollout, "failed") == new[:4]


def test_a_younger_rollout_repairs_a_round_that_failed(fleet: RolledFleet) -> None:
    fleet.publish("3")
    fleet.enrol(["a"])
    old = standing(fleet, "a")
    fleet.enrol(["b", "c"])
    fleet.turn(1)
    fleet.report(old, ["b", "c"], "rolled_back")
    fleet.turn(1)
    assert fleet.status(old) is Status.PAUSED
    fleet.now += timedelta(seconds=1)
    new = fleet.start(target="acme/meter-reader/3", waves=ALL)
    served(fleet, new, "a", "b", "c")
    fleet.turn(1)
    assert (fleet.status(old), fleet.known(old).state.reason) == (Status.FINISHED, f"superseded by {new}")
    fleet.replayed(old)


def test_a_round_that_is_rolled_back_is_not_what_a_younger_rollout_remembers(fleet: RolledFleet) -> None:
    fleet.publish("3")
    old = fleet.enrol(["a", "b"])
    first = standing(fleet, "a", "b", version="1")
    second = standing(fleet, *fleet.enrol(["c"], tags=["t"]), query="tag = t")
    for device in old:
        label(fleet, device, "t")
    fleet.turn(1)
    fleet.report(second, old, "committed")
    fleet.say(second, Aborted("ann"))
    fleet.say(second, RollbackRequested("ann"))
    fleet.now += timedelta(seconds=1)
    third = fleet.start(target="acme/meter-reader/3", waves=ALL)
    fleet.turn(1)
    fleet.say(third, Aborted("ann"))
    fleet.turn(1)
    wanted = {name: (one.target, one.rollout) for name, one in fleet.desired(["a", "b", "c"]).items()}
    assert wanted == dict.fromkeys(old, (V1, first)) | {"c": (V2, second)}


def test_a_release_below_the_floor_pauses_it(fleet: RolledFleet) -> None:
    fleet.enrol(["a"])
    rollout = standing(fleet, "a")
    fleet.publish("3", floor="3")
    fleet.enrol(["b"])
    served(fleet, rollout)
    assert fleet.status(rollout) is Status.PAUSED
    with pytest.raises(ConflictError, match="its owner allows 3"):
        fleet.say(rollout, Resumed("ann"))


def test_it_takes_no_newer_version_away_and_waits_for_the_first_report(fleet: RolledFleet) -> None:
    fleet.publish("3")
    fleet.enrol(["a"])
    rollout = standing(fleet, "a")
    fleet.enrol(["older"], running=V1)
    fleet.enrol(["newer"], running=V3)
    fleet.enrol(["another"], running="models/other/meter-reader/9/release")
    with fleet.database.write() as connection:
        devices.enrol(connection, "mute", fleet.now)
    served(fleet, rollout, "another", "older")
    with fleet.database.write() as connection:
        devices.report(connection, "mute", [], "in-step")
    served(fleet, rollout, "mute")


def test_a_device_that_is_to_run_a_newer_version_keeps_it_when_its_tag_changes(fleet: RolledFleet) -> None:
    fleet.publish("3")
    fleet.enrol(["a"], tags=["field"])
    fleet.enrol(["b"], tags=["lab"])
    rollout = standing(fleet, "a", query="tag = field")
    fleet.now += timedelta(seconds=1)
    lab = fleet.start(target="acme/meter-reader/3", query="tag = lab", waves=ALL)
    served(fleet, lab, "b")
    label(fleet, "b", "field")
    served(fleet, rollout)
    assert fleet.targets(["b"]) == {"b": V3}


def test_the_youngest_rollout_that_is_for_a_device_has_it_and_supersedes_where_none_is_left(fleet: RolledFleet) -> None:
    fleet.publish("3")
    fleet.enrol(["a"], tags=["pilot"])
    fleet.enrol(["b"])
    old = standing(fleet, "a", "b")
    with fleet.database.read() as connection:
        spec = rollouts.drafted(connection, fleet.known(old).stored.spec | {"target": "acme/meter-reader/3"})
    assert preview(fleet.rolling, spec).held == 0
    pilot = standing(fleet, "a", version="3", query="tag = pilot")
    assert [fleet.status(one) for one in (old, pilot)] == [Status.STANDING] * 2
    fleet.enrol(["c"], tags=["pilot"])
    fleet.enrol(["d"])
    served(fleet, pilot, "c")
    assert fleet.targets(["a", "b", "c", "d"]) == {"a": V3, "b": V2, "c": V3, "d": V2}
    fleet.report(old, ["d"], "committed")
    fleet.now += timedelta(seconds=1)
    rest = fleet.start(target="acme/meter-reader/3", query="tag != pilot", waves=[{"count": 1}, {"percent": 100}])
    for _ in range(2):
        fleet.turn(1)
        assert fleet.status(old) is Status.STANDING
        fleet.report(rest, fleet.members(rest, "offered"), "committed")
    fleet.turn(1)
    assert [fleet.status(one) for one in (old, rest)] == [Status.STANDING, Status.FINISHED]
    fleet.turn(1)
    assert [fleet.status(one) for one in (old, rest, pilot)] == [Status.FINISHED] * 2 + [Status.STANDING]
    assert (fleet.known(old).state.reason, fleet.deeds(old)[-1]) == (f"superseded by {rest}", "rollouts.supersede")
    assert fleet.known(old).state.members["a"].state.value == "committed"
    fleet.replayed(old)


def test_an_aborted_rollout_supersedes_nothing(fleet: RolledFleet) -> None:
    fleet.publish("3")
    fleet.enrol(["a"])
    old = standing(fleet, "a")
    fleet.now += timedelta(seconds=1)
    new = fleet.start(target="acme/meter-reader/3", waves=ALL)
    fleet.turn(1)
    assert fleet.targets(["a"]) == {"a": V3}
    fleet.turn(1)
    fleet.enrol(["b"])
    fleet.say(new, Aborted("ann"))
    fleet.turn(1)
    served(fleet, old, "b")
    assert (fleet.status(old), fleet.targets(["a", "b"])) == (Status.STANDING, {"a": V2, "b": V2})


def test_a_device_that_a_round_has_is_another_rollouts_afterwards(fleet: RolledFleet) -> None:
    fleet.publish("3")
    fleet.enrol(["a"])
    old = standing(fleet, "a")
    fleet.enrol(["b"])
    fleet.turn(1)
    fleet.now += timedelta(seconds=1)
    new = fleet.start(target="acme/meter-reader/3", waves=ALL)
    served(fleet, new, "a")
    assert (fleet.status(new), fleet.targets(["a", "b"])) == (Status.RUNNING, {"a": V3, "b": V2})
    fleet.report(old, ["b"], "committed")
    fleet.turn(1)
    served(fleet, new, "b")
    fleet.turn(1)
    assert [fleet.status(one) for one in (old, new)] == [Status.FINISHED] * 2


def test_a_slot_of_a_served_device_can_be_emptied_and_a_new_device_of_its_name_is_served(fleet: RolledFleet) -> None:
    fleet.enrol(["a", "b"])
    rollout = standing(fleet, "a", "b")
    motive = RemovalReason("ann", "", fleet.now)
    device_removal.withdraw(fleet.rolling, "a", "meter-reader", motive, permit=lambda _: None)  # type: ignore[arg-type, return-value]
    served(fleet, rollout)
    with fleet.database.write() as connection:
        devices.change_state(connection, "b", "revoke", "broken", fleet.now)
    fleet.turn(1)
    with fleet.database.write() as connection:
        removal.remove(connection, "b", fleet.now)
    fleet.turn(1)
    fleet.enrol(["b"])
    served(fleet, rollout, "b")
    with fleet.database.read() as connection:
        assert set(desired.of_devices(connection, ["a", "b"], "meter-reader")) == {"b"}


def test_a_revoked_device_supersedes_nothing_and_one_that_is_readmitted_keeps_what_it_has(fleet: RolledFleet) -> None:
    fleet.enrol(["a", "b"])
    rollout = standing(fleet, "a", "b")
    with fleet.database.write() as connection:
        devices.change_state(connection, "a", "revoke", "lost", fleet.now)
    fleet.turn(1)
    with fleet.database.write() as connection:
        devices.change_state(connection, "a", "readmit", "", fleet.now)
    fleet.enrol(["a"])
    served(fleet, rollout)
    assert (fleet.status(rollout), fleet.targets(["a"])) == (Status.STANDING, {"a": V2})


def change(fleet: RolledFleet, device: str, operation: str) -> None:
    with fleet.database.write() as connection:
        devices.change_state(connection, device, operation, "", fleet.now)


def test_a_suspended_device_is_passed_over_when_it_is_resumed(fleet: RolledFleet) -> None:
    """It waited in the first round, and was offered nothing; meanwhile a younger rollout is for it."""
    fleet.publish("3")
    fleet.enrol(["a", "b"])
    old = fleet.start(standing=True, waves=[{"count": 1}, {"percent": 100}])
    fleet.turn(1)
    (first,) = fleet.members(old, "offered")
    (waiting,) = {"a", "b"} - {first}
    change(fleet, waiting, "suspend")
    fleet.report(old, [first], "committed")
    fleet.turn(1)
    assert fleet.status(old) is Status.STANDING
    fleet.now += timedelta(seconds=1)
    new = fleet.start(target="acme/meter-reader/3", waves=ALL)
    fleet.say(new, Paused("ann"))
    change(fleet, waiting, "resume")
    served(fleet, old)
    fleet.say(new, Resumed("ann"))
    fleet.turn(1)
    assert fleet.targets([waiting]) == {waiting: V3}


def test_a_resumed_device_goes_on_with_its_offer_and_is_another_rollouts_afterwards(fleet: RolledFleet) -> None:
    fleet.publish("3")
    fleet.enrol(["a", "b"])
    old = fleet.start(standing=True, waves=ALL, silence_s=600)
    fleet.turn(1)
    change(fleet, "b", "suspend")
    fleet.report(old, ["a"], "committed")
    fleet.turn(1)
    assert fleet.status(old) is Status.STANDING
    fleet.now += timedelta(seconds=1)
    new = fleet.start(target="acme/meter-reader/3", waves=ALL, soak_s=86_400)
    served(fleet, new, "a")
    change(fleet, "b", "resume")
    served(fleet, new)
    assert fleet.targets(["b"]) == {"b": V2}
    fleet.turn(90_000)  # without a controller nothing could be heard
    assert fleet.targets(["b"]) == {"b": V2}
    fleet.attend(600)  # silent: an offer that it does not answer holds it no longer
    served(fleet, new, "b")
    fleet.replayed(old)


def test_so_many_stand_at_most(fleet: RolledFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollouts, "STANDING_LIMIT", 1)
    fleet.enrol(["a"])
    rollout = standing(fleet, "a")
    with pytest.raises(ConflictError, match="1 standing rollouts, and 1 is the most"):
        fleet.start(standing=True)
    fleet.say(rollout, Aborted("ann"))
    fleet.start(standing=True)
