"""Standing rollouts, as stories: rounds for devices that join later, halts, pauses, ends."""

from __future__ import annotations

import pytest

from fleet.controller.rollouts.decisions import Abort, Finish, OpenWave, Pause, RollBack
from fleet.controller.rollouts.facts import Aborted, Joined, Left, Paused, Resumed, RollbackRequested, Superseded
from fleet.controller.rollouts.members import CLAIMED, NO_MATCH, PASSED_OVER, Newcomers, membership
from fleet.controller.rollouts.query import QueriedDevice
from fleet.controller.rollouts.replay import replay
from fleet.controller.rollouts.spec_form import read_spec, spec_digest, spec_document
from fleet.controller.rollouts.state import EARLIER, Status, device_counts
from gateway.common.domain.errors import ConfigurationError
from tests.simulators.rollouts import Record, document, offered, spec_of

ALL = [{"percent": 100}]


def standing(devices=10, **changes):
    """Return the record of a standing rollout whose first round is over."""
    record = Record(spec_of(standing=True, **changes)).start(devices)
    while record.state.status is Status.RUNNING:
        commit(record, offered(record.tick(3600)))
    return record


def commit(record, devices, state="committed"):
    for device in devices:
        record.report(device, state)


def new(*numbers):
    return [Joined(f"new-{number}") for number in numbers]


def test_only_a_standing_specification_says_so_and_earlier_approvals_stay_valid():
    assert "standing" not in spec_document(spec_of())
    assert spec_digest(spec_of()) == spec_digest(spec_of(standing=False))
    document_ = spec_document(spec_of(standing=True))
    assert (document_["standing"], read_spec(document_).standing) == (True, True)
    with pytest.raises(ConfigurationError, match="leave out dynamic"):
        read_spec(document(standing=True, dynamic=False))


def test_newcomers_go_through_the_same_waves_and_soak_in_a_round_of_their_own():
    record = standing(soak_s=600, canary={"per_accelerator": 1, "soak_s": 60})
    assert (record.state.status, record.state.round) == (Status.STANDING, 1)
    assert record.tick(9999) == ()
    record.join(new(*range(20)))
    canaries = record.tick()
    assert (canaries[0], len(offered(canaries)), record.state.status) == (OpenWave(0), 1, Status.RUNNING)
    commit(record, offered(canaries))
    assert record.tick(59) == ()
    wave = record.tick(1)
    assert (wave[0], len(offered(wave))) == (OpenWave(1), 1)  # 10 % of 20 are the canary and one more
    commit(record, offered(wave))
    assert record.tick(599) == ()
    commit(record, offered(record.tick(1)))
    assert record.tick(600) == (Finish(),)
    assert device_counts(record.state) == {EARLIER: {"committed": 30}}
    assert replay(record.spec, record.facts).difference is None


def test_who_joins_while_a_round_runs_waits_for_the_next():
    record = standing(waves=ALL, soak_s=600)
    record.join(new(1))
    assert offered(record.tick()) == ["new-1"]
    record.join(new(2, 3))
    record.join([Joined("new-2", ("hailo-8",))])
    assert record.tick() == ()
    commit(record, ["new-1"])
    decisions = record.tick() + record.tick(600)
    assert decisions[:2] == (Finish(), OpenWave(1))
    assert sorted(offered(decisions)) == ["new-2", "new-3"]
    assert record.state.round == 2


def test_a_round_that_fails_halts_and_takes_nothing_back_from_earlier_ones():
    record = standing(20, waves=ALL)
    record.join(new(*range(12)))
    joined = offered(record.tick())
    commit(record, joined[:6], "failed")
    commit(record, joined[6:7])
    decisions = record.tick()
    assert isinstance(decisions[0], Pause)
    assert decisions[0].evidence["sample"] == 7
    assert {one.device for one in decisions[1:] if isinstance(one, RollBack)} == {*joined[7:]}
    record.add(Aborted("ann"))
    assert {one.device for one in record.tick()} == {*joined} - {joined[6]}
    record.add(RollbackRequested("ann"))
    assert record.tick() == (RollBack(joined[6]),)
    assert record.state.status is Status.ABORTED


