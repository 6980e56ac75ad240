"""Time and memory that the move of a fleet to another database takes, in both directions.

`python -m tests.performance.fleet_move [DEVICES] [ROWS]`: devices in the middle of a rollout with so many rows of
telemetry each, on SQLite in a temporary folder and on a PostgreSQL of its own, both with every commit on the disk.
The machine and its calibration come first.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from datetime import timedelta
from pathlib import Path

from fleet.controller.database import migrate, telemetry
from fleet.controller.database.engine import Database, open_database
from fleet.controller.database.ingestion import Batch, Row
from fleet.controller.database.place import DatabaseLocation, read_place
from tests.performance.servers import calibration, machine
from tests.simulators.fleet_repository import FleetRepository
from tests.simulators.full_fleet import full_fleet
from tests.simulators.postgres import own_cluster
from tests.simulators.rolled_fleet import BEGIN, SLOT

ROOT = Path(__file__).parents[2]
VITALS = {"cpu_percent": 31.5, "memory_bytes": 1_234_567_890, "temperature_c": 51.0, "disk_free_bytes": 9_876_543_210}


def fill(place: DatabaseLocation, folder: Path, count: int, rows: int) -> None:
    """Make the fleet."""
    repository = FleetRepository(folder / "publisher")
    for version in ("1", "2"):
        repository.add_release(SLOT, version)
    with closing(open_database(place)) as database:
        migrate.upgrade(database)
    with full_fleet(place, repository, count) as fleet:
        tell(fleet.database, count, rows)


def tell(database: Database, count: int, rows: int) -> None:
    """Add telemetry, ten devices to a transaction."""
    told = [Row(sequence, BEGIN + timedelta(seconds=sequence), "row", VITALS) for sequence in range(1, rows + 1)]
    for first in range(0, count, 10):
        with database.write() as connection:
            for number in range(first, min(first + 10, count)):
                batch = Batch("statistics", 1, told)
                telemetry.receive(connection, f"camera-{number:05}", batch, BEGIN, database.settings.telemetry)


def move(folder: Path, old: str, new: str) -> None:
    """Move as an operator does, and print what it took."""
    (folder / "fleet.toml").write_text(f'[database]\nurl = "{old}"\n')
    command = [sys.executable, "-m", "fleet", "migrate", "--dir", str(folder), "--to", new]
    begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent_s = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    took = f"{time.perf_counter() - begin:7.1f} s, {spent_s:.1f} s of processor time without PostgreSQL's"
    print(f"{took}, at most {used.ru_maxrss / 1024:.0f} MiB: {done.stdout}", flush=True)


def main(count: int = 10_000, rows: int = 50) -> None:
    """Move SQLite to PostgreSQL, and back into another file."""
    print(f"{machine()}; calibration: {calibration()}", flush=True)
    with own_cluster() as cluster, tempfile.TemporaryDirectory() as name:
        folder, server = Path(name), cluster.url("postgres")
        first, second = f"sqlite:///{folder / 'fleet.sqlite'}", f"sqlite:///{folder / 'fleet-2.sqlite'}"
        begin = time.perf_counter()
        fill(read_place(first, folder), folder, count, rows)
        size = (folder / "fleet.sqlite").stat().st_size
        print(f"filled in {time.perf_counter() - begin:.0f} s, {size / 1e6:.0f} MB", flush=True)
        move(folder, first, server)
        move(folder, server, second)


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:3]))
