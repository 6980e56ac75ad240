"""Decisions of a rollout, as stories: canaries, waves, soaking, approval, halts, retries, silence, windows, ends."""

from __future__ import annotations

from fleet.controller.rollouts.decide import decide
from fleet.controller.rollouts.decisions import Abort, Finish, MarkSilent, Offer, OpenWave, Pause, Retry, RollBack
from fleet.controller.rollouts.facts import (
    Aborted,
    Decided,
    Joined,
    Left,
    Paused,
    Resumed,
    RollbackRequested,
    WaveApproved,
)
from fleet.controller.rollouts.facts_form import event_document, read_event
from fleet.controller.rollouts.state import Status, device_counts
from tests.simulators.rollouts import OTHER, Record, offered, spec_of

KINDS = ("hailo-8", "coral-usb", "cpu")
ALL_AT_ONCE = [{"percent": 100}]


def fleet(number, zone=""):
    return [Joined(f"d-{n}", (KINDS[n % 3],), zone) for n in range(number)]


def started(devices=20, **changes):
    return Record(spec_of(**changes)).start(devices)


def finish(record, devices, state="committed"):
    for device in devices:
        record.report(device, state)


def waves_opened(decisions):
    return [decision.wave for decision in decisions if isinstance(decision, OpenWave)]


def test_nothing_happens_before_the_start_or_without_devices():
    record = Record(spec_of())
    assert record.tick() == ()
    assert record.start(0).tick() == ()
    record.join(1)
    assert waves_opened(record.tick()) == [1]


def test_a_good_release_goes_from_canaries_to_all_and_ends():
    record = Record(spec_of(canary={"per_accelerator": 1, "soak_s": 60}, soak_s=600)).start(fleet(60))
    canaries = record.tick()
    assert waves_opened(canaries) == [0]
    assert sorted(record.member(device).stratum for device in offered(canaries)) == sorted(KINDS)
    finish(record, offered(canaries))
    assert record.tick(59) == ()
    for wave, devices in ((1, 3), (2, 54)):
        decisions = record.tick(1)
        assert (waves_opened(decisions), len(offered(decisions))) == ([wave], devices)
        finish(record, offered(decisions))
        assert record.tick(599) == ()
    assert record.tick(1) == (Finish(),)
    assert record.state.status is Status.FINISHED


def test_a_wave_without_devices_of_its_own_is_through_at_once():
    record = Record(spec_of(canary={"per_accelerator": 1, "soak_s": 0}, soak_s=600)).start(fleet(30))
    finish(record, offered(record.tick()))
    decisions = record.tick()
    assert waves_opened(decisions) == [1, 2]
    assert len(offered(decisions)) == 27
    finish(record, offered(decisions))
    assert record.tick(599) == ()
    assert record.tick(1) == (Finish(),)
    assert record.tick(9999) == ()
    assert device_counts(record.state) == {0: {"committed": 3}, 2: {"committed": 27}}


def test_each_device_is_offered_it_once_and_the_share_holds():
    record = started(25, waves=[{"percent": 10}, {"count": 4}, {"percent": 50}, {"percent": 100}])
    seen = []
    for expected in (3, 4, 6, 12):
        devices = offered(record.tick())
        assert len(devices) == expected
        seen += devices
        finish(record, devices)
    assert len({*seen}) == len(seen) == 25
    assert record.tick() == (Finish(),)


def test_a_wave_waits_for_its_approval():
    record = started(waves=[{"percent": 10}, {"percent": 100, "needs_approval": True}])
    finish(record, offered(record.tick()))
    assert record.tick(99) == ()
    record.add(WaveApproved(2, "ann"))
    assert waves_opened(record.tick()) == [2]


def test_devices_that_join_fill_the_share_that_grows_with_them():
    record = started(10)
    assert len(offered(record.tick())) == 1
    record.join([Joined(f"new-{n}") for n in range(30)])
    assert len(offered(record.tick())) == 3
    record.join([Joined(f"newer-{n}") for n in range(9)])
    assert len(offered(record.tick())) == 1
    assert record.tick() == ()


