"""The leader's evaluation of the alerts, on SQLite and PostgreSQL alike.

It tests what opens an alert, what closes it, and that a restart neither forgets nor repeats.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from fleet.controller.control.evaluation import ACTOR
from fleet.controller.database import alerts, certificates, devices, releases, tail, telemetry
from fleet.controller.database.alerts import Alert, AlertState
from fleet.controller.database.certificates import Certificate
from fleet.controller.database.devices import Running
from fleet.controller.database.engine import Database
from fleet.controller.database.errors import FencedError
from fleet.controller.database.ingestion import Batch, Row
from fleet.controller.database.releases import StoredRelease
from fleet.controller.database.settings import TelemetryStorageSettings
from fleet.controller.monitoring.readings import repository
from tests.simulators.databases import NOW, content, database, enrolled, made
from tests.simulators.watched_fleet import WatchedFleet

__all__ = ["database"]
HOUR = 3_600.0


def hot(celsius: float) -> dict[str, Any]:
    return {"temperatures_c": {"cpu": celsius}}


def counters(requests: int, failed: int) -> dict[str, Any]:
    return {"model": "m", "version": "1", "requests": requests, "failed_runs": failed}


def update(state: str) -> dict[str, Any]:
    return {"slot": "m", "state": state, "version": "2", "failure": {"reason": "latency"}}


# ---- what is kept
def alert(number: int, state: AlertState = AlertState.OPEN, **changes: Any) -> Alert:
    at = NOW + timedelta(seconds=number)
    opened, closed = None if state is AlertState.PENDING else at, at if state is AlertState.CLOSED else None
    return replace(Alert(f"{number:04}", "silent", f"d{number}", "", state, at, at, opened, closed), **changes)


def test_alerts_are_kept_as_they_are(database: Database) -> None:
    told = [alert(1, AlertState.PENDING), alert(2, evidence={"a": [1]}, summary="härter"), alert(3, AlertState.CLOSED)]
    with database.write() as connection:
        alerts.put(connection, told, tell=True)
    with database.read() as connection:
        assert list(alerts.page(connection, database.settings)) == told[::-1]
        assert list(alerts.standing(connection)) == told[:2]
        assert alerts.counts(connection) == {"silent": 1}
        assert list(alerts.page(connection, database.settings, before="0003", limit_rows=1)) == [told[1]]
        assert list(alerts.page(connection, database.settings, rule="silent", device="d2")) == [told[1]]
        assert alerts.page(connection, database.settings, scope=frozenset({"lobby"})) == ()
        assert [(u.alert.key, u.change) for u in alerts.untold(connection, 10)] == [("0002", 1), ("0003", 2)]


def test_what_was_told_is_told_once_for_each_change(database: Database) -> None:
    with database.write() as connection:
        alerts.put(connection, [alert(1)], tell=True)
        alerts.mark_notified(connection, "0001", 1)
        assert alerts.untold(connection, 10) == ()
        alerts.put(connection, [alert(1, heard=NOW + timedelta(hours=1))], tell=True)
        assert alerts.waiting(connection) == 0
        alerts.put(connection, [alert(1, AlertState.CLOSED)], tell=True)
        assert [untold.change for untold in alerts.untold(connection, 10)] == [2]
        alerts.mark_notified(connection, "0001", 1)  # an older answer comes late
        assert alerts.waiting(connection) == 1
        alerts.mark_notified(connection, "0001", 2)
        assert alerts.waiting(connection) == 0


def test_where_nobody_is_to_hear_of_it_nothing_waits(database: Database) -> None:
    with database.write() as connection:
        alerts.put(connection, [alert(1), alert(2, AlertState.CLOSED)], tell=False)
        assert alerts.waiting(connection) == 0


def test_only_pending_ones_are_dropped_and_only_closed_ones_forgotten(database: Database) -> None:
    kept = [alert(1, AlertState.PENDING), alert(2), *(alert(number, AlertState.CLOSED) for number in range(3, 9))]
    with database.write() as connection:
        alerts.put(connection, kept, tell=False)
        alerts.drop(connection, ["0001", "0002", "0003"])
        assert alerts.forget(connection, NOW + timedelta(seconds=4), 100) == 1
        assert alerts.forget(connection, NOW, 2) == 3
        left = [found.key for found in alerts.page(connection, database.settings)]
    assert left == ["0008", "0007", "0002"]


def test_what_is_committed_late_is_read_late_and_not_missed(tmp_path: Path) -> None:
    """SQLite has one writer: its evaluation waits for it, see the next test."""
    with made("postgresql", tmp_path) as database:
        enrolled(database, "a", "b")
        fleet = WatchedFleet(database)
        fleet.look()
        fleet.now_s += 1
        with database.write() as slow:
            received = tail.storing(slow, lambda: fleet.now)
            rows = [Row(1, fleet.now, "update", update("rolled_back"))]
            telemetry.receive(slow, "a", Batch("updates", 1, rows), received, TelemetryStorageSettings())
            fleet.look(after_s=100)
            fleet.says("b", "updates", update("rolled_back"))
            fleet.look(after_s=100)
            assert fleet.open == []
        fleet.look(after_s=100)
        assert fleet.open == [("rollback", "a", "m"), ("rollback", "b", "m")]


def test_on_sqlite_a_commit_that_takes_long_hides_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk may need longer for a commit than `settle_s`. The evaluation waits for it, and reads then."""
    asks, write = threading.Event(), Database.write
    with made("sqlite", tmp_path) as database, ThreadPoolExecutor() as pool:
        enrolled(database, "a")
        fleet = WatchedFleet(database)
        fleet.look()
        fence = fleet._leader.stand(fleet.now)
        assert fence
        with database.write() as slow:
            received = tail.storing(slow, lambda: fleet.now + timedelta(seconds=1))
            rows = [Row(1, fleet.now, "update", update("rolled_back"))]
            telemetry.receive(slow, "a", Batch("updates", 1, rows), received, TelemetryStorageSettings())
            monkeypatch.setattr(Database, "write", lambda self: (asks.set(), write(self))[1])
            evaluated = pool.submit(fleet.watch.evaluate, fence, fleet.now + timedelta(seconds=100))
            asks.wait()
        evaluated.result()
        assert fleet.open == [("rollback", "a", "m")]


