"""What the controller tidies up, on SQLite and PostgreSQL alike."""

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

from fleet.access import Role
from fleet.app import Controller, Origin
from fleet.audit import Deed
from fleet.config import FleetConfig
from fleet.control.maintenance import FAILED, Maintenance, MaintenanceJob
from fleet.control.monotonic_clock import MonotonicClock
from fleet.control.online_keys import OnlineKeys
from fleet.control.settings import MaintenanceSettings
from fleet.database import audit, certificates, devices, enrolment, events, leader, telemetry, tokens
from fleet.database.certificates import Certificate
from fleet.database.credentials import new_credential
from fleet.database.errors import AbsentError
from fleet.database.events import Event
from fleet.database.ingestion import Batch, Row
from fleet.database.latest import latest
from fleet.database.settings import DatabaseSettings, TelemetryStorageSettings
from fleet.keys import ask_nobody
from fleet.roles import DIRECTOR, SNAPSHOT, TIMESTAMP
from tests.simulators.databases import KINDS, url
from tests.simulators.fleet_repository import FleetRepository

DAY = timedelta(days=1)


class House:
    """A controller that serves nobody, and its chores; it leads. `uptime_s`: a clock that nobody sets."""

    def __init__(self, folder: Path, database_url: str) -> None:
        self.repository = FleetRepository(folder / "work")
        self.now = self.repository.now
        kept = TelemetryStorageSettings(age_limit_d=10.0, sweep_rows=10)
        config = FleetConfig(
            database=DatabaseSettings(url=database_url, telemetry=kept), chores=MaintenanceSettings(forget_after_d=7.0)
        )
        signers = [key for role in (DIRECTOR, SNAPSHOT, TIMESTAMP) for key in self.repository.keys[role]]
        self.folder = self.repository.workspace.folder
        self.control = Controller(Origin(self.folder, config, signers, lambda: self.now)).control
        fence = leader.candidate(self.control.database, "me").stand(self.now)
        self.uptime_s = 0.0
        self.chores = Maintenance(self.control, lambda: fence, self.careful())

    def careful(self, latest: datetime | None = None) -> MonotonicClock:
        return MonotonicClock(self.control.settings.chores, self.now, latest, lambda: self.uptime_s)

    def turn(self, after: timedelta = timedelta()) -> None:
        """So much later."""
        self.uptime_s += after.total_seconds()
        self.leap(after)

    def leap(self, by: timedelta) -> None:
        """At this moment, by a clock that was set."""
        self.now += by
        self.chores.turn(self.now)

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


@pytest.fixture(params=KINDS)
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    with url(request.param, tmp_path) as text:
        made = House(tmp_path, text)
        yield made
        made.control.database.close()


def number_of(found: x509.CertificateRevocationList) -> int:
    return found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number


# ---- records
def test_when_devices_were_seen_is_written_by_every_replica(house: House) -> None:
    house.certified("01", house.now + DAY)
    house.chores.fence = lambda: None
    house.control.seen.note("camera-1", house.now)
    house.turn()
    with house.control.database.read() as connection:
        assert devices.get(connection, "camera-1").seen == house.now
    house.control.seen.note("camera-1", house.now + timedelta(minutes=5))
    house.now += timedelta(minutes=5)
    house.chores.end()
    with house.control.database.read() as connection:
        assert devices.get(connection, "camera-1").seen == house.now


def rows(house: House, *, first: int, count: int) -> None:
    told = [Row(first + n, house.now, "k", {}) for n in range(count)]
    with house.control.database.write() as connection:
        telemetry.receive(connection, "camera-1", Batch("s", 1, told), house.now, TelemetryStorageSettings())


def kept_rows(house: House) -> int:
    with house.control.database.read() as connection:
        return sum(source.rows for source in telemetry.sources(connection, "camera-1"))


