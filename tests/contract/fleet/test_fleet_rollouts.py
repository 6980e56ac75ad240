"""Rollouts from draft to end: what is recorded, what devices are to run, on SQLite and PostgreSQL alike."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest

from fleet.controller.control.settings import SchedulerSettings
from fleet.controller.database import desired, devices
from fleet.controller.database.desired import Desired
from fleet.controller.database.errors import ConflictError
from fleet.controller.rollouts.facts import Aborted, Approved, Paused, Resumed, RollbackRequested, Started
from fleet.controller.rollouts.spec_form import spec_digest
from fleet.controller.rollouts.state import Status, open_offers
from tests.simulators.constants import settings_with
from tests.simulators.rolled_fleet import BEGIN, V1, V2, RolledFleet, fleet, rolling

__all__ = ["fleet"]


def names(number: int) -> list[str]:
    return [f"d-{n}" for n in range(number)]


def test_a_release_reaches_all_devices_wave_by_wave(fleet: RolledFleet) -> None:
    all_of_them = fleet.enrol(names(20))
    rollout = fleet.start()
    assert fleet.desired(all_of_them) == {}
    fleet.turn()
    first = fleet.members(rollout, "offered")
    assert fleet.targets(all_of_them) == dict.fromkeys(first, V2)
    assert len(first) == 2
    wanted = fleet.desired(first)[first[0]]
    assert (wanted.rollout, wanted.attempt, wanted.digest) == (rollout, 1, fleet.known(rollout).spec.target.sha256)
    fleet.turn()
    assert fleet.members(rollout, "offered") == first
    fleet.report(rollout, first, "committed")
    fleet.turn(1)
    others = fleet.members(rollout, "offered")
    assert len(others) == 18
    fleet.report(rollout, others, "committed")
    fleet.turn(1)
    assert fleet.status(rollout) is Status.FINISHED
    assert fleet.targets(all_of_them) == dict.fromkeys(all_of_them, V2)
    assert fleet.replayed(rollout) == 23
    said = ["create", "test", "test", "wave", "offer", "wave", "offer", "finish"]
    assert fleet.deeds(rollout) == [f"rollouts.{deed}" for deed in said]


ALL = [{"percent": 100}]
WINDOW = {"start": "20:30", "end": "22:00", "zone": "site"}


def finished(fleet: RolledFleet, version: str, devices: list[str]) -> str:
    """Return a rollout that every device has committed."""
    rollout = fleet.start(target=f"acme/meter-reader/{version}", waves=ALL)
    fleet.turn(1)
    fleet.report(rollout, devices, "committed")
    fleet.turn(1)
    assert fleet.status(rollout) is Status.FINISHED
    return rollout


def test_a_halt_withdraws_offers_and_going_on_offers_again(fleet: RolledFleet) -> None:
    devices_ = fleet.enrol(names(20))
    before = finished(fleet, "1", devices_)
    rollout = fleet.start(waves=[{"count": 10}, {"percent": 100}], retries={"limit": 1, "backoff_s": 60})
    fleet.turn(1)
    first = fleet.members(rollout, "offered")
    failed, waiting = first[:3], first[3:]
    fleet.report(rollout, failed, "rolled_back", reason="golden set failed")
    fleet.turn(1)
    known = fleet.known(rollout).state
    assert (known.status, known.halted, known.reason[:22]) == (Status.PAUSED, True, "3 of 3 devices failed ")
    assert fleet.targets(waiting) == dict.fromkeys(waiting, V1)
    assert fleet.targets(failed) == dict.fromkeys(failed, V2)
    returned = fleet.desired(waiting)[waiting[0]]
    assert (returned.rollout, returned.attempt) == (before, 1)
    fleet.say(rollout, Resumed("ann"))
    fleet.turn(60)
    assert len(fleet.members(rollout, "offered")) == 10
    assert {wanted.attempt for wanted in fleet.desired([*failed, *waiting]).values()} <= {1, 2}
    assert {wanted.attempt for wanted in fleet.desired(failed).values()} == {2}
    assert fleet.replayed(rollout)


def test_a_forced_roll_back_gives_everybody_back_what_it_had(fleet: RolledFleet) -> None:
    old = fleet.enrol(names(10))
    before = finished(fleet, "1", old)
    new = fleet.enrol(f"n-{n}" for n in range(10))
    rollout = fleet.start(waves=[{"count": 18}, {"percent": 100}], rollback="forced")
    fleet.turn(1)
    reached = fleet.members(rollout, "offered")
    fleet.report(rollout, reached[5:8], "committed")
    fleet.report(rollout, reached[:5], "failed")
    fleet.turn(1)
    assert fleet.status(rollout) is Status.ABORTED
    wanted = fleet.desired([*old, *new])
    assert {name: (w.target, w.rollout) for name, w in wanted.items()} == dict.fromkeys(old, (V1, before))
    assert fleet.replayed(rollout)
    assert fleet.deeds(rollout)[-2:] == ["rollouts.abort", "rollouts.return"]


def test_an_abort_withdraws_and_a_request_takes_the_rest_back(fleet: RolledFleet) -> None:
    devices_ = fleet.enrol(names(10))
    rollout = fleet.start(waves=ALL)
    fleet.turn()
    committed, others = devices_[:4], devices_[4:]
    fleet.report(rollout, committed, "committed")
    fleet.say(rollout, Aborted("ann", "enough"))
    with fleet.database.read() as connection:
        assert fleet.rolling.states.read(connection, rollout, fleet.database.settings).stored.state == "returning"
    fleet.turn(1)
    assert fleet.targets(devices_) == dict.fromkeys(committed, V2)
    assert fleet.known(rollout).stored.state == "aborted"
    fleet.say(rollout, RollbackRequested("ann"))
    fleet.turn(1)
    assert fleet.targets([*committed, *others]) == {}
    assert fleet.known(rollout).stored.state == "aborted"
    facts = len(fleet.facts(rollout))
    fleet.turn(1)
    assert len(fleet.facts(rollout)) == facts
    assert fleet.replayed(rollout) == 1 + 10 + 6 + 4


def test_an_abort_before_anything_was_offered_is_over_at_once(fleet: RolledFleet) -> None:
    rollout = fleet.draft()
    fleet.say(rollout, Approved("ann", spec_digest(fleet.known(rollout).spec)))
    fleet.say(rollout, Aborted("ann"))
    fleet.turn()
    assert fleet.known(rollout).stored.state == "aborted"


def test_nobody_goes_back_below_the_floor(fleet: RolledFleet) -> None:
    devices_ = fleet.enrol(names(4))
    finished(fleet, "1", devices_)
    rollout = fleet.start(waves=ALL)
    fleet.turn(1)
    fleet.report(rollout, devices_, "committed")
    fleet.publish("3", floor="2")
    fleet.say(rollout, Aborted("ann"))
    fleet.say(rollout, RollbackRequested("ann"))
    fleet.turn(1)
    assert fleet.targets(devices_) == dict.fromkeys(devices_, V2)
    with pytest.raises(ConflictError, match="its owner allows 2 and newer versions"):
        fleet.draft(target="acme/meter-reader/1")


def test_a_release_that_falls_below_the_floor_meanwhile_pauses_its_rollout(fleet: RolledFleet) -> None:
    fleet.enrol(names(20))
    rollout = fleet.start()
    fleet.turn()
    fleet.publish("3", floor="3")
    fleet.turn(1)
    assert (fleet.status(rollout), fleet.deeds(rollout)[-1]) == (Status.PAUSED, "rollouts.pause")
    assert "its owner allows 3 and newer versions" in fleet.known(rollout).state.reason
    with pytest.raises(ConflictError, match="its owner allows 3"):
        fleet.say(rollout, Resumed("ann"))
    assert fleet.replayed(rollout)


def test_a_release_of_the_longest_name_pauses_its_rollout_in_words_that_can_be_read_again(fleet: RolledFleet) -> None:
    fleet.enrol(names(4))
    model, old, new = "m" * 128, f"1.{'0' * 126}", f"2.{'0' * 126}"
    fleet.repository.add_release(model, old)
    fleet.turn()
    rollout = fleet.start(target=f"acme/{model}/{old}")
    fleet.repository.add_release(model, new, floor=new)
    fleet.turn(1)
    assert fleet.status(rollout) is Status.PAUSED
    assert fleet.known(rollout).state.reason.startswith(
        f"the target models/acme/{model}/{old}/release: its owner allows"
    )


def test_a_revoked_device_leaves_and_a_new_one_joins(fleet: RolledFleet) -> None:
    devices_ = fleet.enrol(names(4), tags=["lobby"])
    fleet.enrol(["elsewhere"])
    rollout = fleet.start(query="tag = lobby", waves=ALL)
    fleet.turn()
    assert fleet.members(rollout, "offered") == devices_
    with fleet.database.write() as connection:
        devices.change_state(connection, devices_[0], "revoke", "stolen", fleet.now)
    fleet.enrol(["new"], tags=["lobby"])
    fleet.turn(1)
    assert fleet.members(rollout, "offered") == sorted([*devices_[1:], "new"])
    assert fleet.known(rollout).state.members[devices_[0]].reason == "it is revoked"
    fleet.report(rollout, fleet.members(rollout, "offered"), "committed")
    fleet.turn(1)
    assert fleet.status(rollout) is Status.FINISHED
    assert fleet.replayed(rollout)


def test_a_suspended_device_does_not_count_as_silent(fleet: RolledFleet) -> None:
    paused, *others = devices_ = fleet.enrol(names(4))
    rollout = fleet.start(waves=ALL, abort={"min_sample": 1, "max_failed_percent": 10})
    fleet.turn()
    _change(fleet, "suspend", [paused])
    fleet.turn(1)
    member = fleet.known(rollout).state.members[paused]
    assert (member.present, member.reason) == (False, "it is suspended")
    for _ in range(4):  # twice as long as silence_s
        fleet.attend(1800)
        fleet.report(rollout, others, "downloading")
    _change(fleet, "resume", [paused])
    fleet.attend(1800)
    assert fleet.members(rollout, "offered") == [paused], "its time began again"
    assert fleet.known(rollout).state.members[paused].reason == ""
    fleet.report(rollout, devices_, "committed")
    fleet.turn(1)
    assert fleet.status(rollout) is Status.FINISHED
    assert fleet.replayed(rollout)


def test_a_rollout_does_not_wait_for_a_suspended_device(fleet: RolledFleet) -> None:
    paused, *others = fleet.enrol(names(4))
    rollout = fleet.start(waves=ALL)
    fleet.turn()
    _change(fleet, "suspend", [paused])
    fleet.report(rollout, others, "committed")
    fleet.turn(1)
    assert fleet.status(rollout) is Status.FINISHED
    _change(fleet, "resume", [paused])
    fleet.turn(1)
    assert fleet.targets([paused]) == {paused: V2}, "its offer holds"


def test_an_offer_of_a_suspended_device_is_taken_back_with_the_others(fleet: RolledFleet) -> None:
    devices_ = fleet.enrol(names(3))
    before = fleet.start(target="acme/meter-reader/1", waves=ALL)
    fleet.turn()
    fleet.report(before, devices_, "committed")
    fleet.turn(1)
    rollout = fleet.start(waves=ALL)
    fleet.turn(1)
    _change(fleet, "suspend", devices_[:1])
    fleet.turn(1)
    assert open_offers(fleet.known(rollout).state) == {1: 3}
    fleet.say(rollout, Aborted("ann"))
    fleet.turn(1)
    assert set(fleet.targets(devices_).values()) == {V1}
    assert open_offers(fleet.known(rollout).state) == {}
    _change(fleet, "resume", devices_[:1])
    fleet.turn(1)
    assert set(fleet.targets(devices_).values()) == {V1}
    assert fleet.replayed(rollout)


def test_a_device_that_waits_is_not_offered_anything_while_it_is_suspended(fleet: RolledFleet) -> None:
    devices_ = fleet.enrol(names(3))
    _change(fleet, "suspend", devices_[:1])
    rollout = fleet.start(waves=ALL)
    fleet.turn()
    assert fleet.members(rollout, "offered") == devices_[1:]
    _change(fleet, "resume", devices_[:1])
    fleet.turn(1)
    assert fleet.members(rollout, "offered") == devices_


def _change(fleet: RolledFleet, operation: str, names_: Sequence[str]) -> None:
    with fleet.database.write() as connection:
        for name in names_:
            devices.change_state(connection, name, operation, "", fleet.now)


def test_a_device_that_changes_is_found_though_not_all_are_asked_for_in_a_turn(tmp_path) -> None:
    with rolling("sqlite", tmp_path, settings_with(SchedulerSettings(), devices_per_tick=3)) as fleet:
        devices_ = fleet.enrol(names(8), tags=["lobby"])
        rollout = fleet.start(query="tag = lobby", waves=[{"count": 1}, {"percent": 100, "needs_approval": True}])
        fleet.turn()
        known = fleet.known(rollout).state
        assert len(known.members) == 8
        gone = next(name for name in reversed(devices_) if known.members[name].waiting)
        with fleet.database.write() as connection:
            devices.label(connection, gone, [], "")
        for _ in range(4):
            fleet.turn(1)
        assert not fleet.known(rollout).state.members[gone].present


def test_a_slot_belongs_to_the_rollout_that_came_first_until_its_end(fleet: RolledFleet) -> None:
    fleet.publish("3")
    devices_ = fleet.enrol(names(10))
    one = fleet.start(waves=[{"count": 4}, {"percent": 100, "needs_approval": True}])
    fleet.now += timedelta(seconds=1)
    two = fleet.start(target="acme/meter-reader/3", waves=ALL)
    fleet.turn()
    first, second = fleet.members(one, "offered"), fleet.members(two, "offered")
    assert (len(first), len(second)) == (4, 6)
    assert set(first).isdisjoint(second)
    fleet.turn(1)
    assert [m for m in fleet.known(one).state.members.values() if m.waiting] == []
    fleet.report(one, first, "committed")
    fleet.report(two, second, "committed")
    fleet.turn(1)
    assert fleet.status(two) is Status.RUNNING
    fleet.say(one, Aborted("ann"))
    fleet.turn(1)
    assert fleet.members(two, "offered") == first
    fleet.say(one, RollbackRequested("ann"))
    fleet.turn(1)
    assert {wanted.rollout for wanted in fleet.desired(devices_).values()} == {two}
    fleet.report(two, first, "committed")
    fleet.turn(1)
    assert fleet.status(two) is Status.FINISHED
    for rollout in (one, two):
        fleet.replayed(rollout)


def test_two_rollouts_that_wait_for_the_same_devices_do_not_both_take_them(tmp_path) -> None:
    with rolling("sqlite", tmp_path, settings_with(SchedulerSettings(), devices_per_tick=1)) as fleet:
        fleet.publish("3")
        fleet.enrol(names(8))
        waves = [{"count": 1}, {"percent": 100}]
        one = fleet.start(waves=waves)
        fleet.now += timedelta(seconds=1)
        two = fleet.start(target="acme/meter-reader/3", waves=waves)
        fleet.turn()
        for rollout in (one, two):
            fleet.report(rollout, fleet.members(rollout, "offered"), "committed")
        fleet.turn(1)
        assert (len(fleet.members(one, "offered")), fleet.members(two, "offered")) == (6, [])
        assert len(fleet.known(two).state.members) == 7
        fleet.report(one, fleet.members(one, "offered"), "committed")
        fleet.turn(1)
        assert [fleet.status(rollout) for rollout in (one, two)] == [Status.FINISHED, Status.RUNNING]
        for _ in range(8):  # they come one by one
            fleet.turn(1)
        assert len(fleet.members(two, "offered")) == 7
        fleet.report(two, fleet.members(two, "offered"), "committed")
        fleet.turn(1)
        assert fleet.status(two) is Status.FINISHED
        for rollout in (one, two):
            fleet.replayed(rollout)


def test_what_another_took_back_is_not_offered_below_it(fleet: RolledFleet) -> None:
    """The first ends and the second begins in the same turn: the second remembers what was there before the first."""
    fleet.publish("3")
    devices_ = fleet.enrol(names(4))
    before = finished(fleet, "1", devices_)
    one = fleet.start(waves=ALL)
    fleet.turn(1)
    two = fleet.start(target="acme/meter-reader/3", waves=ALL)
    fleet.say(one, Aborted("ann"))
    fleet.turn(1)
    assert fleet.members(two, "offered") == devices_
    fleet.say(two, Aborted("ann"))
    fleet.turn(1)
    wanted = fleet.desired(devices_).values()
    assert {(one.target, one.rollout) for one in wanted} == {(V1, before)}


def test_a_release_is_not_offered_to_who_runs_it_in_another_slot(fleet: RolledFleet) -> None:
    devices_ = fleet.enrol(names(3))
    rollout = fleet.draft(waves=ALL)
    known = fleet.known(rollout)
    target = known.spec.target
    with fleet.database.write() as connection:
        there = Desired(devices_[0], "other", target.path, target.sha256, target.size_bytes, "", fleet.now)
        desired.put(connection, [there], fleet.database.settings)
    fleet.say(rollout, Approved("ann", spec_digest(known.spec)))
    fleet.say(rollout, Started("ann"))
    fleet.turn()
    assert fleet.members(rollout, "offered") == devices_[1:]


def test_who_says_that_it_is_done_and_runs_something_else_failed(fleet: RolledFleet) -> None:
    devices_ = fleet.enrol(names(5))
    rollout = fleet.start(waves=ALL)
    fleet.turn()
    fleet.report(rollout, devices_[:1], "committed", release="e" * 64)
    fleet.report(rollout, devices_[1:], "committed")
    fleet.turn(1)
    assert fleet.members(rollout, "failed") == devices_[:1]
    assert fleet.replayed(rollout)


def test_who_is_silent_counts_as_failed(fleet: RolledFleet) -> None:
    devices_ = fleet.enrol(names(5))
    rollout = fleet.start(waves=ALL)
    fleet.turn()
    fleet.report(rollout, devices_[:1], "downloading")
    fleet.attend(3600)
    state = fleet.known(rollout).state
    assert (state.status, state.halted) == (Status.PAUSED, True)
    assert fleet.replayed(rollout)


def test_windows_go_by_the_site(tmp_path) -> None:
    settings = SchedulerSettings(zones=("tokyo=Asia/Tokyo",))
    with rolling("sqlite", tmp_path, settings) as fleet:  # BEGIN is 12:00 UTC: 13:00 in Berlin, 21:00 in Tokyo
        for site, name in (("tokyo", "a"), ("Europe/Berlin", "b"), ("nowhere", "c"), ("", "d")):
            fleet.enrol([name], site=site)
        rollout = fleet.start(waves=ALL, silence_s=86_400, windows=[WINDOW])
        fleet.turn()
        assert fleet.members(rollout, "offered") == ["a"]
        fleet.turn(8 * 3600)
        assert fleet.members(rollout, "offered") == ["a", "b"]
        fleet.turn(3600)
        assert fleet.members(rollout, "offered") == ["a", "b", "d"]


def test_a_clock_that_is_set_back_neither_hurries_nor_stops_a_rollout(fleet: RolledFleet) -> None:
    devices_ = fleet.enrol(names(10))
    rollout = fleet.start(waves=[{"count": 5}, {"percent": 100}], soak_s=600, silence_s=7200)
    fleet.turn()
    first = fleet.members(rollout, "offered")
    fleet.now += timedelta(days=300)
    fleet.report(rollout, first, "committed")
    fleet.now = BEGIN + timedelta(seconds=30)
    fleet.turn()
    fleet.attend(599)
    assert fleet.known(rollout).state.wave == 1
    fleet.attend(30)
    assert fleet.known(rollout).state.wave == 2
    fleet.turn(-120)
    fleet.report(rollout, sorted(set(devices_) - set(first)), "committed")
    fleet.attend(601)
    assert fleet.status(rollout) is Status.FINISHED
    assert fleet.replayed(rollout)


def test_a_pause_between_two_turns_stops_offers(fleet: RolledFleet) -> None:
    fleet.enrol(names(10))
    rollout = fleet.start()
    fleet.say(rollout, Paused("ann", "wait"))
    fleet.turn()
    assert fleet.members(rollout, "offered") == []
    with pytest.raises(ConflictError, match="is paused"):
        fleet.say(rollout, Paused("ann"))
