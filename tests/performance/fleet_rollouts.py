"""Time of the scheduler's ticks with many devices, how long others wait for its writes, and what it remembers.

`python -m tests.performance.fleet_rollouts [DEVICES]`: on SQLite in a temporary folder and on a PostgreSQL of its own,
both with every commit on the disk. The release comes in waves of 10 % and 100 %; a second rollout is aborted with all
of its offers.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from sqlalchemy import event

from fleet.controller.control.settings import SchedulerSettings
from fleet.controller.database import migrate, rollouts
from fleet.controller.database.engine import Database, open_database
from fleet.controller.database.place import DatabaseLocation, read_place
from fleet.controller.rollouts.facts import Aborted
from fleet.controller.rollouts.state import Status
from tests.simulators.fleet_repository import FleetRepository
from tests.simulators.postgres import own_cluster
from tests.simulators.rolled_fleet import RolledFleet

CHUNK = 1_000


class Longest:
    """Longest transaction that writes; on SQLite no other one can meanwhile. `cpu_s`: CPU time of this process."""

    def __init__(self, database: Database) -> None:
        self._begin = self._begin_cpu = self.s = self.cpu_s = 0.0
        event.listen(database.writes, "begin", self._begun)
        event.listen(database.writes, "commit", self._ended)

    def _begun(self, _: object) -> None:
        self._begin, self._begin_cpu = time.perf_counter(), time.process_time()

    def _ended(self, _: object) -> None:
        self.s = max(self.s, time.perf_counter() - self._begin)
        self.cpu_s = max(self.cpu_s, time.process_time() - self._begin_cpu)


@contextmanager
def timed(what: str, longest: Longest) -> Iterator[None]:
    """Print a row."""
    longest.s, longest.cpu_s, begin, cpu = 0.0, 0.0, time.perf_counter(), time.process_time()
    yield
    wall, used = time.perf_counter() - begin, time.process_time() - cpu
    held = f"{longest.s:9.2f} s, {longest.cpu_s:.2f} s CPU longest transaction"
    print(f"  {what:44}{wall:7.2f} s{used:9.2f} s CPU{held}", flush=True)


def run(place: DatabaseLocation, folder: Path, count: int) -> None:
    """Measure one database."""
    print(place.url.get_backend_name())
    with closing(open_database(place)) as database:
        migrate.upgrade(database)
        fleet = RolledFleet(database, FleetRepository(folder / "publisher"), SchedulerSettings())
        fleet.publish("1", "2")
        names = [f"device-{number:07}" for number in range(count)]
        for first in range(0, count, CHUNK):
            fleet.enrol(names[first : first + CHUNK])
        measure(fleet, Longest(database))
        fleet.scheduler.resign()
    print(f"  largest memory of the process{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:20.0f} MiB")


def measure(fleet: RolledFleet, longest: Longest) -> None:
    """Measure a rollout to its end, and one that is aborted."""
    rollout = fleet.start()
    with timed("first turns: all join, 10 % are offered it", longest):
        fleet.turn()
        fleet.turn(1)
    with timed("a turn in which nothing happens", longest):
        fleet.turn(1)
    fleet.report(rollout, fleet.members(rollout, "offered"), "committed")
    with timed("turns: the others are offered it", longest):
        turns(fleet, lambda: not waiting(fleet, rollout))
    fleet.report(rollout, fleet.members(rollout, "offered"), "committed")
    with timed("last turn", longest):
        fleet.turn(1)
    with timed("another replica reads the record", longest):
        fleet.known(rollout)
    with timed("replay", longest):
        print(f"  {fleet.replayed(rollout):,} decisions follow")
    again = fleet.start(waves=[{"percent": 100}])
    turns(fleet, lambda: not waiting(fleet, again))
    fleet.say(again, Aborted("the bench"))
    with timed("turns: all offers are withdrawn", longest):
        turns(fleet, lambda: told(fleet, again))


def waiting(fleet: RolledFleet, rollout: str) -> bool:
    """Return whether a device has no offer yet."""
    with fleet.database.read() as connection:
        known = fleet.rolling.states.read(connection, rollout, fleet.database.settings)
    fleet.rolling.states.keep(known)
    return not known.state.members or any(member.waiting for member in known.state.members.values())


def told(fleet: RolledFleet, rollout: str) -> bool:
    """Return whether all devices of an aborted rollout were told so."""
    with fleet.database.read() as connection:
        return rollouts.get(connection, rollout).state == Status.ABORTED.value


def turns(fleet: RolledFleet, over: Callable[[], bool]) -> None:
    """Run ticks until it is over."""
    while True:
        fleet.turn(1)
        if over():
            return


def main(count: int = 10_000) -> None:
    """Measure both databases."""
    with tempfile.TemporaryDirectory() as folder:
        run(read_place("", Path(folder)), Path(folder), count)
    with own_cluster() as cluster, tempfile.TemporaryDirectory() as folder:
        run(read_place(cluster.url("postgres"), Path()), Path(folder), count)


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:2]))
