"""Transactions of a controller, and a process that is killed at any point of one.

`python -m tests.simulators.database_deeds URL DEED` repeats it in children, killing each one statement later than the
previous one. It prints one JSON line: the number of points, and what was left each time.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path

from sqlalchemy import Connection

from fleet.controller.audit import Deed
from fleet.controller.database import (
    assignments,
    audit,
    certificates,
    desired,
    devices,
    enrolment,
    leader,
    migrate,
    rollouts,
    sweep,
    telemetry,
)
from fleet.controller.database.assignments import StoredAssignment
from fleet.controller.database.certificates import Certificate
from fleet.controller.database.credentials import read_credential
from fleet.controller.database.desired import Desired
from fleet.controller.database.engine import Database, open_database
from fleet.controller.database.ingestion import Batch, Row
from fleet.controller.database.place import read_place
from fleet.controller.database.rollouts import NewFact, StoredRollout
from fleet.controller.database.settings import DatabaseSettings, TelemetryStorageSettings
from tests.simulators.constants import settings_with
from tests.simulators.databases import NOW, content, shape
from tests.simulators.dying import die_at, died

SETTINGS = DatabaseSettings()
HOUR = timedelta(hours=1)
TARGET = "models/acme/meter-reader/2/release"
TOKEN = "efe_token"
POINTS_LIMIT = 400


def prepare(database: Database) -> None:
    """Create the rows that the transactions need."""
    with database.write() as connection:
        given = {"expires": NOW + HOUR, "now": NOW, "by": "anna"}
        enrolment.create(connection, read_credential(TOKEN), SETTINGS, **given)
        for number in range(5):
            devices.enrol(connection, f"camera-{number}", NOW)
        rollouts.create(connection, StoredRollout("r-1", "n", "meter", TARGET, "running", {}, NOW, "anna"))
        telemetry.receive(connection, "camera-0", Batch("metrics", 1, rows(1, 2, 5)), NOW, SETTINGS.telemetry)
        assignments.put(connection, StoredAssignment("camera-0", 4, "d", b"c", NOW, NOW + HOUR, 0))
        audit.append(connection, Deed("anna", "prepare", ""), NOW)
    leading = leader.candidate(database, "one")
    leading.stand(NOW)
    leading.resign()


def rows(*numbers: int) -> list[Row]:
    """Return telemetry rows."""
    return [Row(number, NOW, "vitals", {"n": number}) for number in numbers]


def enrol(connection: Connection) -> None:
    """Enrol a device with its token."""
    token = enrolment.redeem(connection, TOKEN, "new", NOW)
    devices.enrol(connection, "new", NOW)
    devices.label(connection, "new", token.tags | {"fresh"}, token.site)
    certificates.add(connection, Certificate("0a", "new", NOW, NOW + HOUR))
    audit.append(connection, Deed("new", "devices.enrol", "new"), NOW)


def offer(connection: Connection) -> None:
    """Open a wave as the leader."""
    leader.guard(connection, 1)
    names = [f"camera-{number}" for number in range(5)]
    rollouts.record(connection, "r-1", [NewFact(NOW, "offered", name) for name in names], SETTINGS, state="running")
    wanted = [Desired(name, "meter", TARGET, "a" * 64, 9, "r-1", NOW) for name in names]
    desired.put(connection, wanted, SETTINGS)


def sign(connection: Connection) -> None:
    """Store an assignment as the director."""
    version = assignments.next_version(connection, "camera-0")
    state = desired.of_device(connection, "camera-0")
    signed = StoredAssignment("camera-0", version, "e", b"x", NOW, NOW + HOUR, state.revision)
    assignments.put(connection, signed)


def receive(connection: Connection) -> None:
    """Receive telemetry, including a new boot."""
    telemetry.receive(connection, "camera-0", Batch("metrics", 1, rows(3, 4, 6), [(7, 9)]), NOW, SETTINGS.telemetry)
    telemetry.receive(
        connection,
        "camera-0",
        Batch("metrics", 2, rows(1)),
        NOW,
        settings_with(TelemetryStorageSettings(), boots_limit=1),
    )


def clear(connection: Connection) -> None:
    """Delete old telemetry."""
    sweep.sweep(connection, NOW + timedelta(days=99), SETTINGS.telemetry)


def revoke(connection: Connection) -> None:
    """Revoke a device."""
    devices.change_state(connection, "camera-0", "revoke", "stolen", NOW)
    certificates.revoke_all(connection, "camera-0", "stolen", NOW)
    devices.report(connection, "camera-1", [devices.Running("meter", TARGET, "a", "v", "npu", "s", NOW)], "ok")
    audit.append(connection, Deed("anna", "devices.revoke", "camera-0"), NOW)


DEEDS: dict[str, Callable[[Connection], None]] = {
    deed.__name__: deed for deed in (enrol, offer, sign, receive, clear, revoke)
}
MIGRATE = "migrate"


def state(place: str, deed: str) -> str:
    """Return the complete content."""
    with closing(open_database(read_place(place, Path()))) as database:
        return repr(sorted(shape(database)) if deed == MIGRATE else content(database))


def do(place: str, deed: str, until: int) -> None:
    """Perform a transaction in a child that dies at point `until`."""
    database = open_database(read_place(place, Path()))
    die_at(database, until)
    if deed == MIGRATE:
        migrate.upgrade(database)
    else:
        with database.write() as connection:
            DEEDS[deed](connection)


def main(place: str, deed: str) -> None:
    """Kill the process at every point, then let it complete."""
    before, left = state(place, deed), []
    step = 5 if deed == MIGRATE else 1  # a hundred similar statements
    while died(partial(do, place, deed, 1 + step * len(left))):
        left.append(state(place, deed) == before)
        if len(left) > POINTS_LIMIT:
            raise RuntimeError("it never ends")
    print(json.dumps({"points": len(left), "as_before": sum(left), "done": state(place, deed) != before}))


if __name__ == "__main__":
    main(*sys.argv[1:])