def test_old_telemetry_goes_all_of_it_in_one_turn(house: House) -> None:
    house.certified("01", house.now + DAY)
    rows(house, first=1, count=95)
    house.turn()
    assert kept_rows(house) == 95
    house.turn(9 * DAY)
    rows(house, first=96, count=5)
    house.turn(2 * DAY)
    assert kept_rows(house) == 5


def test_old_events_go_all_of_them_in_one_turn(house: House) -> None:
    house.certified("01", house.now + DAY)
    settings = house.control.database.settings
    with house.control.database.write() as connection:
        happened = [Event("camera-1", f"{number}", house.now, "boot") for number in range(25)]
        events.record(connection, happened, house.now, settings)
    house.turn(11 * DAY)
    with house.control.database.read() as connection:
        assert events.page(connection, settings) == ()


def test_a_sweep_that_takes_too_long_goes_on_in_the_next_turn(house: House) -> None:
    house.certified("01", house.now + DAY)
    rows(house, first=1, count=30)
    chores = replace(house.control.settings.chores, sweep_limit_s=1e-9)
    control = replace(house.control, settings=replace(house.control.settings, chores=chores))
    slow = Maintenance(control, house.chores.fence, house.careful())
    house.uptime_s += (11 * DAY).total_seconds()
    slow.turn(house.now + 11 * DAY)
    assert "sweep" not in slow.done
    house.leap(11 * DAY)
    assert ("sweep" in house.chores.done, kept_rows(house)) == (True, 0)


def test_what_expired_some_time_ago_is_forgotten(house: House) -> None:
    given: dict[str, Any] = {"now": house.now, "by": "me"}
    with house.control.database.write() as connection:
        for days in (1, 30):
            expires = house.now + days * DAY
            enrolment.create(connection, new_credential("e_"), DatabaseSettings(), expires=expires, **given)
            made = {"name": "t", "role": Role.VIEWER, "expires": expires, **given}
            tokens.create(connection, new_credential("t_"), DatabaseSettings(), **made)
    house.certified("01", house.now + DAY)
    house.certified("02", house.now + 30 * DAY)
    for after, left in ((DAY * 7, 2), (DAY * 2, 1), (DAY * 30, 0)):
        house.turn(after)
        with house.control.database.read() as connection:
            assert len(enrolment.page(connection, DatabaseSettings())) == left
            assert len(tokens.page(connection, DatabaseSettings())) == left
            kept = certificates.of_device(connection, "camera-1", DatabaseSettings())
            assert len(kept) == max(left, 1)  # the clock may be wrong: the newest stays


def forgotten(house: House) -> bool:
    """Of an enrolment token that holds for a day."""
    with house.control.database.read() as connection:
        return not enrolment.page(connection, DatabaseSettings())


def token_for_a_day(house: House) -> None:
    with house.control.database.write() as connection:
        said: dict[str, Any] = {"expires": house.now + DAY, "now": house.now, "by": "me"}
        enrolment.create(connection, new_credential("e_"), DatabaseSettings(), **said)