def test_a_reader_of_telemetry_sees_every_row_once(database: Database) -> None:
    enrolled(database, "a", "b")
    at = [NOW + timedelta(seconds=second) for second in (0, 1, 1, 2, 3)]
    with database.write() as connection:
        for number, moment in enumerate(at):
            rows = [Row(3 * number + i, moment, "k", {"n": 3 * number + i}) for i in (1, 2, 3)]
            telemetry.receive(connection, "ab"[number % 2], Batch("s", 1, rows), moment, TelemetryStorageSettings())
    found, reached, more = [], NOW - timedelta(seconds=1), True
    with database.read() as connection:
        while more:
            page = tail.tail(connection, reached, NOW + timedelta(seconds=2), 4)
            found += [heard.row.document["n"] for heard in page.rows]
            reached, more = page.reached, page.more
            assert len(page.rows) in {3, 6, 0}
        assert sorted(found) == list(range(1, 13))
        assert reached == NOW + timedelta(seconds=2)
        assert tail.tail(connection, reached, reached, 4).rows == ()
        assert tail.tail(connection, NOW, reached, 4, ["other"]).rows == ()
        assert tail.position(connection, "x") is None
    with database.write() as connection:
        tail.keep_position(connection, "x", NOW)
        tail.keep_position(connection, "x", reached)
        assert tail.position(connection, "x") == reached


# ---- what opens and closes
def test_a_device_that_falls_silent(database: Database) -> None:
    enrolled(database, "a", "b")
    fleet = WatchedFleet(database)
    fleet.look()
    fleet.look(after_s=HOUR)
    fleet.seen("b")
    fleet.look(after_s=120)
    assert fleet.open == [("silent", "a", "")]
    (opened,) = fleet.alerts()
    fleet.restart()
    fleet.look(after_s=600)
    assert fleet.alerts() == [opened]
    fleet.seen("a")
    fleet.look(after_s=60)
    (closed,) = fleet.alerts(AlertState.CLOSED)
    assert (fleet.open, closed.key) == ([], opened.key)


