"""Telemetry of a device to its fleet: everything once, what changed, how updates ended, and honestly what it lost."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gateway.common.domain.activation import Activation
from gateway.common.domain.assignment import SETTINGS_SLOT
from gateway.common.domain.errors import UnreachableError
from gateway.common.domain.policy import Policy
from gateway.common.domain.update import Failure, Step
from gateway.common.store.settings import SpoolSettings
from gateway.device.agent.control import DaemonRefusedError
from gateway.device.agent.enrol import EnrolmentInput, enrol
from gateway.device.agent.fetch.certificate import CA_FILE, read_held, renew
from gateway.device.agent.fetch.controller import ControllerClient
from gateway.device.agent.report import reporting
from gateway.device.agent.report.reporting import Reporter
from gateway.device.agent.report.sending import line
from gateway.device.agent.report.telemetry import telling
from gateway.device.agent.state.policy import present
from gateway.device.agent.state.slot_state import begun, keep_state, moved, read_state
from gateway.device.agent.state.storage import opened, opened_for_reading
from gateway.device.agent.update import work
from gateway.device.store.spool import NAME
from gateway.device.store.spool_rows import Usage
from tests.simulators.authority import Authority
from tests.simulators.constants import settings_with
from tests.simulators.enrolled_device import CONFIG, DEVICE, INVENTORY, SLOT, Device, enrolled_device
from tests.simulators.fleet_controller import Answer, Call
from tests.simulators.policy_document import policy_bytes

EARLIER, LATER, MINUTE = datetime(2020, 1, 1, tzinfo=UTC), datetime(2040, 1, 1, tzinfo=UTC), timedelta(minutes=1)


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    with enrolled_device(tmp_path, monkeypatch) as made:
        yield made


def refuse(status: int, **headers: str) -> Any:
    def answer(_: Call) -> Answer:
        return status, headers, b'{"detail": "the words of the controller"}'

    return answer


def telemetry(device: Device) -> list[Call]:
    return [call for call in device.fleet.asked if call.path.endswith("/telemetry")]


def test_an_update_is_told_with_the_state_that_follows(device: Device) -> None:
    device.update("1")
    device.control.serve(SLOT, "1")
    device.control.counters = {"1": {"version": "1", "requests": 7}}
    assert device.report() == ""
    (ended,) = device.told.of("updates")
    assert (ended["class"], ended["document"]["state"], ended["document"]["failure"]) == ("evidence", "committed", None)
    (slot,) = [row["document"] for row in device.told.of("state") if row["kind"] == "slot"]
    assert (slot["state"], slot["release"]) == ("committed", ended["document"]["release"])
    assert slot["serving"][0]["version"] == "1"
    assert device.told.of("statistics")[0]["document"]["requests"] == 7
    assert device.told.inventory == INVENTORY
    assert device.status["controller"]["problem"] == ""
    assert {call.headers["content-encoding"] for call in telemetry(device)} == {"gzip"}


def test_a_roll_back_is_told_with_its_evidence_once(device: Device) -> None:
    device.update("1")
    device.control.always["load"] = DaemonRefusedError("INVALID", "the golden set fails")
    device.update("2")
    for _ in range(3):
        assert device.report() == ""
    first, second = (row["document"] for row in device.told.of("updates"))
    assert (first["version"], second["version"], second["state"]) == ("1", "2", "rolled_back")
    assert "the golden set fails" in second["failure"]["reason"]
    slots = [row["document"]["state"] for row in device.told.of("state") if row["kind"] == "slot"]
    assert slots == ["rolled_back"]


def settings_at(device: Device, number: int, phase: str) -> None:
    """Bring the settings release `number` into a phase of its update."""
    release = Activation(SETTINGS_SLOT, f"settings/berlin/{number}/release", f"{number:064x}", (), (), 1)
    with opened(device.folder, CONFIG) as storage:
        state = read_state(storage.journal, SETTINGS_SLOT)
        if state.release != release.release:
            state = begun(state, release, LATER + number * MINUTE, assignment=number, attempt=0)
        keep_state(storage.journal, moved(state, phase, LATER + number * MINUTE))


def roll_back(device: Device, at: datetime) -> None:
    """Record an update of the model that was rolled back."""
    with opened(device.folder, CONFIG) as storage:
        storage.journal.begin(storage.active().slots[SLOT], 2, at)
        storage.journal.fail(SLOT, Failure(Step.LOAD, "no", {}), at)
        storage.journal.finish(SLOT, at)


def update_keys(device: Device) -> list[str]:
    return [row["document"]["key"] for row in device.told.of("updates")]


def test_an_update_whose_predecessor_is_forgotten_repeats_no_history(device: Device) -> None:
    device.update("1")
    for number in (1, 2):
        settings_at(device, number, "")  # the slot remembers one release: this forgets the one before
        assert device.report() == ""
        settings_at(device, number, Step.DONE.value)
        assert device.report() == ""
    told = update_keys(device)
    assert (len(told), len(set(told))) == (3, 3)


def test_an_update_is_told_after_the_clock_was_set_back(device: Device) -> None:
    device.update("1")
    assert device.report() == ""
    roll_back(device, EARLIER)
    assert device.report() == ""
    assert [row["document"]["state"] for row in device.told.of("updates")] == ["committed", "rolled_back"]


def test_what_has_not_changed_is_told_now_and_then_only(device: Device) -> None:
    device.update("1")
    for _ in range(3):
        device.report()
    assert len(device.told.of("state")) == 2
    assert sum(call.path.endswith("/inventory") for call in device.fleet.asked) == 1
    device.report(replace(CONFIG, telemetry=settings_with(CONFIG.telemetry, refresh_s=0.0)))
    assert len(device.told.of("state")) == 4
    device.control.found = {"arch": "arm64"}
    device.report()
    assert (device.told.inventory, len(device.told.of("state"))) == ({"arch": "arm64"}, 5)


def test_a_slot_that_is_gone_is_said_to_be(device: Device) -> None:
    device.update("1")
    device.report()
    free = Policy(removal_hold_h=0.0, removal_share_percent_per_hour=100.0, removal_of_last=True)
    policy = device.fleet.repository.add_file("policy/free.json", policy_bytes(free))
    device.fleet.assigned[DEVICE], device.fleet.extra = ({}, [policy]), {DEVICE: {"removed": [SLOT]}}
    with opened(device.folder, CONFIG) as storage:
        assert not work.Agent(storage, CONFIG).poll().problem
    device.report()
    assert {"slot": SLOT, "state": "gone"} in [row["document"] for row in device.told.of("state")]


def test_nothing_is_lost_while_the_controller_is_away_and_nothing_counts_twice(device: Device) -> None:
    device.update("1")
    device.fleet.ill["/v1/self/telemetry"] = refuse(503)
    for _ in range(4):
        assert "503: the words of the controller" in device.report()
    assert "the words of the controller" in device.status["controller"]["problem"]
    device.fleet.ill = {"/v1/self/telemetry": lose_the_answer(device)}
    assert device.report()
    assert device.report() == ""
    assert device.told.again > 0
    assert [row["seq"] for row in device.told.of("vitals")] == list(range(1, 7))
    assert len(device.told.of("updates")) == 1
    assert not any(device.told.lost.values())


def lose_the_answer(device: Device) -> Any:
    def answer(call: Call) -> Answer:
        del device.fleet.ill["/v1/self/telemetry"]
        device.fleet._route(call)
        return 502, {}, b""

    return answer


def test_a_controller_that_asks_for_quiet_is_left_alone(device: Device) -> None:
    device.fleet.ill["/v1/self/telemetry"] = refuse(429, **{"Retry-After": "60"})
    assert device.report()
    asked = len(device.fleet.asked)
    assert device.report() == ""
    assert len(device.fleet.asked) == asked


def test_who_is_revoked_is_told_so(device: Device) -> None:
    held = read_held(device.folder)
    assert held
    device.fleet.revoked.add(held.serial)
    assert device.report().startswith("the fleet refuses this device; enrol it again: ")
    assert "this certificate is revoked" in device.status["controller"]["problem"]


def test_what_did_not_fit_is_told_as_a_gap(device: Device) -> None:
    small = replace(CONFIG, spool=SpoolSettings(bytes_limit=3_000))
    device.fleet.ill["/v1/self/telemetry"] = refuse(503)
    for _ in range(20):
        device.report(small)
    device.fleet.ill.clear()
    assert device.report(small) == ""
    lost = {key[0]: numbers for key, numbers in device.told.lost.items() if numbers}
    assert set(lost) == {"vitals"}
    told = {row["seq"] for row in device.told.of("vitals")}
    assert sorted(told | lost["vitals"]) == list(range(1, 22))
    assert not told & lost["vitals"]


@pytest.mark.parametrize("status", [400, 413, 422])
def test_lines_that_the_controller_never_takes_do_not_block_the_others(device: Device, status: int) -> None:
    def answer(call: Call) -> Answer:
        rows = [json.loads(text) for text in gzip.decompress(call.body).splitlines()]
        if any(row.get("kind") == "device" for row in rows):
            return refuse(status)(call)  # type: ignore[no-any-return]
        return device.fleet._route(call)

    device.update("1")
    device.fleet.ill["/v1/self/telemetry"] = answer
    for _ in range(3):
        device.report()
    assert len(device.told.of("vitals")) == 3
    assert [sum(map(bool, [numbers])) for key, numbers in device.told.lost.items() if key[0] == "state"] == [1]


ANSWERS: dict[str, bytes] = {
    "nothing": b"{}",
    "no object": b"[]",
    "no JSON": b"<html>",
    "another stream": b'{"acknowledged": [{"stream": "x", "boot_epoch": 1, "seq": 9}]}',
    "odd types": b'{"acknowledged": [7, {"stream": [], "boot_epoch": {}, "seq": true}, {"stream": "vitals"}]}',
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("case", ANSWERS)
def test_odd_answers_take_nothing_away(device: Device, case: str) -> None:
    device.fleet.ill["/v1/self/telemetry"] = lambda _: (200, {}, ANSWERS[case])
    assert device.report()
    device.fleet.ill.clear()
    assert device.report() == ""
    assert [row["seq"] for row in device.told.of("vitals")] == [1, 2]


def test_a_spool_that_was_lost_or_damaged_is_begun_anew_and_said_to_be(device: Device) -> None:
    device.update("1")
    device.report()
    for content in (b"rubbish" * 1000, b""):
        (device.folder / NAME).write_bytes(content)
        assert device.report() == ""
    begun = [row for row in device.told.of("events") if row["kind"] == "spool-begun-anew"]
    assert len(begun) == 2
    assert len({row["boot_epoch"] for row in device.told.of("vitals")}) == 3
    assert len({row["document"]["key"] for row in device.told.of("updates")}) == 1


def test_a_daemon_that_does_not_answer_is_left_out(device: Device) -> None:
    device.update("1")
    device.control.always["status"] = UnreachableError("it does not answer", table="control", key="socket")
    assert device.report() == ""
    assert device.told.of("vitals")[0]["document"]["rss_bytes"] is None
    assert device.told.inventory is None


def test_questions_that_end_otherwise_are_events(device: Device) -> None:
    device.update("1")
    device.fleet.ill["/v1/self/assignment"] = refuse(500)
    with opened(device.folder, CONFIG) as storage:
        assert work.Agent(storage, CONFIG).poll().reason == "unreachable"
    device.report()
    device.report()
    (told,) = [row["document"] for row in device.told.of("events") if row["kind"] == "poll"]
    assert told["reason"] == "unreachable"


def test_what_is_too_large_for_a_record_is_named(device: Device) -> None:
    device.update("1")
    now = present(None).now
    told = telling(device.observed(), {}, Usage(0, 0, 0), now, refresh_s=9.0, limit_bytes=300)
    slot = next(record for record in told.records if record.kind == "slot")
    assert slot.document["slot"] == SLOT
    assert slot.document["left_out_bytes"] > 300


def test_a_line_is_json(device: Device) -> None:
    device.fleet.ill["/v1/self/telemetry"] = refuse(503)
    device.report()
    with opened_for_reading(device.folder, CONFIG) as storage:
        spool = reporting._opened(storage, CONFIG, present(None).now)
        for entry in spool.batch(100, 10**6):
            assert json.loads(line(entry))["seq"] == entry.seq
        spool.close()


def test_a_certificate_is_renewed_at_two_thirds_of_its_life(device: Device) -> None:
    before = read_held(device.folder)
    assert before
    assert before.renew_from - before.begins == (before.expires - before.begins) * 2 / 3
    device.report()
    assert read_held(device.folder) == before
    authority = device.fleet.authority
    authority.begins = -authority.lives * 3 / 4
    device.fleet.tokens["again"] = DEVICE
    enrol(EnrolmentInput(device.fleet.url, "again"), device.folder, CONFIG)
    due = read_held(device.folder)
    authority.begins = -authority.lives / 100
    assert device.report() == ""
    renewed = read_held(device.folder)
    assert due
    assert renewed
    assert renewed.expires > due.expires
    assert device.status["controller"]["certificate_expires"] == renewed.expires.isoformat()
    assert device.fleet.asked[-1].serial == renewed.serial
    device.report()
    assert sum(call.path.endswith("/certificate") for call in device.fleet.asked) == 1


def test_a_device_whose_certificate_expired_says_so(device: Device) -> None:
    authority = device.fleet.authority
    authority.begins = -2 * authority.lives
    device.fleet.tokens["again"] = DEVICE
    enrol(EnrolmentInput(device.fleet.url, "again"), device.folder, CONFIG)
    expired = "this device's certificate expired at "
    assert device.report().startswith(expired)
    assert device.asked_once().problem.startswith(expired)
    authority.begins = -authority.lives / 100
    device.fleet.tokens["then"] = DEVICE
    enrol(EnrolmentInput(device.fleet.url, "then"), device.folder, CONFIG)
    assert "expired" not in device.asked_once().problem


def test_what_checks_the_port_follows_the_device_ca(device: Device) -> None:
    """The CAs that an answer names replace those of the answer before; others stay."""
    authority, file = device.fleet.authority, device.folder / CA_FILE
    old, new, other = authority.file.read_text(), Authority().pem.decode(), Authority().pem.decode()

    def renewed(*chain: str) -> str:
        def answer(call: Call) -> Answer:
            made = device.fleet.authority.answer(json.loads(call.body)["csr"], call.device)
            return 200, {}, json.dumps({"certificate": made, "chain": "".join(chain)}).encode()

        device.fleet.ill["/v1/self/certificate"] = answer
        with closing(device.connections()) as connections:
            renew(device.folder, ControllerClient(device.fleet.url, connections, 5.0), DEVICE)
        return file.read_text()

    file.write_text(old + other)
    assert renewed(old) == old + other
    assert renewed(old, new) == old + new + other
    assert renewed(new, old) == new + old + other
    file.write_text(new + old + other)
    assert renewed(old) == old + other  # the new one was given up


@pytest.mark.parametrize("certificate", ["", "x", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_a_renewal_that_brings_no_certificate_leaves_the_old_one(device: Device, certificate: str) -> None:
    authority = device.fleet.authority
    authority.begins = -authority.lives * 3 / 4
    device.fleet.tokens["again"] = DEVICE
    enrol(EnrolmentInput(device.fleet.url, "again"), device.folder, CONFIG)
    before = read_held(device.folder)
    body = json.dumps({"certificate": certificate, "chain": ""}).encode()
    device.fleet.ill["/v1/self/certificate"] = lambda _: (200, {}, body)
    assert "no certificate" in device.report()
    assert read_held(device.folder) == before


def test_the_reporter_tells_beside_the_work_and_once_more_at_the_end(device: Device) -> None:
    device.update("1")
    reporter = Reporter(device.folder, CONFIG, device.identity, device.connections())
    reporter.tell()
    reporter.close(20.0)
    assert 1 <= len(device.told.of("vitals")) <= 2
    assert not reporter._thread or not reporter._thread.is_alive()


def test_who_is_told_to_stop_waits_for_no_controller(device: Device) -> None:
    asked, answered = threading.Event(), threading.Event()

    def hang(call: Call) -> Answer:
        asked.set()
        answered.wait(60)
        return device.fleet._route(call)

    device.fleet.ill["/v1/self/telemetry"] = hang
    reporter = Reporter(device.folder, CONFIG, device.identity, device.connections())
    reporter.close(600.0, asked.is_set)
    assert reporter._thread
    assert reporter._thread.is_alive()
    answered.set()
    reporter._thread.join(60)


def test_who_was_not_enrolled_or_will_not_tells_nobody(device: Device) -> None:
    silent = replace(CONFIG, telemetry=replace(CONFIG.telemetry, enabled=False))
    for config, identity in ((CONFIG, replace(device.identity, controller="")), (silent, device.identity)):
        reporter = Reporter(device.folder, config, identity, device.connections())
        reporter.tell()
        reporter.close(20.0)
    assert not (device.folder / NAME).exists()