def test_forced_roll_back_of_a_round_takes_nothing_back_from_earlier_ones():
    record = standing(20, waves=ALL, rollback="forced")
    record.join(new(*range(6)))
    commit(record, offered(record.tick()), "failed")
    decisions = record.tick()
    assert isinstance(decisions[0], Abort)
    assert sorted(one.device for one in decisions[1:]) == sorted(f"new-{n}" for n in range(6))


def test_a_device_that_failed_is_not_offered_it_for_ever():
    record = standing(waves=ALL, retries={"limit": 2, "backoff_s": 60})
    record.join(new(1))
    offers = []
    for _ in range(20):
        for device in offered(record.tick(600)):
            offers.append(device)
            record.report(device, "rolled_back")
    assert (offers, record.state.status) == (["new-1"] * 3, Status.PAUSED)
    record.add(Resumed("ann"))
    assert record.tick(600) == (Finish(),)
    assert record.tick(10**6) == ()


def test_a_pause_between_rounds_lets_nobody_in_until_it_is_resumed():
    record = standing(waves=ALL)
    record.add(Paused("ann"))
    record.join(new(1))
    assert record.tick() == ()
    record.add(Resumed("ann"))
    assert offered(record.tick()) == ["new-1"]


def test_a_round_whose_devices_all_leave_is_over():
    record = standing(waves=[{"percent": 10}, {"percent": 100}], windows=[{"start": "11:00", "end": "13:00"}])
    record.join(new(1))
    record.now = record.now.replace(hour=14)
    assert record.tick() == (OpenWave(1),)
    record.add(Left("new-1", "its tag changed"))
    assert record.tick() == (OpenWave(2), Finish())
    assert record.state.status is Status.STANDING


def test_the_late_report_of_an_earlier_round_disturbs_no_later_one():
    record = standing(20, waves=ALL)
    record.join(new(1))
    record.tick()
    commit(record, [f"d-{number}" for number in range(10)], "rolled_back")
    commit(record, ["new-1"])
    assert record.tick() == (Finish(),)
    assert device_counts(record.state) == {EARLIER: {"committed": 11, "rolled_back": 10}}


@pytest.mark.parametrize("event", [Aborted("ann", "enough"), Superseded("r-2")])
def test_it_ends_between_rounds_and_devices_keep_what_they_have(event):
    record = standing(waves=ALL, rollback="forced")
    record.add(event)
    assert (record.state.status, record.state.reason) == (Status.FINISHED, event.reason)
    record.join(new(1))
    assert record.tick() == ()


# ---- membership


def device(name, **versions):
    return QueriedDevice(name, versions=versions)


def test_served_devices_stay_and_those_passed_over_do_not_join():
    record = standing(2, waves=ALL, query="tag = pilot")
    pilot = [QueriedDevice(f"n-{number}", tags=frozenset({"pilot"})) for number in range(4)]
    served = [device("d-0"), device("d-1")]
    newcomers = Newcomers(passed_over=frozenset({"n-0", "n-1", "d-0"}))
    found = membership(record.spec, record.state, [*served, *pilot], frozenset({"d-1", "n-3"}), newcomers)
    assert found == (Joined("n-2"),)
    record.add(*(Joined(f"n-{number}") for number in range(4)))
    assert membership(record.spec, record.state, [*pilot[:2], device("n-2")], frozenset({"n-1"}), newcomers) == (
        Left("n-0", PASSED_OVER),
        Left("n-1", CLAIMED),
        Left("n-2", NO_MATCH),
    )
    record.tick()
    assert membership(record.spec, record.state, pilot, frozenset(), newcomers) == ()


def test_a_new_device_under_the_name_of_a_removed_one_is_served_again():
    record = standing(2, waves=ALL)
    record.add(Left("d-0", "it is revoked"))
    assert membership(record.spec, record.state, [device("d-0")]) == ()
    found = membership(record.spec, record.state, [device("d-0")], newcomers=Newcomers(new=frozenset({"d-0"})))
    assert found == (Joined("d-0"),)
    record.add(*found)
    assert offered(record.tick()) == ["d-0"]
    assert record.member("d-0").attempt == 2