def test_nobody_is_silent_because_the_controller_was_away(database: Database) -> None:
    enrolled(database, "a", "gone")
    fleet = WatchedFleet(database)
    fleet.look()
    fleet.look(after_s=HOUR + 120)
    fleet.seen("a")
    fleet.look(after_s=60)
    assert fleet.open == [("silent", "gone", "")]
    fleet.now_s += 10 * HOUR
    fleet.restart()
    fleet.look()
    fleet.look(after_s=HOUR - 120)
    assert fleet.open == [("silent", "gone", "")]
    fleet.look(after_s=240)
    assert fleet.open == [("silent", "a", ""), ("silent", "gone", "")]


def test_a_clock_that_jumps_makes_nobody_silent(database: Database) -> None:
    enrolled(database, "a")
    fleet = WatchedFleet(database)
    fleet.look()
    fleet.look(after_s=HOUR / 2)
    fleet.now_s += 365 * 24 * HOUR
    fleet.look(after_s=60)
    assert fleet.open == []
    fleet.says("a", "vitals", hot(99))
    fleet.look(after_s=60)
    fleet.now_s = HOUR
    fleet.look(after_s=60)
    fleet.says("a", "updates", update("rolled_back"))
    fleet.look(after_s=60)
    assert ("rollback", "a", "m") in fleet.open


def test_a_device_that_leaves_closes_what_it_opened(database: Database) -> None:
    enrolled(database, "a")
    fleet = WatchedFleet(database)
    fleet.look()
    fleet.look(after_s=HOUR + 120)
    with database.write() as connection:
        devices.change_state(connection, "a", "revoke", "sold", fleet.now)
    fleet.look(after_s=60)
    (closed,) = fleet.alerts(AlertState.CLOSED)
    assert closed.evidence["closed_because"] == "the device is not enrolled any more"


def test_a_suspended_device_opens_no_alert_for_its_identity(database: Database) -> None:
    enrolled(database, "a")
    fleet = WatchedFleet(database)
    with database.write() as connection:
        devices.report_machine(connection, "a", {"boot": 1}, fleet.now)
    fleet.look()
    assert fleet.open == [("identity", "a", "")]
    with database.write() as connection:
        devices.change_state(connection, "a", "suspend", "a copy", fleet.now)
    for _ in range(3):
        fleet.look(after_s=60)
        assert (fleet.open, len(fleet.alerts(AlertState.CLOSED))) == ([], 1)


def test_heat_has_to_last_also_across_a_restart(database: Database) -> None:
    enrolled(database, "a")
    fleet = WatchedFleet(database)
    fleet.look()
    for celsius in (90.0, 91.0):
        fleet.says("a", "vitals", hot(celsius))
        fleet.look(after_s=60)
        assert fleet.open == []
        fleet.restart()
    fleet.says("a", "vitals", hot(92.0))
    fleet.look(after_s=60)
    assert fleet.open == [("temperature", "a", "")]
    assert fleet.alerts()[0].evidence == {"zone": "cpu", "celsius": 92.0}
    fleet.says("a", "vitals", hot(81.0))
    fleet.look(after_s=60)
    assert fleet.open != []
    fleet.says("a", "vitals", hot(79.0))
    fleet.look(after_s=60)
    assert fleet.open == []


def test_a_slot_whose_runs_fail(database: Database) -> None:
    enrolled(database, "a")
    fleet = WatchedFleet(database)
    fleet.look()
    for requests, failed in ((100, 0), (105, 2), (110, 4)):
        fleet.says("a", "statistics", counters(requests, failed))
        fleet.look(after_s=60)
    assert fleet.open == [("errors", "a", "m")]
    fleet.says("a", "statistics", counters(200, 4))
    fleet.look(after_s=60)
    assert fleet.open == []