def test_who_leaves_before_its_turn_is_not_waited_for():
    record = started(4, waves=ALL_AT_ONCE)
    record.add(Left("d-0"))
    devices = offered(record.tick())
    assert sorted(devices) == ["d-1", "d-2", "d-3"]
    record.add(Left("d-1"))
    finish(record, ["d-2", "d-3"])
    assert record.tick() == (Finish(),)


def test_too_many_failures_halt_and_call_back_who_is_under_way():
    record = started(20, waves=ALL_AT_ONCE)
    devices = offered(record.tick())
    finish(record, devices[:4], "rolled_back")
    assert record.tick() == (), "four verdicts are too few"
    finish(record, devices[4:5], "failed")
    finish(record, devices[5:9])
    pause, *withdrawn = record.tick()
    assert isinstance(pause, Pause)
    assert pause.halt
    assert pause.evidence["reason_1"] == "5 × golden set failed"
    assert {d.device for d in withdrawn if isinstance(d, RollBack)} == {*devices[9:]}
    assert record.state.status is Status.PAUSED
    assert record.tick(99_999) == ()
    counts = {-1: {"pending": 11}, 1: {"rolled_back": 4, "failed": 1, "committed": 4}}
    assert device_counts(record.state) == counts


def test_after_a_halt_was_looked_at_it_goes_on_and_the_old_failures_do_not_count():
    record = started(20, waves=ALL_AT_ONCE)
    devices = offered(record.tick())
    finish(record, devices[:5], "failed")
    record.tick()
    record.add(Resumed("ann"))
    again = record.tick()
    assert {*offered(again)} == {*devices[5:]}
    assert {d.attempt for d in again if isinstance(d, Offer)} == {2}
    finish(record, devices[5:8], "failed")
    finish(record, devices[8:9])
    assert record.tick() == ()
    finish(record, devices[9:10], "failed")
    assert isinstance(record.tick()[0], Pause)


def test_a_kind_of_hardware_that_fails_is_not_hidden_by_the_others():
    record = Record(spec_of(waves=ALL_AT_ONCE)).start(
        [Joined(f"d-{n}", ("hailo-8" if n < 6 else "cpu",)) for n in range(300)]
    )
    record.tick()
    finish(record, [f"d-{n}" for n in range(6, 300)])
    finish(record, [f"d-{n}" for n in range(6)], "failed")
    pause = record.tick()[0]
    assert isinstance(pause, Pause)
    assert pause.evidence["group"] == "accelerators hailo-8"


def test_what_devices_say_of_their_hardware_can_be_recorded_whatever_they_say():
    odd = tuple(f"{number:03}{'x' * 125}" for number in range(64))
    record = Record(spec_of(waves=ALL_AT_ONCE)).start(
        [Joined(f"d-{n}", odd if n < 6 else ("cpu",)) for n in range(300)]
    )
    record.tick()
    finish(record, [f"d-{n}" for n in range(6, 300)])
    finish(record, [f"d-{n}" for n in range(6)], "failed")
    pause = Decided(record.tick()[0])
    assert read_event(event_document(pause)) == pause
    assert "(accelerators 000xxx" in pause.decision.reason  # type: ignore[union-attr]


def test_every_kind_of_canary_has_to_pass():
    record = Record(
        spec_of(canary={"per_accelerator": 1, "soak_s": 0}, success={"min_sample": 1, "min_percent": 50})
    ).start(fleet(30))
    canaries = offered(record.tick())
    finish(record, canaries[:2])
    finish(record, canaries[2:], "failed")
    (pause,) = record.tick()
    assert isinstance(pause, Pause)
    assert not pause.halt
    assert pause.reason == "the canary is over, and 2 of its 3 devices committed: too few"
    record.add(Resumed("ann"))
    assert waves_opened(record.tick()) == [1, 2], "the canaries are the tenth of the first wave"


