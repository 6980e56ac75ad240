"""Reports of devices become facts of the rollout that made the offer: few, in order, also if devices lie."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from fleet.controller.control.ingestion import Intake
from fleet.controller.control.settings import IntakeSettings
from fleet.controller.database import alerts, certificates, devices, events, telemetry
from fleet.controller.database.certificates import Certificate
from fleet.controller.monitoring.evaluation import AlertEvaluation
from fleet.controller.rollouts.facts import Aborted, Paused, Reported, Resumed
from fleet.controller.rollouts.state import DeviceState, Member
from tests.simulators.asking import packed, record
from tests.simulators.constants import settings_with
from tests.simulators.rolled_fleet import SLOT, V1, V2, V3, RolledFleet, fleet
from tests.simulators.watched_fleet import SETTINGS

__all__ = ["fleet"]
OTHER = "f" * 64


class Talk:
    """Devices of a fleet that talk; each line has the next number of its stream."""

    def __init__(self, fleet: RolledFleet) -> None:
        self.fleet, self.counts = fleet, Counter[str]()
        self.intake = Intake(fleet.database, IntakeSettings(), fleet.rolling.states, self.counts)
        self._numbers: Counter[tuple[str, str]] = Counter()

    def join(self, *names: str) -> list[str]:
        self.fleet.enrol(names)
        with self.fleet.database.write() as connection:
            for name in names:
                until = self.fleet.now + timedelta(days=90)
                certificates.add(connection, Certificate(f"c0{name}", name, self.fleet.now, until))
        return list(names)

    def line(self, device: str, stream: str, kind: str, document: Mapping[str, Any]) -> dict[str, Any]:
        self._numbers[device, stream] += 1
        return record(stream, self._numbers[device, stream], document, kind=kind)

    def slot(self, device: str, state: str, **changes: Any) -> dict[str, Any]:
        """Return the agent's report of a slot that is assigned version 2."""
        said = {"slot": SLOT, "state": state, "release": self.digest, "target": V2, "attempt": 1, "committed": None}
        return self.line(device, "state", "slot", said | changes)

    def ended(self, device: str, state: str, key: str = "k1", **changes: Any) -> dict[str, Any]:
        """Return the agent's report of an update that is over."""
        said = {"slot": SLOT, "state": state, "release": self.digest, "target": V2, "attempt": 1, "key": key}
        return self.line(device, "updates", "update", said | changes)

    def say(self, device: str, *lines: Mapping[str, Any]) -> None:
        self.intake.take(f"c0{device}", packed(*lines), "gzip", lambda: self.fleet.now)

    @property
    def digest(self) -> str:
        target = self.fleet.repository.published.target(V2)
        assert target
        return target.hashes["sha256"]


@pytest.fixture
def talk(fleet: RolledFleet) -> Talk:
    return Talk(fleet)


@pytest.fixture
def rollout(talk: Talk) -> str:
    """Return a rollout that offered version 2 to one device."""
    talk.join("camera-1")
    started = talk.fleet.start(waves=[{"percent": 100}], retries={"limit": 1, "backoff_s": 1, "backoff_limit_s": 1})
    talk.fleet.turn()
    assert member(talk, started).state is DeviceState.OFFERED
    return started


def member(talk: Talk, rollout: str, device: str = "camera-1") -> Member:
    return talk.fleet.known(rollout).state.members[device]


def reports(talk: Talk, rollout: str) -> list[tuple[str, int]]:
    facts = talk.fleet.facts(rollout)
    return [(fact.event.state, fact.event.attempt) for fact in facts if isinstance(fact.event, Reported)]


def committed(digest: str, target: str = V2) -> dict[str, Any]:
    return {"committed": {"target": target, "version": target.split("/")[3], "release": digest}}


def test_an_update_from_offer_to_end(talk, rollout) -> None:
    for state in ("downloading", "probation"):
        talk.say("camera-1", talk.slot("camera-1", state))
    last = talk.slot("camera-1", "committed", **committed(talk.digest))
    talk.say("camera-1", talk.ended("camera-1", "committed"), last)
    assert reports(talk, rollout) == [("downloading", 1), ("probation", 1), ("committed", 1)]
    with talk.fleet.database.read() as connection:
        running = devices.get(connection, "camera-1").running
    assert [(one.slot, one.target, one.state) for one in running] == [(SLOT, V2, "committed")]
    talk.fleet.turn(1)
    assert talk.fleet.status(rollout).value == "finished"
    talk.fleet.replayed(rollout)