def test_a_roll_back_is_told_until_a_release_is_committed(database: Database) -> None:
    enrolled(database, "a")
    fleet = WatchedFleet(database)
    fleet.look()
    fleet.says("a", "updates", update("rolled_back"))
    fleet.look(after_s=60)
    fleet.restart()
    fleet.look(after_s=600)
    (opened,) = fleet.alerts()
    assert (opened.rule, opened.summary) == ("rollback", "a gave up m 2: latency")
    fleet.says("a", "updates", update("committed"))
    fleet.look(after_s=60)
    assert (fleet.open, len(fleet.alerts(None))) == ([], 1)


def test_a_removal_that_waits_on_its_device(database: Database) -> None:
    """The agent reports it, also where this controller did not order it."""
    enrolled(database, "a")
    fleet = WatchedFleet(database)
    fleet.look()
    slot = {"slot": "m", "state": "pending", "committed": {"target": "models/acme/m/1/release"}}
    held = {"change": "withdraw", "until": "2026-03-02T12:00:00+00:00", "why": "the built-in policy says so"}
    fleet.says("a", "state", {**slot, "held": held})
    fleet.says("a", "state", {**slot, "slot": "n", "held": {**held, "change": "install"}})
    fleet.look(after_s=60)
    assert fleet.open == [("removal", "a", "m")]
    (opened,) = fleet.alerts()
    ordered = "a is ordered to remove models/acme/m/1/release from the slot m"
    assert opened.summary == f"{ordered}: the built-in policy says so"
    fleet.says("a", "state", {"slot": "m", "state": "gone"})
    fleet.look(after_s=60)
    assert fleet.open == []


@pytest.mark.parametrize("ahead_s", [24 * HOUR, 365 * 24 * HOUR])
def test_what_came_while_the_clock_was_ahead_is_judged_once(database: Database, ahead_s: float) -> None:
    """It is set back before all rows were read; later the clock shows their times a second time."""
    enrolled(database, "d")
    fleet = WatchedFleet(database, silent_s=0)
    fleet.look()
    fleet.now_s += ahead_s
    fleet.says("d", "updates", update("rolled_back"))
    fleet.look()
    fleet.says("d", "vitals", hot(99.0))
    fleet.now_s -= ahead_s
    fleet.look()
    fleet.says("d", "updates", update("committed"))
    fleet.says("d", "vitals", hot(40.0))
    fleet.look(after_s=2 * HOUR)
    assert fleet.open == []
    seen = fleet.alerts(None)
    fleet.now_s += ahead_s - HOUR
    for _ in range(2):
        fleet.says("d", "vitals", hot(40.0))
        fleet.look(after_s=HOUR)
    assert all(alert in seen for alert in fleet.alerts(None))


@pytest.mark.parametrize("back_s", [24 * HOUR, 365 * 24 * HOUR])
def test_a_clock_that_was_behind_makes_nothing_be_judged_again(database: Database, back_s: float) -> None:
    enrolled(database, "d")
    fleet = WatchedFleet(database, silent_s=0, rows_limit=1)
    fleet.look()
    for state in ("rolled_back", "rolled_back", "committed"):
        fleet.says("d", "updates", update(state))
    fleet.look(after_s=60)
    seen = fleet.alerts(None)
    assert [alert.state for alert in seen] == [AlertState.CLOSED]
    fleet.now_s -= back_s
    for _ in range(3):
        fleet.says("d", "vitals", hot(99.0))  # the first one before the next evaluation
        fleet.look(after_s=59)
    assert ("temperature", "d", "") in fleet.open, "what comes while the clock is behind is judged"
    fleet.now_s += back_s
    fleet.look(after_s=60)
    assert [alert for alert in fleet.alerts(None) if alert.rule == "rollback"] == seen


