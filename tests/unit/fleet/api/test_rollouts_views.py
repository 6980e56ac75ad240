"""Views of a rollout: the state of its waves, and when a waiting device may be offered something."""

from __future__ import annotations

from datetime import UTC, datetime

from fleet.controller.api.rollouts_views import opening, view
from fleet.controller.control.rollouts_record import RecordedRollout
from fleet.controller.database.rollouts import StoredRollout
from fleet.controller.rollouts.facts import Aborted, Joined, Left, Paused, WaveApproved
from fleet.controller.rollouts.spec_form import spec_digest
from tests.simulators.rollouts import MONDAY, Record, offered, spec_of

NIGHT = {"start": "22:00", "end": "23:00"}


def known(record: Record, state: str = "running") -> RecordedRollout:
    target = record.spec.target.path
    stored = StoredRollout("r-1", "n", "meter-reader", target, state, {}, MONDAY, "ann", record.state.seq)
    return RecordedRollout(stored, record.spec, record.state)


def test_waves_and_who_waits():
    record = Record(spec_of(waves=[{"percent": 20}, {"percent": 100, "needs_approval": True}])).start(10)
    before = view(known(record), MONDAY)
    assert (before.wave, before.waiting, [wave.opened for wave in before.waves]) == (None, 10, [False, False])
    first = offered(record.tick())
    record.report(first[0], "committed")
    shown = view(known(record), MONDAY)
    assert (shown.wave, shown.waiting, shown.facts) == (1, 8, len(record.facts))
    assert [(w.wave, w.opened, w.approved, w.devices, w.states) for w in shown.waves] == [
        (1, True, True, 2, {"committed": 1, "offered": 1}),
        (2, False, False, 0, {}),
    ]
    assert shown.spec_digest == spec_digest(record.spec)
    record.add(WaveApproved(2, "ann"))
    assert view(known(record), MONDAY).waves[1].approved


def test_a_paused_rollout_says_how_many_devices_may_still_install():
    record = Record(spec_of(waves=[{"percent": 50}, {"percent": 100}])).start(8)
    first, second, third, fourth = offered(record.tick())
    record.report(first, "committed")
    record.report(second, "downloading")
    record.add(Left(third, "it is suspended", suspended=True), Left(fourth, "it is revoked"), Paused("ann"))
    shown = view(known(record, "paused"), MONDAY)
    assert (shown.may_install, [wave.may_install for wave in shown.waves]) == (2, [2, 0])
    assert shown.waves[0].states == {"committed": 1, "downloading": 1}
    record.report(second, "rolled_back")
    assert view(known(record, "paused"), MONDAY).may_install == 1


def test_what_waits_for_its_devices_is_aborted_for_people():
    record = Record(spec_of()).start(3)
    record.tick()
    record.add(Aborted("ann", "enough"))
    shown = view(known(record, "returning"), MONDAY)
    assert (shown.state, shown.reason, shown.next_opening) == ("aborted", "enough", None)


def test_a_halt_shows_its_reason_and_evidence():
    record = Record(spec_of(waves=[{"percent": 100}])).start(10)
    for device in offered(record.tick())[:6]:
        record.report(device, "failed")
    record.tick()
    shown = view(known(record, "paused"), MONDAY)
    assert shown.halted
    assert shown.reason.startswith("6 of 6 devices failed (all devices)")
    assert (shown.evidence["failed"], shown.waves[0].states) == (6, {"failed": 6})


def test_the_next_opening_is_the_first_of_those_that_wait():
    by_site = spec_of(windows=[NIGHT | {"zone": "site"}])
    record = Record(by_site).start(
        [Joined("a", (), "Europe/Berlin"), Joined("b", (), "Asia/Tokyo"), Joined("c", (), "?")]
    )
    assert opening(by_site, record.state, MONDAY) == MONDAY.replace(hour=13)  # 22:00 in Tokyo
    assert opening(by_site, record.state, MONDAY.replace(hour=13, minute=5)) == MONDAY.replace(hour=13, minute=5)
    assert view(known(record), MONDAY).next_opening == "2027-03-01T13:00:00Z"


def test_where_nobody_waits_nothing_opens():
    assert opening(spec_of(), Record(spec_of()).state, MONDAY) is None
    closed = spec_of(windows=[NIGHT], blackouts=[{"start": "2027-01-01T00:00:00Z", "end": "2027-03-05T00:00:00Z"}])
    assert opening(closed, Record(closed).start(1).state, MONDAY) == datetime(2027, 3, 5, 22, tzinfo=UTC)