def test_a_clock_that_is_far_ahead_for_a_while_makes_nothing_old(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    house.certified("01", house.now + DAY)
    rows(house, first=1, count=5)
    token_for_a_day(house)
    house.turn()
    house.leap(4000 * DAY)
    for _ in range(5):
        house.turn(timedelta(minutes=10))
    house.leap(-4000 * DAY)
    house.turn(2 * DAY)
    assert (kept_rows(house), forgotten(house)) == (5, False)
    assert set(house.chores.done) >= {"sweep", "forget"}
    assert caplog.text.count("4000 days, 0:00:00 later than expected") == 1


def test_what_is_too_much_goes_whatever_the_clock_says(house: House) -> None:
    house.certified("01", house.now + DAY)
    rows(house, first=1, count=5)
    little = replace(house.control.database.settings.telemetry, device_limit_bytes=4)
    database = replace(house.control.database, settings=replace(house.control.database.settings, telemetry=little))
    house.chores = Maintenance(replace(house.control, database=database), house.chores.fence, house.careful())
    house.leap(4000 * DAY)
    assert kept_rows(house) == 2


def test_a_clock_that_was_set_right_is_believed_after_a_while(house: House) -> None:
    house.certified("01", house.now + DAY)
    rows(house, first=1, count=5)
    token_for_a_day(house)
    house.leap(40 * DAY)
    house.turn(timedelta(minutes=59))
    assert (kept_rows(house), forgotten(house)) == (5, False)
    house.turn(timedelta(minutes=1))
    assert kept_rows(house) == 0
    house.turn(timedelta(hours=1))
    assert forgotten(house)


def test_at_the_start_a_clock_is_held_against_what_was_recorded_last(house: House) -> None:
    """Another process, whose clock is ahead from the beginning."""
    with house.control.database.write() as connection:
        audit.append(connection, Deed("ann", "tests.look", ""), house.now)
    with house.control.database.read() as connection:
        last = latest(connection)
    assert last == house.now
    house.certified("01", house.now + DAY)
    rows(house, first=1, count=5)
    house.now += 400 * DAY
    house.chores = Maintenance(house.control, house.chores.fence, house.careful(last))
    house.turn(timedelta(minutes=30))
    assert kept_rows(house) == 5
    house.turn(timedelta(minutes=30))
    assert kept_rows(house) == 0


def test_uploads_expire_at_a_replica_that_does_not_lead(house: House) -> None:
    """The leader may be a replica that takes none ([drafts] accepted = false)."""
    digest = "a" * 64
    house.control.uploads.begin(digest, 4, "ci", house.now)
    house.chores.fence = lambda: None
    house.turn()
    house.turn(timedelta(hours=25))
    for _ in range(12):  # the clock is believed after a while
        house.turn(timedelta(minutes=10))
    with pytest.raises(AbsentError):
        house.control.uploads.find(digest)


# ---- the revocation list
def test_the_list_follows_what_is_revoked(house: House) -> None:
    house.certified("0a1b", house.now + 90 * DAY)
    house.turn()
    first = house.listed
    assert (len(first), first.is_signature_valid(house.control.authority.key.public_key())) == (0, True)
    with house.control.database.write() as connection:
        certificates.revoke(connection, "0a1b", "lost", house.now)
    house.turn(timedelta(minutes=1))
    second = house.listed
    entry = second.get_revoked_certificate_by_serial_number(0x0A1B)
    assert entry is not None
    assert number_of(second) > number_of(first)
    command = ["openssl", "crl", "-noout", "-CAfile", "ca.pem", "-in", "crl.pem"]
    done = subprocess.run(command, cwd=house.folder / "authority", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "verify OK\n")


def test_the_list_is_written_only_where_it_must_be(house: House) -> None:
    house.turn()
    before = house.listed
    house.turn(timedelta(hours=11))
    assert house.listed == before
    house.turn(timedelta(hours=1, minutes=1))
    after = house.listed
    assert number_of(after) > number_of(before)
    assert after.next_update_utc == (house.now + timedelta(hours=24)).replace(microsecond=0)


@pytest.mark.parametrize("damage", [b"", b"no list", b"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n"])
def test_a_list_that_is_none_is_replaced(house: House, damage: bytes) -> None:
    house.turn()
    (house.folder / "authority" / "crl.pem").write_bytes(damage)
    house.turn(timedelta(minutes=1))
    assert house.listed.is_signature_valid(house.control.authority.key.public_key())


def test_a_clock_that_went_back_writes_another_with_a_greater_number(house: House) -> None:
    house.turn()
    before = house.listed
    house.turn(-10 * DAY)
    assert number_of(house.listed) > number_of(before)
    assert house.listed.last_update_utc < before.last_update_utc


# ---- what is published
def test_timestamp_and_snapshot_are_renewed_in_time_and_drafts_wait(house: House) -> None:
    house.repository.draft_rotation("targets")
    drafts = {role: draft.metadata.to_bytes() for role, draft in house.repository.workspace.drafts().items()}
    assert drafts
    first = house.timestamp.signed
    house.turn(timedelta(hours=11))
    assert house.timestamp.signed.version == first.version
    house.turn(timedelta(hours=2))
    assert house.timestamp.signed.version == first.version + 1
    assert house.timestamp.signed.expires == (house.now + DAY).replace(microsecond=0)
    for _ in range(14):
        house.turn(timedelta(hours=12, minutes=1))
    snapshot = house.repository.published.snapshot
    assert snapshot
    assert snapshot.signed.expires > house.now + 3 * DAY
    assert {role: d.metadata.to_bytes() for role, d in house.repository.workspace.drafts().items()} == drafts
    assert house.failed == {}


def test_an_operator_who_works_in_the_folder_goes_first(house: House) -> None:
    version = house.timestamp.signed.version
    with house.repository.workspace.locked():
        house.turn(timedelta(hours=13))
        assert house.timestamp.signed.version == version
    house.turn(timedelta(seconds=5))
    assert house.timestamp.signed.version == version + 1
    assert house.failed == {}


def test_a_repository_that_cannot_be_read_is_said_and_the_rest_is_done(house: House) -> None:
    (house.repository.public / "metadata" / "1.root.json").write_text("{}")
    house.turn(timedelta(hours=13))
    assert house.failed == {f"{FAILED}publish": 1}
    assert set(house.chores.done) == {"seen", "revocations", "sweep", "forget", "archive", "uploads"}


def test_where_the_keys_are_not_somebody_else_renews(house: House) -> None:
    version = house.timestamp.signed.version
    chores = Maintenance(
        replace(house.control, keys=OnlineKeys(house.folder / "none", (), ask_nobody, 0.0)),
        house.chores.fence,
        house.careful(),
    )
    chores.turn(house.now + timedelta(hours=13))
    assert (house.failed, house.timestamp.signed.version) == ({}, version)


def test_where_nothing_is_published_nothing_is_renewed(house: House) -> None:
    for file in (house.repository.public / "metadata").iterdir():
        file.unlink()
    house.turn(timedelta(hours=13))
    assert house.failed == {}


# ---- when
def chore(
    name: str, told: list[str], work: Callable[[int, datetime], bool] | None = None, **said: Any
) -> MaintenanceJob:
    def tell(fence: int, now: datetime) -> bool:
        told.append(f"{name} {fence}")
        return work(fence, now) if work else True

    return MaintenanceJob(name, 60.0, tell, **said)


def fail(_fence: int, _now: datetime) -> bool:
    raise KeyError("a defect")


def test_each_has_its_time_and_a_defect_in_one_stops_no_other(house: House) -> None:
    told: list[str] = []
    made = (chore("a", told, fail), chore("b", told), chore("c", told, everywhere=True))
    chores = Maintenance(house.control, lambda: 7, house.careful(), made)
    heard = []
    for second in (0, 29, 30, 59, 60, 119, 120):
        told.clear()
        chores.turn(house.now + timedelta(seconds=second))
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
    assert house.failed == {f"{FAILED}a": 4}
    told.clear()
    chores.turn(house.now - DAY)
    assert told == ["a 7", "b 7", "c 0"]


def test_who_does_not_lead_does_only_what_everybody_does(house: House) -> None:
    told: list[str] = []
    made = (chore("b", told), chore("c", told, everywhere=True))
    chores = Maintenance(house.control, lambda: None, house.careful(), made)
    chores.turn(house.now)
    assert told == ["c 0"]


def test_who_leads_no_more_removes_nothing(house: House) -> None:
    house.certified("01", house.now + DAY)
    rows(house, first=1, count=5)
    chores = Maintenance(house.control, lambda: 99, house.careful())
    chores.turn(house.now + 30 * DAY)
    assert house.failed == {f"{FAILED}sweep": 1, f"{FAILED}forget": 1}
    assert kept_rows(house) == 5