def test_a_clock_ahead_and_a_signed_role_that_ends(database: Database) -> None:
    enrolled(database, "a")
    fleet = WatchedFleet(database)
    ends = [NOW + timedelta(days=10)]
    fleet.restart(sources=[lambda now: [repository("targets", ends[0], now, 14.0, "renew it")]])
    fleet.look()
    fleet.says("a", "vitals", {}, ahead_s=900)
    fleet.look(after_s=60)
    assert fleet.open == [("clock", "a", ""), ("repository", "", "targets")]
    fleet.says("a", "vitals", {}, ahead_s=0)
    ends[0] += timedelta(days=180)
    fleet.look(after_s=2 * HOUR)
    assert ("repository", "", "targets") not in fleet.open
    assert ("clock", "a", "") not in fleet.open


def certified(fleet: WatchedFleet, serial: str, days: float) -> None:
    expires = fleet.now + timedelta(days=days)
    with fleet.database.write() as connection:
        certificates.add(connection, Certificate(serial, "a", fleet.now, expires))


def test_a_certificate_that_was_not_renewed(database: Database) -> None:
    enrolled(database, "a")
    fleet = WatchedFleet(database, silent_s=0)
    certified(fleet, "01", 14.5)
    fleet.look()
    assert fleet.open == []
    fleet.now_s += 24 * HOUR
    fleet.look()
    assert fleet.open == [("certificate", "a", "")]
    certified(fleet, "02", 90)
    fleet.look(after_s=2 * HOUR)
    assert fleet.open == []


def test_a_release_that_runs_and_is_barred(database: Database) -> None:
    path = "models/acme/meter/1/release"
    first = StoredRelease(path, "acme", "meter", "1", "1", "a" * 64, 9, NOW, {})
    second = replace(first, target="models/acme/meter/2/release", version="2", floor="2", digest="b" * 64)
    enrolled(database, "a", "b")
    fleet = WatchedFleet(database, silent_s=0)

    def runs(device: str, release: StoredRelease) -> None:
        running = Running("meter", release.target, release.digest, "only", "cpu", "committed", NOW)
        with database.write() as connection:
            devices.report_slots(connection, device, [running], [])

    with database.write() as connection:
        releases.synchronise(connection, [first], NOW, database.settings)
    runs("a", first)
    runs("b", first)
    fleet.look()
    assert fleet.open == []
    with database.write() as connection:
        releases.synchronise(connection, [first, second], NOW, database.settings)
    fleet.look(after_s=2 * HOUR)
    assert fleet.open == [("barred", "", path)]
    for device in ("a", "b"):
        runs(device, second)
    fleet.look(after_s=2 * HOUR)
    assert fleet.open == []


PAUSE = {"kind": "decided", "decision": "pause", "reason": "3 of 9 failed", "halt": True, "evidence": {}}
ABORT = {"kind": "decided", "decision": "abort", "reason": "3 of 9 failed", "evidence": {}}
OFFER = {"kind": "decided", "decision": "offer", "device": "a"}
WITHDRAWN = {"kind": "paused", "by": ACTOR, "reason": "t is not published any more"}
BY_HAND = {"kind": "paused", "by": "bob", "reason": 'odd "decision":"pause" words'}


def test_a_rollout_that_stops_by_itself(database: Database) -> None:
    fleet = WatchedFleet(database, lasts_s=2 * HOUR)
    fleet.rollout("one", "paused", OFFER, PAUSE, OFFER)
    fleet.rollout("two", "paused", OFFER, BY_HAND)
    fleet.rollout("three", "aborted", ABORT, OFFER)
    fleet.rollout("four", "running", OFFER)
    fleet.rollout("five", "returning", ABORT, OFFER)
    fleet.look()
    assert fleet.open == [("halted", "", "five"), ("halted", "", "one"), ("halted", "", "three")]
    fleet.rollout("five", "aborted")
    assert {alert.summary.partition(" stopped: ")[2] for alert in fleet.alerts()} == {"3 of 9 failed"}
    fleet.rollout("one", "running", {"kind": "resumed", "by": "bob"})
    fleet.look(after_s=60)
    assert fleet.open == [("halted", "", "five"), ("halted", "", "three")]
    fleet.rollout("one", "paused", BY_HAND)
    fleet.rollout("two", "paused", PAUSE)
    fleet.rollout("four", "paused", WITHDRAWN)
    fleet.look(after_s=60)
    assert fleet.open == [("halted", "", name) for name in ("five", "four", "three", "two")]
    fleet.rollout("four", "running", {"kind": "resumed", "by": "bob"})
    fleet.look(after_s=3 * HOUR)
    assert fleet.open == [("halted", "", "two")]
    fleet.restart()
    fleet.look(after_s=120)
    assert fleet.open == [("halted", "", "two")]