def test_a_device_that_rejected_a_release_is_told_of_a_greater_attempt_by_the_next_rollout(talk) -> None:
    fleet, names = talk.fleet, talk.join("camera-1", "camera-2", "camera-3")
    lenient = {"success": {"min_sample": 1, "min_percent": 50}, "abort": {"min_sample": 9, "max_failed_percent": 90}}
    first = fleet.start(waves=[{"percent": 100}], **lenient)
    fleet.turn()
    talk.say(names[0], talk.slot(names[0], "rolled_back"))
    for name in names[1:]:
        talk.say(name, talk.slot(name, "committed", **committed(talk.digest)))
    fleet.turn(1)
    assert fleet.status(first).value == "finished"
    second = fleet.start(
        query="id = camera-1", waves=[{"percent": 100}], retries={"limit": 1, "backoff_s": 1}, **lenient
    )
    fleet.turn(1)
    wanted = fleet.desired(names)
    assert (wanted[names[0]].rollout, wanted[names[0]].attempt, wanted[names[1]].attempt) == (second, 2, 1)
    talk.say(names[0], talk.slot(names[0], "rolled_back"))  # of the first attempt: known
    assert reports(talk, second) == []
    talk.say(names[0], talk.slot(names[0], "rolled_back", attempt=2))
    assert reports(talk, second) == [("rolled_back", 1)]
    fleet.turn(2)
    assert fleet.desired(names)[names[0]].attempt == 3
    talk.say(names[0], talk.slot(names[0], "committed", attempt=3, **committed(talk.digest)))
    fleet.turn(1)
    assert fleet.status(second).value == "finished"
    for rollout in (first, second):
        fleet.replayed(rollout)


def test_what_a_later_rollout_brought_is_no_failure_of_the_standing_one(talk) -> None:
    fleet, _ = talk.fleet, talk.join("camera-1")
    first = fleet.start(waves=[{"percent": 100}], standing=True)
    fleet.turn()
    talk.say("camera-1", talk.slot("camera-1", "committed", **committed(talk.digest)))
    fleet.turn(1)
    assert fleet.status(first).value == "standing"
    fleet.publish("3")
    fleet.now += timedelta(seconds=1)
    second = fleet.start(target="acme/meter-reader/3", waves=[{"percent": 100}])
    fleet.turn(1)
    release = fleet.known(second).spec.target.sha256
    for attempt in (1, 0):  # an older agent names no attempt
        said = {"attempt": attempt, "release": release, "target": V3, **committed(release, V3)}
        talk.say("camera-1", talk.slot("camera-1", "committed", **said))
    assert member(talk, second).state is DeviceState.COMMITTED
    assert reports(talk, first) == [("committed", 1)]
    fleet.turn(1)
    fleet.turn(1)
    assert [fleet.status(one).value for one in (first, second)] == ["finished", "finished"]


def test_what_is_said_again_changes_nothing(talk, rollout) -> None:
    lines = [talk.slot("camera-1", "downloading"), talk.slot("camera-1", "probation")]
    for _ in range(3):
        talk.say("camera-1", *lines)
    talk.say("camera-1", talk.slot("camera-1", "probation"), talk.slot("camera-1", "downloading"))
    assert reports(talk, rollout) == [("downloading", 1), ("probation", 1)]
    assert talk.counts["telemetry_left_duplicate"] == 4


def test_a_device_that_goes_on_is_heard_now_and_then(talk, rollout) -> None:
    for minutes in (1, 5, 11, 12):
        talk.fleet.now += timedelta(minutes=minutes)
        talk.say("camera-1", talk.slot("camera-1", "offered"))
    assert reports(talk, rollout) == [("offered", 1)] * 2
    assert member(talk, rollout).heard_at == talk.fleet.now