def test_the_canary_soaks_from_the_moment_the_last_kind_passed():
    record = Record(spec_of(canary={"per_accelerator": 1, "soak_s": 60})).start(fleet(60))
    one, *others = offered(record.tick())
    finish(record, [one])
    record.tick(59)
    finish(record, others)
    assert record.tick(59) == ()
    assert waves_opened(record.tick(1)) == [1]


def test_a_rollout_ends_only_when_everybody_is_done_though_the_last_wave_passed():
    record = started(10, waves=ALL_AT_ONCE, success={"min_sample": 1, "min_percent": 50}, retries={"limit": 1})
    devices = offered(record.tick())
    finish(record, devices[:8])
    assert record.tick() == ()
    finish(record, devices[8:9])
    finish(record, devices[9:], "failed")
    assert record.tick() == (), "it will try again"
    assert record.tick(3600) == (Retry(devices[9], 1, 2),)
    finish(record, devices[9:])
    assert record.tick() == (Finish(),)


def test_who_left_is_neither_waited_for_nor_tried_again_but_what_it_did_counts():
    record = started(10, waves=ALL_AT_ONCE, retries={"limit": 3, "backoff_s": 1})
    devices = offered(record.tick())
    finish(record, devices[:4], "failed")
    record.add(*(Left(device) for device in devices[:5]))
    assert record.tick(1800) == ()
    finish(record, devices[5:], "downloading")
    assert record.tick(1800) == (), "the fifth is not silent, it is gone"
    finish(record, devices[6:7], "failed")
    pause = record.tick()[0]
    assert isinstance(pause, Pause)
    assert pause.evidence["failed"] == pause.evidence["sample"] == 5


def test_a_halt_that_forces_the_roll_back_ends_the_rollout_and_fetches_all_back():
    record = started(20, waves=ALL_AT_ONCE, rollback="forced")
    devices = offered(record.tick())
    finish(record, devices[:3])
    finish(record, devices[3:8], "failed")
    abort, *back = record.tick()
    assert isinstance(abort, Abort)
    assert sorted(d.device for d in back if isinstance(d, RollBack)) == sorted(devices)
    assert record.tick(9e5) == ()


def test_an_abort_withdraws_offers_and_committed_devices_go_back_when_asked_for():
    record = started(20, waves=ALL_AT_ONCE)
    devices = offered(record.tick())
    finish(record, devices[:3])
    record.add(Aborted("ann", "wrong model"))
    assert {d.device for d in record.tick()} == {*devices[3:]}  # type: ignore[union-attr]
    assert record.tick() == ()
    record.add(RollbackRequested("ann"))
    assert {d.device for d in record.tick()} == {*devices[:3]}  # type: ignore[union-attr]
    record.add(Resumed("ann"))
    assert record.tick(9e5) == ()


def test_a_pause_stops_offers_at_once_and_lets_those_under_way_go_on():
    record = started(20)
    first = offered(record.tick())
    record.add(Paused("ann"))
    record.join([Joined("new")])
    finish(record, first[:1])
    assert record.tick(10) == ()
    assert record.tick(3600) == (MarkSilent(first[1], "nothing was heard of it for 3600 s"),)
    assert record.state.status is Status.PAUSED


def test_who_says_nothing_counts_as_failed():
    record = started(20, waves=ALL_AT_ONCE)
    devices = offered(record.tick())
    record.tick(1800)
    finish(record, devices[:15], "committed")
    finish(record, devices[15:16], "downloading")
    silent = record.tick(1800)
    assert {d.device for d in silent if isinstance(d, MarkSilent)} == {*devices[16:]}
    late, *_ = record.tick(1800)
    assert late == MarkSilent(devices[15], "nothing was heard of it for 3600 s")


def test_who_talks_for_ever_and_is_never_done_counts_as_failed():
    record = started(1, waves=ALL_AT_ONCE, deadline_s=7200, retries={"limit": 3})
    record.tick()
    for _ in range(4):
        record.report("d-0", "probation")
        decisions = record.tick(1800)
    assert decisions[0] == MarkSilent("d-0", "it was not done 7200 s after the offer")


