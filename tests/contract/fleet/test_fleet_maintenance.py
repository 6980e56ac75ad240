"""Maintenance jobs of the controller, on SQLite and PostgreSQL alike."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from tuf.api.metadata import Metadata, Timestamp

from fleet.controller.access import Role
from fleet.controller.app import Controller, Origin
from fleet.controller.audit import Deed
from fleet.controller.config import FleetConfig
from fleet.controller.control.maintenance import FAILED, Maintenance, MaintenanceJob
from fleet.controller.control.monotonic_clock import MonotonicClock
from fleet.controller.control.online_keys import OnlineKeys
from fleet.controller.control.settings import MaintenanceSettings
from fleet.controller.database import audit, certificates, devices, enrolment, events, leader, telemetry, tokens
from fleet.controller.database.audit import latest
from fleet.controller.database.certificates import Certificate
from fleet.controller.database.credentials import new_credential
from fleet.controller.database.errors import AbsentError
from fleet.controller.database.events import Event
from fleet.controller.database.ingestion import Batch, Row
from fleet.controller.database.settings import DatabaseSettings, TelemetryStorageSettings
from fleet.publisher.keys import refuse_to_ask
from fleet.publisher.roles import DIRECTOR, SNAPSHOT, TIMESTAMP
from tests.simulators.constants import settings_with
from tests.simulators.databases import ALIKE, url
from tests.simulators.fleet_repository import FleetRepository

DAY = timedelta(days=1)


class MaintainedReplica:
    """Controller that serves no requests, and its maintenance jobs; it leads. `uptime_s`: a clock that is never set."""

    def __init__(self, folder: Path, database_url: str) -> None:
        self.repository = FleetRepository(folder / "work")
        self.now = self.repository.now
        kept = settings_with(TelemetryStorageSettings(), age_limit_d=10.0, sweep_rows=10)
        config = FleetConfig(
            database=DatabaseSettings(url=database_url, telemetry=kept),
            maintenance=settings_with(MaintenanceSettings(), forget_after_d=7.0),
        )
        signers = [key for role in (DIRECTOR, SNAPSHOT, TIMESTAMP) for key in self.repository.keys[role]]
        self.folder = self.repository.workspace.folder
        self.control = Controller(Origin(self.folder, config, signers, lambda: self.now)).control
        fence = leader.candidate(self.control.database, "me").stand(self.now)
        self.uptime_s = 0.0
        self.maintenance = Maintenance(self.control, lambda: fence, self.monotonic_clock())

    def monotonic_clock(self, latest: datetime | None = None) -> MonotonicClock:
        return MonotonicClock(self.control.settings.maintenance, self.now, latest, lambda: self.uptime_s)

    def turn(self, after: timedelta = timedelta()) -> None:
        """Run the maintenance jobs so much later."""
        self.uptime_s += after.total_seconds()
        self.leap(after)

    def leap(self, by: timedelta) -> None:
        """Run the maintenance jobs at this moment, by a clock that was set."""
        self.now += by
        self.maintenance.tick(self.now)

    @property
    def failed(self) -> dict[str, int]:
        return {name: count for name, count in self.control.counts.items() if name.startswith(FAILED)}

    @property
    def timestamp(self) -> Metadata[Timestamp]:
        found = self.repository.published.timestamp
        assert found
        return found

    @property
    def listed(self) -> x509.CertificateRevocationList:
        return x509.load_pem_x509_crl((self.folder / "authority" / "crl.pem").read_bytes())

    def certified(self, serial: str, expires: datetime) -> None:
        with self.control.database.write() as connection:
            devices.enrol(connection, "camera-1", self.now)
            certificates.add(connection, Certificate(serial, "camera-1", self.now, expires))


@pytest.fixture(params=ALIKE)
def replica(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MaintainedReplica]:
    with url(request.param, tmp_path) as text:
        made = MaintainedReplica(tmp_path, text)
        yield made
        made.control.database.close()


def number_of(found: x509.CertificateRevocationList) -> int:
    return found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number


# ---- records
def test_when_devices_were_seen_is_written_by_every_replica(replica: MaintainedReplica) -> None:
    replica.certified("01", replica.now + DAY)
    replica.maintenance.fence = lambda: None
    replica.control.seen.note("camera-1", replica.now)
    replica.turn()
    with replica.control.database.read() as connection:
        assert devices.get(connection, "camera-1").seen == replica.now
    replica.control.seen.note("camera-1", replica.now + timedelta(minutes=5))
    replica.now += timedelta(minutes=5)
    replica.maintenance.end()
    with replica.control.database.read() as connection:
        assert devices.get(connection, "camera-1").seen == replica.now


def rows(replica: MaintainedReplica, *, first: int, count: int) -> None:
    told = [Row(first + n, replica.now, "k", {}) for n in range(count)]
    with replica.control.database.write() as connection:
        telemetry.receive(connection, "camera-1", Batch("s", 1, told), replica.now, TelemetryStorageSettings())


def kept_rows(replica: MaintainedReplica) -> int:
    with replica.control.database.read() as connection:
        return sum(source.rows for source in telemetry.sources(connection, "camera-1"))


def test_old_telemetry_goes_all_of_it_in_one_turn(replica: MaintainedReplica) -> None:
    replica.certified("01", replica.now + DAY)
    rows(replica, first=1, count=95)
    replica.turn()
    assert kept_rows(replica) == 95
    replica.turn(9 * DAY)
    rows(replica, first=96, count=5)
    replica.turn(2 * DAY)
    assert kept_rows(replica) == 5


def test_old_events_go_all_of_them_in_one_turn(replica: MaintainedReplica) -> None:
    replica.certified("01", replica.now + DAY)
    settings = replica.control.database.settings
    with replica.control.database.write() as connection:
        happened = [Event("camera-1", f"{number}", replica.now, "boot") for number in range(25)]
        events.record(connection, happened, replica.now, settings)
    replica.turn(11 * DAY)
    with replica.control.database.read() as connection:
        assert events.page(connection, settings) == ()


def test_a_sweep_that_takes_too_long_goes_on_in_the_next_turn(replica: MaintainedReplica) -> None:
    replica.certified("01", replica.now + DAY)
    rows(replica, first=1, count=30)
    settings = settings_with(replica.control.settings.maintenance, sweep_limit_s=1e-9)
    control = replace(replica.control, settings=replace(replica.control.settings, maintenance=settings))
    slow = Maintenance(control, replica.maintenance.fence, replica.monotonic_clock())
    replica.uptime_s += (11 * DAY).total_seconds()
    slow.tick(replica.now + 11 * DAY)
    assert "sweep" not in slow.done
    replica.leap(11 * DAY)
    assert ("sweep" in replica.maintenance.done, kept_rows(replica)) == (True, 0)


def test_what_expired_some_time_ago_is_forgotten(replica: MaintainedReplica) -> None:
    given: dict[str, Any] = {"now": replica.now, "by": "me"}
    with replica.control.database.write() as connection:
        for days in (1, 30):
            expires = replica.now + days * DAY
            enrolment.create(connection, new_credential("e_"), DatabaseSettings(), expires=expires, **given)
            made = {"name": "t", "role": Role.VIEWER, "expires": expires, **given}
            tokens.create(connection, new_credential("t_"), DatabaseSettings(), **made)
    replica.certified("01", replica.now + DAY)
    replica.certified("02", replica.now + 30 * DAY)
    for after, left in ((DAY * 7, 2), (DAY * 2, 1), (DAY * 30, 0)):
        replica.turn(after)
        with replica.control.database.read() as connection:
            assert len(enrolment.page(connection, DatabaseSettings())) == left
            assert len(tokens.page(connection, DatabaseSettings())) == left
            kept = certificates.of_device(connection, "camera-1", DatabaseSettings())
            assert len(kept) == max(left, 1)  # the clock may be wrong: the newest stays


def forgotten(replica: MaintainedReplica) -> bool:
    """Return whether an enrolment token that holds for a day was deleted."""
    with replica.control.database.read() as connection:
        return not enrolment.page(connection, DatabaseSettings())


def token_for_a_day(replica: MaintainedReplica) -> None:
    with replica.control.database.write() as connection:
        said: dict[str, Any] = {"expires": replica.now + DAY, "now": replica.now, "by": "me"}
        enrolment.create(connection, new_credential("e_"), DatabaseSettings(), **said)


def test_a_clock_that_is_far_ahead_for_a_while_makes_nothing_old(
    replica: MaintainedReplica, caplog: pytest.LogCaptureFixture
) -> None:
    replica.certified("01", replica.now + DAY)
    rows(replica, first=1, count=5)
    token_for_a_day(replica)
    replica.turn()
    replica.leap(4000 * DAY)
    for _ in range(5):
        replica.turn(timedelta(minutes=10))
    replica.leap(-4000 * DAY)
    replica.turn(2 * DAY)
    assert (kept_rows(replica), forgotten(replica)) == (5, False)
    assert set(replica.maintenance.done) >= {"sweep", "forget"}
    assert caplog.text.count("4000 days, 0:00:00 later than expected") == 1


def test_what_is_too_much_goes_whatever_the_clock_says(replica: MaintainedReplica) -> None:
    replica.certified("01", replica.now + DAY)
    rows(replica, first=1, count=5)
    little = replace(replica.control.database.settings.telemetry, device_limit_bytes=4)
    database = replace(replica.control.database, settings=replace(replica.control.database.settings, telemetry=little))
    replica.maintenance = Maintenance(
        replace(replica.control, database=database), replica.maintenance.fence, replica.monotonic_clock()
    )
    replica.leap(4000 * DAY)
    assert kept_rows(replica) == 2


def test_a_clock_that_was_set_right_is_believed_after_a_while(replica: MaintainedReplica) -> None:
    replica.certified("01", replica.now + DAY)
    rows(replica, first=1, count=5)
    token_for_a_day(replica)
    replica.leap(40 * DAY)
    replica.turn(timedelta(minutes=59))
    assert (kept_rows(replica), forgotten(replica)) == (5, False)
    replica.turn(timedelta(minutes=1))
    assert kept_rows(replica) == 0
    replica.turn(timedelta(hours=1))
    assert forgotten(replica)


def test_at_the_start_a_clock_is_held_against_what_was_recorded_last(replica: MaintainedReplica) -> None:
    """Another process, whose clock is ahead from the beginning."""
    with replica.control.database.write() as connection:
        audit.append(connection, Deed("ann", "tests.look", ""), replica.now)
    with replica.control.database.read() as connection:
        last = latest(connection)
    assert last == replica.now
    replica.certified("01", replica.now + DAY)
    rows(replica, first=1, count=5)
    replica.now += 400 * DAY
    replica.maintenance = Maintenance(replica.control, replica.maintenance.fence, replica.monotonic_clock(last))
    replica.turn(timedelta(minutes=30))
    assert kept_rows(replica) == 5
    replica.turn(timedelta(minutes=30))
    assert kept_rows(replica) == 0


def test_uploads_expire_at_a_replica_that_does_not_lead(replica: MaintainedReplica) -> None:
    """The leader may be a replica that takes none ([drafts] accepted = false)."""
    digest = "a" * 64
    replica.control.uploads.begin(digest, 4, "ci", replica.now)
    replica.maintenance.fence = lambda: None
    replica.turn()
    replica.turn(timedelta(hours=25))
    for _ in range(12):  # the clock is believed after a while
        replica.turn(timedelta(minutes=10))
    with pytest.raises(AbsentError):
        replica.control.uploads.find(digest, "ci")


# ---- the revocation list
def test_the_list_follows_what_is_revoked(replica: MaintainedReplica) -> None:
    replica.certified("0a1b", replica.now + 90 * DAY)
    replica.turn()
    first = replica.listed
    assert (len(first), first.is_signature_valid(replica.control.authority.key.public_key())) == (0, True)
    with replica.control.database.write() as connection:
        certificates.revoke_all(connection, "camera-1", "lost", replica.now)
    replica.turn(timedelta(minutes=1))
    second = replica.listed
    entry = second.get_revoked_certificate_by_serial_number(0x0A1B)
    assert entry is not None
    assert number_of(second) > number_of(first)
    command = ["openssl", "crl", "-noout", "-CAfile", "ca.pem", "-in", "crl.pem"]
    done = subprocess.run(command, cwd=replica.folder / "authority", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "verify OK\n")


def test_the_list_is_written_only_where_it_must_be(replica: MaintainedReplica) -> None:
    replica.turn()
    before = replica.listed
    replica.turn(timedelta(hours=11))
    assert replica.listed == before
    replica.turn(timedelta(hours=1, minutes=1))
    after = replica.listed
    assert number_of(after) > number_of(before)
    assert after.next_update_utc == (replica.now + timedelta(hours=24)).replace(microsecond=0)


@pytest.mark.parametrize("damage", [b"", b"no list", b"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n"])
def test_a_list_that_is_none_is_replaced(replica: MaintainedReplica, damage: bytes) -> None:
    replica.turn()
    (replica.folder / "authority" / "crl.pem").write_bytes(damage)
    replica.turn(timedelta(minutes=1))
    assert replica.listed.is_signature_valid(replica.control.authority.key.public_key())


def test_a_clock_that_went_back_writes_another_with_a_greater_number(replica: MaintainedReplica) -> None:
    replica.turn()
    before = replica.listed
    replica.turn(-10 * DAY)
    assert number_of(replica.listed) > number_of(before)
    assert replica.listed.last_update_utc < before.last_update_utc


# ---- what is published
def test_timestamp_and_snapshot_are_renewed_in_time_and_drafts_wait(replica: MaintainedReplica) -> None:
    replica.repository.draft_rotation("targets")
    drafts = {role: draft.metadata.to_bytes() for role, draft in replica.repository.workspace.drafts().items()}
    assert drafts
    first = replica.timestamp.signed
    replica.turn(timedelta(hours=11))
    assert replica.timestamp.signed.version == first.version
    replica.turn(timedelta(hours=2))
    assert replica.timestamp.signed.version == first.version + 1
    assert replica.timestamp.signed.expires == (replica.now + DAY).replace(microsecond=0)
    for _ in range(14):
        replica.turn(timedelta(hours=12, minutes=1))
    snapshot = replica.repository.published.snapshot
    assert snapshot
    assert snapshot.signed.expires > replica.now + 3 * DAY
    assert {role: d.metadata.to_bytes() for role, d in replica.repository.workspace.drafts().items()} == drafts
    assert replica.failed == {}


def test_an_operator_who_works_in_the_folder_goes_first(replica: MaintainedReplica) -> None:
    version = replica.timestamp.signed.version
    with replica.repository.workspace.locked():
        replica.turn(timedelta(hours=13))
        assert replica.timestamp.signed.version == version
    replica.turn(timedelta(seconds=5))
    assert replica.timestamp.signed.version == version + 1
    assert replica.failed == {}


def test_a_repository_that_cannot_be_read_is_said_and_the_rest_is_done(replica: MaintainedReplica) -> None:
    (replica.repository.public / "metadata" / "1.root.json").write_text("{}")
    replica.turn(timedelta(hours=13))
    assert replica.failed == {f"{FAILED}publish": 1}
    assert set(replica.maintenance.done) == {"seen", "revocations", "sweep", "forget", "archive", "uploads"}


def test_where_the_keys_are_not_somebody_else_renews(replica: MaintainedReplica) -> None:
    version = replica.timestamp.signed.version
    maintenance = Maintenance(
        replace(replica.control, keys=OnlineKeys(replica.folder / "none", (), refuse_to_ask, 0.0)),
        replica.maintenance.fence,
        replica.monotonic_clock(),
    )
    maintenance.tick(replica.now + timedelta(hours=13))
    assert (replica.failed, replica.timestamp.signed.version) == ({}, version)


def test_where_nothing_is_published_nothing_is_renewed(replica: MaintainedReplica) -> None:
    for file in (replica.repository.public / "metadata").iterdir():
        file.unlink()
    replica.turn(timedelta(hours=13))
    assert replica.failed == {}


# ---- when
def job(name: str, told: list[str], work: Callable[[int, datetime], bool] | None = None, **said: Any) -> MaintenanceJob:
    def tell(fence: int, now: datetime) -> bool:
        told.append(f"{name} {fence}")
        return work(fence, now) if work else True

    return MaintenanceJob(name, 60.0, tell, **said)


def fail(_fence: int, _now: datetime) -> bool:
    raise KeyError("a defect")


def test_each_has_its_time_and_a_defect_in_one_stops_no_other(replica: MaintainedReplica) -> None:
    told: list[str] = []
    made = (job("a", told, fail), job("b", told), job("c", told, everywhere=True))
    maintenance = Maintenance(replica.control, lambda: 7, replica.monotonic_clock(), made)
    heard = []
    for second in (0, 29, 30, 59, 60, 119, 120):
        told.clear()
        maintenance.tick(replica.now + timedelta(seconds=second))
        heard.append((second, " ".join(told)))
    assert heard == [
        (0, "a 7 b 7 c 0"),
        (29, ""),
        (30, "a 7"),
        (59, ""),
        (60, "a 7 b 7 c 0"),
        (119, "a 7"),
        (120, "b 7 c 0"),
    ]
    assert replica.failed == {f"{FAILED}a": 4}
    told.clear()
    maintenance.tick(replica.now - DAY)
    assert told == ["a 7", "b 7", "c 0"]


def test_who_does_not_lead_does_only_what_everybody_does(replica: MaintainedReplica) -> None:
    told: list[str] = []
    made = (job("b", told), job("c", told, everywhere=True))
    maintenance = Maintenance(replica.control, lambda: None, replica.monotonic_clock(), made)
    maintenance.tick(replica.now)
    assert told == ["c 0"]


def test_who_leads_no_more_removes_nothing(replica: MaintainedReplica) -> None:
    replica.certified("01", replica.now + DAY)
    rows(replica, first=1, count=5)
    maintenance = Maintenance(replica.control, lambda: 99, replica.monotonic_clock())
    maintenance.tick(replica.now + 30 * DAY)
    assert replica.failed == {f"{FAILED}sweep": 1, f"{FAILED}forget": 1}
    assert kept_rows(replica) == 5