def test_a_device_that_its_policy_holds_is_known_to_be_held_at_once(talk, rollout) -> None:
    """It says so and then nothing for hours; who says it again and again is heard now and then."""
    for minutes in (1, 1, 1, 11):
        talk.fleet.now += timedelta(minutes=minutes)
        talk.say("camera-1", talk.slot("camera-1", "pending", held={"why": "its hour comes"}))
    assert reports(talk, rollout) == [("pending", 1)] * 2
    assert member(talk, rollout).held_for == timedelta(minutes=13)
    for minute in range(9):  # nor is it recorded whenever it says otherwise
        talk.fleet.now += timedelta(minutes=1)
        talk.say("camera-1", talk.slot("camera-1", ("offered", "pending")[minute % 2]))
    assert len(reports(talk, rollout)) == 2


def test_who_goes_on_is_not_silent_however_short_the_patience(talk) -> None:
    talk.join("camera-1")
    rollout = talk.fleet.start(waves=[{"percent": 100}], silence_s=300)
    talk.fleet.turn()
    for _ in range(12):
        talk.fleet.now += timedelta(minutes=1)
        talk.say("camera-1", talk.slot("camera-1", "downloading"))
        talk.fleet.turn()
    assert member(talk, rollout).state is DeviceState.DOWNLOADING
    assert len(reports(talk, rollout)) == 6, "as many as that takes"


def test_a_rollback_keeps_its_evidence_and_is_tried_again(talk, rollout) -> None:
    failure = {"step": "probation", "reason": "other answers", "evidence": {"disagreed_rows": 40, "compared_rows": 90}}
    talk.say("camera-1", talk.ended("camera-1", "rolled_back", failure=failure))
    assert reports(talk, rollout) == [("rolled_back", 1)]
    with talk.fleet.database.read() as connection:
        said = events.page(connection, talk.fleet.database.settings, kind="rollback", rollout=rollout)
    assert said[0].event.document["evidence"] == failure["evidence"]
    assert (said[0].event.device, said[0].event.slot, said[0].event.target) == ("camera-1", SLOT, V2)
    talk.fleet.turn(2)
    assert talk.fleet.desired(["camera-1"])["camera-1"].attempt == 2
    talk.say("camera-1", talk.slot("camera-1", "rolled_back"), talk.ended("camera-1", "rolled_back", "k1"))
    assert reports(talk, rollout) == [("rolled_back", 1)], "it speaks of the first attempt"
    talk.say("camera-1", talk.ended("camera-1", "committed", "k2", attempt=2))
    assert reports(talk, rollout)[-1] == ("committed", 2)


def test_a_repeated_update_makes_no_row_no_event_no_alert_and_no_message(talk, rollout) -> None:
    """Not in a later request, as after a lost spool, nor twice in one, nor of another boot."""
    database, settings = talk.fleet.database, settings_with(SETTINGS, url="https://alarms.example/", lasts_s=600.0)
    watch = AlertEvaluation(database, settings, Counter())

    def look(after_s: float = 1.0) -> None:
        talk.fleet.turn(after_s)
        watch.evaluate(talk.fleet.scheduler.fence or 0, talk.fleet.now)
        talk.fleet.now += timedelta(seconds=1)

    def told(key: str, **line: int) -> dict[str, Any]:
        return talk.ended("camera-1", "rolled_back", key, failure={"reason": key}) | line

    look()
    talk.say("camera-1", told("k1"), told("k1"))
    look()
    look(3_600.0)  # the alert closes: nothing more was heard of it
    talk.say("camera-1", told("k1"), told("k2"), told("k1", boot_epoch=2, seq=1))
    look()
    with database.read() as connection:
        rows = telemetry.newest(connection, "camera-1", database.settings, stream="updates", limit_rows=9)
        happened = events.page(connection, database.settings)
        waiting = [one for one in alerts.untold(connection, 9) if one.alert.rule == "rollback"]
        kept = telemetry.sources(connection, "camera-1")
    assert [row.row.document["key"] for row in rows] == ["k2", "k1"]
    assert [one.event.key for one in happened] == ["k2", "k1"]
    assert [(one.alert.evidence["reason"], one.change) for one in waiting] == [("k1", 2), ("k2", 1)]
    assert [(one.boot_epoch, one.contiguous, one.rows, one.lost) for one in kept] == [(2, 1, 0, 0), (1, 4, 2, 0)]
    assert talk.counts["telemetry_left_repeated"] == 3