def test_who_failed_is_tried_again_later_and_later_but_not_for_ever():
    record = started(1, waves=ALL_AT_ONCE, retries={"limit": 2, "backoff_s": 100, "backoff_limit_s": 150})
    record.tick()
    for attempt, pause in ((2, 100), (3, 150)):
        record.report("d-0", "failed")
        assert record.tick(pause - 1) == ()
        assert record.tick(1) == (Retry("d-0", 1, attempt),)
    record.report("d-0", "failed")
    assert isinstance(record.tick()[0], Pause)
    record.add(Resumed("ann"))
    assert record.tick(9999) == (Finish(),)


def test_who_is_trying_again_counts_as_failed_until_it_is_done():
    record = started(
        5, waves=ALL_AT_ONCE, retries={"limit": 1, "backoff_s": 1}, abort={"min_sample": 5, "max_failed_percent": 30}
    )
    devices = offered(record.tick())
    finish(record, devices[:4], "failed")
    assert len(record.tick(1)) == 4
    finish(record, devices[:1])
    finish(record, devices[4:], "failed")
    assert isinstance(record.tick()[0], Pause)


def test_who_lies_about_success_is_found_out():
    record = started(10, waves=ALL_AT_ONCE)
    for device in offered(record.tick()):
        record.report(device, "committed", OTHER)
    assert isinstance(record.tick()[0], Pause)


def test_nobody_is_touched_outside_its_own_windows_or_in_a_blackout():
    blackout = {"start": "2027-03-02T12:30:00Z", "end": "2027-03-02T13:00:00Z"}
    window = {"start": "12:00", "end": "14:00", "zone": "site"}
    record = Record(spec_of(waves=ALL_AT_ONCE, windows=[window], blackouts=[blackout])).start(
        [Joined("utc"), Joined("berlin", (), "Europe/Berlin"), Joined("tokyo", (), "Asia/Tokyo")]
    )
    assert sorted(offered(record.tick())) == ["berlin", "utc"]
    finish(record, ["berlin", "utc"])
    assert record.tick(14 * 3600) == ()
    assert offered(record.tick(3600)) == ["tokyo"]
    finish(record, ["tokyo"])
    record.join([Joined("late")])
    assert record.tick(9.6 * 3600) == ()
    assert offered(record.tick(0.4 * 3600)) == ["late"]


def test_who_is_not_in_its_window_keeps_its_place_in_the_wave():
    window = {"start": "12:00", "end": "13:00", "zone": "site"}
    devices = [Joined(f"d-{n}", (), "Asia/Tokyo" if n % 2 else "UTC") for n in range(40)]
    record = Record(spec_of(windows=[window])).start(devices)
    line = sorted(record.state.members.values(), key=lambda member: member.rank)[:4]
    assert offered(record.tick()) == [member.device for member in line if member.zone == "UTC"]


def test_an_answer_that_is_asked_for_in_parts_is_the_same_answer():
    record = started(30, waves=ALL_AT_ONCE, retries={"limit": 1, "backoff_s": 1})
    all_of_it = decide(record.spec, record.state, record.now)
    parts = []
    while part := decide(record.spec, record.state, record.now, 8):
        parts.append(part)
        record.add(*map(Decided, part))
    assert [len(part) for part in parts] == [8, 8, 8, 7]
    assert tuple(decision for part in parts for decision in part) == all_of_it


def test_between_two_parts_of_an_answer_an_operator_may_stop_it():
    record = started(30, waves=ALL_AT_ONCE)
    part = decide(record.spec, record.state, record.now, 8)
    record.add(*map(Decided, part), Paused("ann"))
    assert record.tick(1) == ()
    record.add(Aborted("ann"))
    assert {decision.device for decision in record.tick(1)} == {*offered(part)}  # type: ignore[union-attr]
