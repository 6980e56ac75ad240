"""Database with rows in every table: devices during a rollout, and every kind of record."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

import sqlalchemy as sa

from fleet.controller.access import Role
from fleet.controller.audit import Deed
from fleet.controller.control.settings import SchedulerSettings
from fleet.controller.database import (
    alerts,
    assignments,
    audit,
    authority,
    certificates,
    desired,
    devices,
    diagnostics,
    enrolment,
    events,
    idempotency,
    telemetry,
    tokens,
)
from fleet.controller.database.alerts import Alert, AlertState
from fleet.controller.database.assignments import BASE, StoredAssignment
from fleet.controller.database.authority import KnownAuthority
from fleet.controller.database.certificates import Certificate
from fleet.controller.database.credentials import new_credential
from fleet.controller.database.engine import Connection, open_database
from fleet.controller.database.events import Event
from fleet.controller.database.idempotency import Key, StoredAnswer
from fleet.controller.database.ingestion import Batch, Row
from fleet.controller.database.place import DatabaseLocation
from fleet.controller.database.tables import metadata, numbers
from tests.simulators.fleet_repository import FleetRepository
from tests.simulators.rolled_fleet import BEGIN, SLOT, V1, RolledFleet

HOUR = timedelta(hours=1)
ODD = "ä'\\\n%\N{GRINNING FACE}"
"""Text that a copy through a text format could damage."""


@contextmanager
def full_fleet(place: DatabaseLocation, repository: FleetRepository, count: int = 10) -> Iterator[RolledFleet]:
    """Fill a database and yield it. `count` devices; a tenth of them have an offer of version 2 of `repository`."""
    database = open_database(place)
    try:
        fleet = RolledFleet(database, repository, SchedulerSettings())
        fleet.publish()
        fleet.enrol([f"camera-{number:05}" for number in range(count)], tags=["pilot"], running=V1, site="berlin")
        fleet.start()
        fleet.turn(1)
        fleet.turn(1)
        fleet.scheduler.resign()
        with database.write() as connection:
            for number in range(count):
                _own(connection, fleet, f"camera-{number:05}", number)
            _common(connection, fleet)
        yield fleet
    finally:
        database.close()


def empty_tables(place: DatabaseLocation) -> list[str]:
    """Return the names of tables without rows."""
    database = open_database(place)
    try:
        with database.read() as connection:
            return [
                table.name for table in metadata.sorted_tables if connection.execute(sa.select(table)).first() is None
            ]
    finally:
        database.close()


def _own(connection: Connection, fleet: RolledFleet, device: str, number: int) -> None:
    """Write the records of one device."""
    settings, now = fleet.database.settings, BEGIN + timedelta(microseconds=number)
    devices.touch(connection, {device: now})
    certificates.add(connection, Certificate(f"{number:x}", device, now, now + HOUR))
    signed = StoredAssignment(device, 2_000_000 + number, f"{number:064x}", b"\x00\xff" + device.encode(), now, now, 1)
    assignments.put(connection, signed)
    rows = [Row(sequence, now, "vitals", {"b": ODD, "a": 2**53 + sequence}) for sequence in (1, 2, 5)]
    telemetry.receive(connection, device, Batch("vitals", 1, rows), now, settings.telemetry)
    desired.remove(connection, [device], "attic")
    events.record(connection, [Event(device, "k", now, "rollback", SLOT, V1, "", {"why": ODD})], now, settings)


def _common(connection: Connection, fleet: RolledFleet) -> None:
    """Write the records of the fleet."""
    settings, now, device = fleet.database.settings, BEGIN, "camera-00001"
    connection.execute(sa.insert(numbers).values(name=BASE, value=1_000_000))
    given = {"expires": now + HOUR, "now": now}
    enrolment.create(connection, new_credential("efe_"), settings, by="ann", **given)
    token = tokens.create(connection, new_credential("eft_"), settings, name=ODD, role=Role.ADMIN, by="ann", **given)
    idempotency.add(connection, Key(token, "k"), StoredAnswer("r", b"\x00\xff"), now, limit_rows=1)
    authority.put(connection, KnownAuthority("certificate", now, "host"))
    alert = Alert("silent camera-00001", "silent", device, "", AlertState.OPEN, now, now, opened=now)
    alerts.put(connection, [alert, replace(alert, key="2", state=AlertState.CLOSED, closed=now)], tell=True)
    diagnostics.ask(connection, device, {"log": 1}, settings, by="ann", **given)
    audit.append(connection, Deed("ann", "devices.label", device, {"site": ODD}), now)
