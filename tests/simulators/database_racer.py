"""A replica in a process of its own, driven by lines: `NAME ARGUMENT…` in, its result out.

Imports take most of a second, so `borrowed` reuses the processes for several tests: `use URL NAME` opens a database,
`leave` closes it.
"""

from __future__ import annotations

import atexit
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from pathlib import Path

from fleet.controller.audit import Deed
from fleet.controller.database import assignments, audit, devices, enrolment, leader, rollouts, telemetry
from fleet.controller.database.assignments import StoredAssignment
from fleet.controller.database.engine import Database, open_database
from fleet.controller.database.errors import DatabaseError
from fleet.controller.database.ingestion import Batch, Row
from fleet.controller.database.place import read_place
from fleet.controller.database.rollouts import NewFact
from fleet.controller.database.settings import DatabaseSettings
from tests.simulators.constants import settings_with
from tests.simulators.databases import NOW

SETTINGS = settings_with(DatabaseSettings(), lease_s=0.5)
HOUR = timedelta(hours=1)


class Racer:
    """The parent's side of the replica."""

    def __init__(self) -> None:
        command = [sys.executable, "-W", "error", "-m", "tests.simulators.database_racer"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def tell(self, line: str) -> None:
        """Send a command; `said` waits for the result."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def said(self) -> str:
        """Return the result."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, line: str) -> str:
        """Send a command and return its result."""
        self.tell(line)
        return self.said()

    def end(self) -> None:
        """Kill it by SIGKILL."""
        self.process.kill()
        self.process.communicate()


_idle: list[Racer] = []


@contextmanager
def borrowed(place: str, *names: str) -> Iterator[list[Racer]]:
    """Yield one racer per name, with `place` open. A racer that a test killed or left busy is not reused."""
    racers = [_idle.pop() if _idle else Racer() for _ in names]
    try:
        for racer, name in zip(racers, names, strict=True):
            racer.tell(f"use {place} {name}")
        assert [racer.said() for racer in racers] == ["ready"] * len(racers)
        yield racers
    finally:
        for racer in racers:
            _give_back(racer)


def _give_back(racer: Racer) -> None:
    if racer.process.poll() is None and racer.ask("leave") == "left":
        _idle.append(racer)
    else:
        racer.end()


@atexit.register
def _end_all() -> None:
    for racer in _idle:
        racer.end()


class Replica:
    """The child's side. Every method returns a word."""

    def __init__(self, database: Database, name: str) -> None:
        self.database, self.name = database, name
        self.candidate = leader.candidate(database, name)

    def redeem(self, text: str) -> str:
        """Use an enrolment token."""
        with self.database.write() as connection:
            enrolment.redeem(connection, text, self.name, NOW)
        return "won"

    def put(self, device: str, version: str) -> str:
        """Store an assignment that was signed before."""
        with self.database.write() as connection:
            assignments.put(connection, self._signed(device, int(version)))
        return "won"

    def sign(self, device: str) -> str:
        """Sign the next assignment, as the director does. Return the version."""
        with self.database.write() as connection:
            version = assignments.next_version(connection, device)
            assignments.put(connection, self._signed(device, version))
        return str(version)

    def record(self, rollout: str, expected: str) -> str:
        """Record a fact after the last known one."""
        with self.database.write() as connection:
            rollouts.record(connection, rollout, [NewFact(NOW, self.name)], SETTINGS, expected=int(expected))
        return "won"

    def add(self, rollout: str) -> str:
        """Record a fact at the end. Return its number."""
        with self.database.write() as connection:
            return str(rollouts.record(connection, rollout, [NewFact(NOW, self.name)], SETTINGS))

    def note(self, subject: str) -> str:
        """Append to the audit log. Return the sequence number."""
        with self.database.write() as connection:
            return str(audit.append(connection, Deed(self.name, "note", subject), NOW).sequence)

    def send(self, device: str, boot: str) -> str:
        """Store the first three telemetry rows of a boot. Return how many were new."""
        rows = [Row(seq, NOW, "vitals", {}) for seq in (1, 2, 3)]
        with self.database.write() as connection:
            batch = Batch("metrics", int(boot), rows)
            return str(telemetry.receive(connection, device, batch, NOW, SETTINGS.telemetry).stored)

    def stand(self, seconds: str) -> str:
        """Stand for leader at a time. Return the fencing token."""
        return str(self.candidate.stand(NOW + timedelta(seconds=float(seconds))))

    def resign(self) -> str:
        """Resign as leader."""
        self.candidate.resign()
        return "resigned"

    def decide(self, fence: str, device: str) -> str:
        """Write as a leader with this fencing token."""
        with self.database.write() as connection:
            leader.guard(connection, int(fence))
            devices.label(connection, device, [self.name], "")
        return "won"

    def _signed(self, device: str, version: int) -> StoredAssignment:
        return StoredAssignment(device, version, self.name, b"", NOW, NOW + HOUR, 0)


def main() -> None:
    """Serve until the parent has ended."""
    with ExitStack() as opened:
        replica: Replica | None = None
        for line in sys.stdin:
            word, *words = line.split()
            if word == "use":
                opened.close()
                database = opened.enter_context(closing(open_database(read_place(words[0], Path()), SETTINGS)))
                replica = Replica(database, words[1])
                print("ready", flush=True)
            elif word == "leave":
                opened.close()
                print("left", flush=True)
            else:
                print(_did(getattr(replica, word), words), flush=True)


def _did(method: Callable[..., str], words: list[str]) -> str:
    try:
        return method(*words)
    except DatabaseError as refused:
        return type(refused).__name__


if __name__ == "__main__":
    main()
