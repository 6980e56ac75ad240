"""Rollouts on a real database and a signed repository, without HTTP.

The test calls the scheduler's ticks, sets the clock, and sends the devices' reports.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from fleet.controller.access import Role
from fleet.controller.control import rollouts as words
from fleet.controller.control.catalogue import verified_releases
from fleet.controller.control.rollouts import Rollouts, Word
from fleet.controller.control.rollouts_record import RecordedRollout, States, add, fact_of
from fleet.controller.control.scheduler import Scheduler
from fleet.controller.control.settings import SchedulerSettings
from fleet.controller.database import audit, desired, devices, releases, rollouts
from fleet.controller.database.desired import Desired
from fleet.controller.database.devices import Running
from fleet.controller.database.engine import Database
from fleet.controller.database.rows import chunks
from fleet.controller.database.settings import DatabaseSettings
from fleet.controller.rollouts.facts import Approved, Event, Fact, Reported, Started
from fleet.controller.rollouts.replay import replay
from fleet.controller.rollouts.spec_form import spec_digest
from fleet.controller.rollouts.state import Member, Status
from tests.simulators.constants import settings_with
from tests.simulators.databases import ALIKE, made
from tests.simulators.fleet_repository import FleetRepository

BEGIN = datetime(2027, 3, 1, 12, tzinfo=timezone.utc)
LOOK_S = 60.0
"""Period of ticks that leaves no gap."""
OPERATOR, SLOT = Role.OPERATOR.value, "meter-reader"
V1, V2, V3 = (f"models/acme/meter-reader/{version}/release" for version in (1, 2, 3))


def document(**changes: Any) -> dict[str, Any]:
    """Return a specification: 10 %, then all, without soak time."""
    return {
        "name": "readers-2",
        "slot": SLOT,
        "target": "acme/meter-reader/2",
        "query": "all",
        "waves": [{"percent": 10}, {"percent": 100}],
        "soak_s": 0,
        "success": {"min_sample": 1, "min_percent": 90},
        "abort": {"min_sample": 3, "max_failed_percent": 10},
        "silence_s": 3600,
        "deadline_s": 86_400,
        **changes,
    }


class RolledFleet:
    """Fleet for rollout tests. `now` is the clock of all parts; `scheduler` is this replica's."""

    def __init__(self, database: Database, repository: FleetRepository, settings: SchedulerSettings) -> None:
        self.database, self.repository, self.now = database, repository, BEGIN
        self.rolling = Rollouts(database, repository.workspace, settings, States())
        self.scheduler = self.replica("one")

    def replica(self, holder: str) -> Scheduler:
        """Return another scheduler on the same database, with separate memory."""
        rolling = Rollouts(self.database, self.repository.workspace, self.rolling.settings, States())
        return Scheduler(rolling, holder, lambda: self.now)

    def enrol(self, names: Iterable[str], *, tags: Sequence[str] = (), running: str = "", **changes: Any) -> list[str]:
        """Enrol devices with inventory and first report."""
        enrolled = list(names)
        with self.database.write() as connection:
            for name in enrolled:
                devices.enrol(connection, name, self.now)
                devices.label(connection, name, tags, changes.get("site", ""))
                accelerators = changes.get("accelerators", ("cpu",))
                devices.describe(connection, name, profile="p", accelerators=accelerators, inventory={})
                slots = [Running(SLOT, running, "a" * 64, "v", "cpu", "committed", self.now)] if running else []
                devices.report(connection, name, slots, "in-step")
        return enrolled

    def publish(self, *versions: str, floor: str | None = None) -> None:
        """Publish releases of the model and make them known to the controller."""
        for version in versions:
            self.repository.add_release(SLOT, version, floor=floor)
        found = [*verified_releases(self.repository.published, self.repository.workspace, {})]
        with self.database.write() as connection:
            releases.synchronise(connection, found, self.now, self.database.settings)

    def draft(self, **changes: Any) -> str:
        """Create a rollout. Return its id."""
        with self.database.read() as connection:
            spec = words.drafted(connection, document(**changes))
        return words.create(self.rolling, spec, "ann", self.now).stored.id

    def start(self, **changes: Any) -> str:
        """Create, approve and start a rollout. Return its id."""
        rollout = self.draft(**changes)
        self.say(rollout, Approved("ann", spec_digest(self.known(rollout).spec)))
        self.say(rollout, Started("ann"))
        return rollout

    def say(self, rollout: str, event: Event) -> RecordedRollout:
        """Record an operator's command."""
        return words.say(
            self.rolling, rollout, Word(event, "rollouts.test", "ann", {}), self.now, permit=lambda _: None
        )

    def turn(self, seconds: float = 0, scheduler: Scheduler | None = None) -> None:
        """Advance the clock and run one tick of the scheduler."""
        self.now += timedelta(seconds=seconds)
        (scheduler or self.scheduler).tick(self.now)

    def attend(self, seconds: float) -> None:
        """Advance the clock with ticks often enough to leave no gap."""
        while seconds > 0:
            step = min(seconds, LOOK_S)
            self.turn(step)
            seconds -= step

    def report(self, rollout: str, names: Iterable[str], state: str, **changes: Any) -> None:
        """Report a state of devices for their present attempt."""
        settings = self.database.settings
        with self.database.write() as connection:
            known = self.rolling.states.read(connection, rollout, settings, lock=True)
            members = [known.state.members[name] for name in names]
            release = known.spec.target.sha256
            said = [replace(Reported(m.device, state, release, m.attempt), **changes) for m in members]
            for some in chunks(said, settings.facts_limit_rows):
                known = add(connection, known, some, self.now, settings)

    def known(self, rollout: str) -> RecordedRollout:
        """Return the rollout's state, folded from its facts."""
        with self.database.read() as connection:
            return States().read(connection, rollout, self.database.settings)

    def status(self, rollout: str) -> Status:
        """Return the rollout's status."""
        return self.known(rollout).state.status

    def members(self, rollout: str, state: str) -> list[str]:
        """Return the devices in a state."""
        return sorted(m.device for m in self.known(rollout).state.members.values() if _in(m, state))

    def facts(self, rollout: str) -> list[Fact]:
        """Return all facts of a rollout."""
        found: list[Fact] = []
        with self.database.read() as connection:
            while page := rollouts.facts_of(connection, rollout, 10_000, after=found[-1].seq if found else 0):
                found += map(fact_of, page)
        return found

    def desired(self, names: Sequence[str]) -> dict[str, Desired]:
        """Return what devices are to run in the slot."""
        with self.database.read() as connection:
            return desired.of_devices(connection, names, SLOT)

    def targets(self, names: Sequence[str]) -> dict[str, str]:
        """Return the target paths that devices are to run."""
        return {name: wanted.target for name, wanted in self.desired(names).items()}

    def deeds(self, subject: str) -> list[str]:
        """Return the audit log's actions on a subject, in order."""
        with self.database.read() as connection:
            found = audit.page(connection, self.database.settings, subject=subject, limit_rows=1000)
        return [entry.deed.action for entry in found][::-1]

    def replayed(self, rollout: str) -> int:
        """Check that every recorded decision follows from the facts. Return the number of decisions."""
        result = replay(self.known(rollout).spec, self.facts(rollout))
        assert result.difference is None, result.difference
        return result.decisions


def _in(member: Member, state: str) -> bool:
    return member.state.value == state and member.present


@contextmanager
def rolling(
    kind: str, folder: Path, settings: SchedulerSettings | None = None, **changes: Any
) -> Iterator[RolledFleet]:
    """Yield a fleet without devices, with versions 1 and 2 published. `changes`: of the database's settings."""
    repository = FleetRepository(folder / "publisher")
    with made(kind, folder, settings_with(DatabaseSettings(), **changes)) as database:
        fleet = RolledFleet(database, repository, settings or SchedulerSettings())
        fleet.publish("1", "2")
        yield fleet


@pytest.fixture(params=ALIKE)
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RolledFleet]:
    """Yield a fleet on each kind of database."""
    with rolling(request.param, tmp_path) as made_fleet:
        yield made_fleet
