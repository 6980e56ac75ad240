"""Polls, telemetry rows, signed assignments and offers that the controller's database takes in a second.

`python -m tests.performance.fleet_database [DEVICES]`: on SQLite in a temporary folder and on a PostgreSQL of its own,
both with every commit on the disk.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fleet.controller.audit import Deed
from fleet.controller.database import assignments, audit, certificates, desired, devices, migrate, polling, telemetry
from fleet.controller.database.assignments import StoredAssignment
from fleet.controller.database.certificates import Certificate
from fleet.controller.database.desired import Desired
from fleet.controller.database.engine import Database, open_database
from fleet.controller.database.ingestion import Batch, Row
from fleet.controller.database.place import DatabaseLocation, read_place
from fleet.controller.database.settings import DatabaseSettings
from tests.simulators.postgres import own_cluster

NOW = datetime(2026, 3, 1, tzinfo=UTC)
DAY = timedelta(days=1)
SETTINGS = DatabaseSettings()
TARGET = "models/acme/meter-reader/2/release"
MEASURE_S = 3.0
BATCH_ROWS = 100
WAVE = 1_000


def fill(database: Database, count: int) -> None:
    """Store devices as they are after a rollout."""
    migrate.upgrade(database)
    for first in range(0, count, WAVE):
        with database.write() as connection:
            for number in range(first, min(first + WAVE, count)):
                name = f"device-{number:06}"
                devices.enrol(connection, name, NOW)
                certificates.add(connection, Certificate(f"{number:040x}", name, NOW, NOW + 90 * DAY))
                content = b"x" * 1500
                assignments.put(connection, StoredAssignment(name, 1, "a" * 64, content, NOW, NOW + DAY, 1))


def rate(action: Callable[[int], object], threads: int = 1) -> float:
    """Return the calls of `action` in a second, by so many threads; each call gets another number."""
    done, end = [0] * threads, time.perf_counter() + MEASURE_S

    def work(mine: int) -> None:
        while time.perf_counter() < end:
            action(done[mine] * threads + mine)
            done[mine] += 1

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(done) / MEASURE_S


def measure(database: Database, count: int) -> None:
    """Print a line for each."""

    def poll(number: int) -> None:
        with database.glance() as connection:
            assert polling.polled(connection, f"{number * 7919 % count:040x}", NOW)

    def send(number: int) -> None:
        rows = [Row(seq, NOW, "vitals", {"temperature_c": 61.5, "rss_bytes": 123456789, "n": seq}) for seq in sequence]
        boot = number // count + 1
        with database.write() as connection:
            batch = Batch("vitals", boot, rows)
            telemetry.receive(connection, f"device-{number % count:06}", batch, NOW, SETTINGS.telemetry)

    def sign(number: int) -> None:
        name = f"device-{number % count:06}"
        with database.write() as connection:
            version = assignments.next_version(connection, name)
            assignments.put(connection, StoredAssignment(name, version, "a" * 64, b"x" * 1500, NOW, NOW + DAY, 1))

    def offer(number: int) -> None:
        names = [f"device-{(number * WAVE + each) % count:06}" for each in range(WAVE)]
        with database.write() as connection:
            desired.put(connection, [Desired(n, "meter", TARGET, "a" * 64, 900, "r-1", NOW) for n in names], SETTINGS)

    def touch(number: int) -> None:
        with database.write() as connection:
            at = NOW + timedelta(seconds=number)
            devices.touch(connection, {f"device-{each:06}": at for each in range(min(WAVE, count))})

    def note(number: int) -> None:
        with database.write() as connection:
            audit.append(connection, Deed("anna", "devices.label", f"device-{number}"), NOW)

    sequence = range(1, BATCH_ROWS + 1)
    for threads in (1, 4):
        print(f"  polls/s, {threads} threads{rate(poll, threads):28,.0f}")
        print(
            f"  telemetry rows/s in batches of {BATCH_ROWS}, {threads} threads{rate(send, threads) * BATCH_ROWS:8,.0f}"
        )
        print(f"  assignments signed and kept/s, {threads} threads{rate(sign, threads):10,.0f}")
    print(f"  devices offered a release/s, {WAVE} at once{rate(offer) * WAVE:12,.0f}")
    print(f"  last seen written/s, {WAVE} at once{rate(touch) * WAVE:19,.0f}")
    print(f"  audit entries/s{rate(note):34,.0f}", flush=True)


def bytes_per_row(database: Database) -> None:
    """Print the size of a row of telemetry, with all that is around it."""
    with database.read() as connection:
        count = connection.exec_driver_sql("SELECT count(*) FROM telemetry").scalar_one()
        if connection.dialect.name == "sqlite":
            size = connection.exec_driver_sql(
                "SELECT sum(pgsize) FROM dbstat WHERE name LIKE '%telemetry%'"
            ).scalar_one()
        else:
            size = connection.exec_driver_sql("SELECT pg_total_relation_size('telemetry')").scalar_one()
    print(f"  bytes per telemetry row{size / count:26,.0f}  ({count:,} rows)", flush=True)


def run(place: DatabaseLocation, count: int) -> None:
    """Measure one database."""
    print(place.url.get_backend_name())
    with closing(open_database(place)) as database:
        begin = time.perf_counter()
        fill(database, count)
        print(f"  enrolled/s, {WAVE} at once{count / (time.perf_counter() - begin):27,.0f}")
        measure(database, count)
        bytes_per_row(database)


def main(count: int = 10_000) -> None:
    """Measure both databases."""
    with tempfile.TemporaryDirectory() as folder:
        run(read_place("", Path(folder)), count)
    with own_cluster() as cluster:
        run(read_place(cluster.url("postgres"), Path()), count)


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:2]))
