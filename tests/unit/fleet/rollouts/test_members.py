"""Members of a rollout: which devices join and which leave, by the query."""

from __future__ import annotations

from fleet.controller.rollouts.facts import Joined, Left, Resumed
from fleet.controller.rollouts.members import CLAIMED, NO_MATCH, membership
from fleet.controller.rollouts.query import QueriedDevice
from fleet.controller.rollouts.state import DeviceState, Status
from tests.simulators.rollouts import OTHER, Record, offered, spec_of

QUERY = "tag = pilot and version.meter-reader < 2"


def device(number=0, tag="pilot", version="1", accelerators=("hailo-8",), zone="Europe/Berlin"):
    return QueriedDevice(
        f"d-{number}", tags=frozenset({tag}), versions={"meter-reader": version}, accelerators=accelerators, zone=zone
    )


def begun(devices=1, **changes):
    return Record(spec_of(query=QUERY, **changes)).start(
        Joined(f"d-{n}", ("hailo-8",), "Europe/Berlin") for n in range(devices)
    )


def asked(record, *devices, claimed=frozenset()):
    return membership(record.spec, record.state, devices, claimed)


def test_who_matches_joins_with_what_waves_and_windows_go_by():
    found = asked(begun(0), device(0), device(1, tag="attic"), device(2, version="2"))
    assert found == (Joined("d-0", ("hailo-8",), "Europe/Berlin"),)


def test_who_is_there_joins_again_only_with_something_new():
    record = begun()
    assert asked(record, device()) == ()
    assert asked(record, device(zone="UTC")) == (Joined("d-0", ("hailo-8",), "UTC"),)
    assert asked(record, device(accelerators=())) == (Joined("d-0", (), "Europe/Berlin"),)


def test_who_ceases_to_match_before_its_turn_leaves_once_and_may_come_back():
    record = begun()
    assert asked(record, device(tag="attic")) == (Left("d-0", NO_MATCH),)
    record.add(Left("d-0", NO_MATCH))
    assert asked(record, device(tag="attic")) == ()
    assert asked(record, device()) == (Joined("d-0", ("hailo-8",), "Europe/Berlin"),)


def test_who_had_its_turn_stays_though_its_version_does_not_match_any_more():
    record = begun()
    record.tick()
    record.report("d-0", "committed")
    assert asked(record, device(version="2")) == ()


def test_a_device_of_another_rollout_neither_joins_nor_stays():
    record = begun()
    assert asked(record, device(0), device(1), claimed={"d-0", "d-1"}) == (Left("d-0", CLAIMED),)
    record.tick()
    assert asked(record, device(), claimed={"d-0"}) == (Left("d-0", CLAIMED),)
    record.add(Left("d-0", CLAIMED))
    assert asked(record, device()) == ()


def test_a_device_whose_offer_was_withdrawn_comes_back_once_another_rollout_is_done_with_it():
    record = begun(10, waves=[{"percent": 100}])
    record.tick()
    for number in range(6):
        record.report(f"d-{number}", "rolled_back")
    record.tick()
    assert record.state.status is Status.PAUSED
    assert (record.member("d-9").state, record.member("d-9").attempt) == (DeviceState.PENDING, 1)
    record.add(*asked(record, device(9), claimed={"d-9"}))
    assert asked(record, device(9, tag="attic")) == ()
    assert asked(record, device(9)) == (Joined("d-9", ("hailo-8",), "Europe/Berlin"),)
    record.add(*asked(record, device(9)), Resumed("ann"))
    assert "d-9" in offered(record.tick())
    assert record.member("d-9").attempt == 2


def test_a_rollout_that_is_not_dynamic_takes_nobody_once_a_wave_is_open():
    record = begun(dynamic=False)
    assert asked(record, device(0), device(1)) == (Joined("d-1", ("hailo-8",), "Europe/Berlin"),)
    record.tick()
    assert asked(record, device(0), device(1)) == ()


def test_after_the_end_nobody_joins_or_leaves():
    record = begun()
    record.tick()
    record.report("d-0", "committed")
    record.tick()
    assert asked(record, device(1), device(0, tag="attic")) == ()


def test_what_a_device_runs_elsewhere_is_nothing_to_the_rollout():
    record = begun()
    record.report("d-0", "committed", OTHER)
    assert record.state.ignored == {"a report without an offer": 1}