def test_who_says_it_is_done_and_runs_something_else_has_failed(talk, rollout) -> None:
    talk.say("camera-1", talk.slot("camera-1", "committed", **committed(OTHER, V1)))
    assert member(talk, rollout).state is DeviceState.FAILED
    assert "another release" in member(talk, rollout).reason


def test_reports_count_while_paused_and_for_who_goes_back(talk, rollout) -> None:
    talk.fleet.say(rollout, Paused("ann"))
    talk.say("camera-1", talk.slot("camera-1", "downloading"))
    assert reports(talk, rollout) == [("downloading", 1)]
    talk.fleet.say(rollout, Resumed("ann"))
    talk.say("camera-1", talk.slot("camera-1", "committed", **committed(talk.digest)))
    talk.fleet.turn(1)
    before = len(talk.fleet.facts(rollout))
    talk.say("camera-1", talk.slot("camera-1", "offered", release=OTHER, target=V1))
    assert len(talk.fleet.facts(rollout)) == before, "it is finished"


def test_a_device_that_goes_back_after_an_abort_is_heard(talk) -> None:
    talk.join("camera-1", "camera-2")
    rollout = talk.fleet.start(waves=[{"percent": 100}], rollback="forced")
    talk.fleet.turn()
    talk.say("camera-1", talk.slot("camera-1", "committed", **committed(talk.digest)))
    talk.fleet.say(rollout, Aborted("ann"))
    talk.fleet.turn(1)
    gone = {"release": OTHER, "target": V1, "attempt": 0}
    talk.say("camera-1", talk.slot("camera-1", "committed", **gone, **committed(OTHER, V1)))
    found = member(talk, rollout)
    assert (found.state, found.returned) == (DeviceState.ROLLED_BACK, True)


def test_who_was_offered_nothing_reports_in_vain(talk, rollout) -> None:
    talk.join("camera-2")
    talk.say("camera-2", talk.slot("camera-2", "committed", **committed(talk.digest)), talk.ended("camera-2", "x"))
    talk.say("camera-1", talk.slot("camera-1", "committed", slot="another", **committed(talk.digest)))
    assert reports(talk, rollout) == []
    assert "camera-2" not in talk.fleet.known(rollout).state.members


def test_lies_leave_a_record_that_reads(talk, rollout) -> None:
    failure = {"step": "x", "reason": "\0\x1b[31m" + "r" * 3000, "evidence": {str(n): n for n in range(200)}}
    talk.say("camera-1", talk.ended("camera-1", "rolled_back", failure=failure, version=["2"], began=7))
    assert reports(talk, rollout) == [("rolled_back", 1)]
    assert "\x1b" not in member(talk, rollout).reason
    for number in range(5):
        states = ("downloading", "probation", "offered", "failed", "committed")
        talk.say("camera-1", *(talk.slot("camera-1", state, attempt=number % 3) for state in states))
    assert len(reports(talk, rollout)) <= 2
    talk.fleet.turn(1)
    talk.fleet.replayed(rollout)


def test_how_a_device_is(talk) -> None:
    talk.join("camera-1")
    said = {"state": "behind", "why": "it does not\nrun", "profile": "coral", "versions": {"agent": "0.1.0", "x": {}}}
    talk.say("camera-1", talk.line("camera-1", "state", "device", said))
    with talk.fleet.database.read() as connection:
        found = devices.get(connection, "camera-1")
    assert (found.health, found.profile) == ("behind", "coral")
    assert found.health_details == {"why": "it does not run", "versions": {"agent": "0.1.0"}}
    there = talk.slot("camera-1", "offered")
    talk.say("camera-1", there, talk.line("camera-1", "state", "slot", {"slot": SLOT, "state": "gone"}))
    with talk.fleet.database.read() as connection:
        assert devices.get(connection, "camera-1").running == ()