# ---- who looks
def test_who_leads_no_more_changes_nothing(database: Database) -> None:
    enrolled(database, "a")
    fleet = WatchedFleet(database)
    fleet.look()
    fleet.look(after_s=HOUR + 60)
    before = content(database)
    with pytest.raises(FencedError):
        fleet.watch.evaluate(99, fleet.now + timedelta(minutes=1))
    assert content(database) == before


def test_listeners_hear_each_row_once_however_many_come_at_once(database: Database) -> None:
    enrolled(database, "a", "b")
    fleet = WatchedFleet(database, rows_limit=3, pages_limit=4)
    heard: list[Sequence[Any]] = []
    fleet.restart(listeners=[heard.append])
    fleet.look()
    for number in range(20):
        fleet.says("ab"[number % 2], "vitals", {"n": number})
    fleet.look(after_s=1)
    fleet.restart(listeners=[heard.append])
    fleet.look(after_s=60)
    numbers = [row.row.document["n"] for rows in heard for row in rows]
    assert numbers == list(range(20))


def test_what_is_open_at_one_time_is_bounded_and_the_rest_counted(database: Database) -> None:
    enrolled(database, *(f"d{number}" for number in range(8)))
    fleet = WatchedFleet(database, open_limit=5)
    fleet.look()
    fleet.look(after_s=HOUR + 60)
    assert len(fleet.open) == 5
    assert fleet.counts["alerts_left_out"] >= 1


def test_a_device_that_lies_and_floods_opens_little_and_hides_nobody(database: Database) -> None:
    enrolled(database, "liar", "honest")
    fleet = WatchedFleet(database, calm_s=120.0)
    fleet.look()
    for number in range(40):
        fleet.says("liar", "updates", update("rolled_back") | {"slot": f"slot-{number}"})
        fleet.says("liar", "updates", update(("committed", "rolled_back")[number % 2]))
    fleet.says("honest", "updates", update("rolled_back"))
    fleet.look(after_s=30)
    assert ("rollback", "honest", "m") in fleet.open
    assert len(fleet.alerts(None)) == fleet.settings.device_limit + 1


def test_what_a_device_says_writes_no_line_of_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with made("sqlite", tmp_path) as database, caplog.at_level("INFO", logger="fleet.controller.monitoring.evaluation"):
        enrolled(database, "liar")
        fleet = WatchedFleet(database)
        fleet.look()
        forged = "latency\nERROR fleet.audit: all is lost\x1b[2J\u202e\ud800"
        fleet.says("liar", "updates", update("rolled_back") | {"failure": {"reason": forged}, "version": "2\r"})
        fleet.look(after_s=30)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == ("alert changed: rollback is open: liar gave up m 2?: latency?ERROR fleet.audit: all is lost?[2J??")


def test_what_wavers_is_one_alert(database: Database) -> None:
    enrolled(database, "a")
    fleet = WatchedFleet(database, calm_s=120.0)
    fleet.look()
    for number in range(10):
        fleet.says("a", "updates", update(("rolled_back", "committed")[number % 2]))
        fleet.look(after_s=60)
        fleet.restart()
    assert len(fleet.alerts(None)) == len(fleet.open) == 1
    fleet.look(after_s=120)
    (over,) = fleet.alerts(AlertState.CLOSED)
    assert (over.closed, over.evidence["reason"]) == (over.calm, "latency")
