"""Rollouts while processes die. Nothing is lost, and no device is offered a release twice.

A scheduler is killed at any statement, a leader is killed while another replica runs, a database is gone for a while.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fleet.controller.control.settings import SchedulerSettings
from fleet.controller.database import leader
from fleet.controller.rollouts.decisions import Offer
from fleet.controller.rollouts.facts import Decided
from fleet.controller.rollouts.state import Status
from tests.simulators.databases import KINDS
from tests.simulators.postgres import FAST, own_cluster
from tests.simulators.rolled_fleet import SLOT, V2, RolledFleet, document
from tests.simulators.served_fleet import ServedFleet, roll_out, served_fleet, wait_until

ROOT = Path(__file__).parents[3]
QUICK = {"scheduler": {"tick_s": 0.2}, "database": {"lease_s": 3.0}}
NAMES = [f"d-{n}" for n in range(12)]
STEP = 12
LEFT = {
    "few": ((0, 0), (0, 5), (6, 5)),
    "parts": ((0, 0), (0, 100), (99, 100), (99, 150), (120, 150)),  # a wave is opened with the first part
}
"""Devices offered and returned after whole turns, to the end."""


def sweep(kind: str, cast: str, step: int) -> int:
    """Return at how many points the scheduler was killed; each time the next one goes on to the same end."""
    command = [sys.executable, "-m", "tests.simulators.rolled_killed", kind, cast, str(step)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    left = [f"{offered} offered, {returned} returned" for offered, returned in LEFT[cast]]
    assert found["left"].keys() <= set(left)
    assert found["ends"] == {left[-1]: sum(found["left"].values())}
    print(f"\n{kind}, {cast}: killed at {found['points']} points: {found['left']}")
    return int(found["points"])


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("kind", "cast"), [("sqlite", "few"), pytest.param("postgresql", "parts", marks=pytest.mark.long)]
)
def test_a_scheduler_that_is_killed_anywhere_leaves_all_or_nothing(kind: str, cast: str) -> None:
    assert sweep(kind, cast, STEP) > 5


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("cast", LEFT)
@pytest.mark.parametrize("kind", KINDS)
def test_a_scheduler_that_is_killed_at_each_statement_leaves_all_or_nothing(kind: str, cast: str) -> None:
    assert sweep(kind, cast, 1) > 50


class Watched(RolledFleet):
    """Fleet that runs in other processes, observed through the database; devices report through it, too."""

    def __init__(self, served: ServedFleet) -> None:
        super().__init__(served.database, served.repository, SchedulerSettings())
        self.served = served

    def enrol_all(self) -> None:
        """Enrol the devices of this test."""
        self.now = datetime.now(UTC)
        self.enrol(NAMES)

    def said(self, rollout: str, state: str = "committed") -> None:
        """Let every device that was offered it report this state."""
        self.now = datetime.now(UTC)
        self.report(rollout, self.members(rollout, "offered"), state)

    def started(self, replica: int, **changes: Any) -> str:
        """Start a rollout that the processes carry out."""
        with self.served.operator(replica) as operator:
            wait_until(lambda: operator.get("/v1/releases/acme/meter-reader/2").status_code == 200, 20)
            return roll_out(operator, document(**changes))

    def offered(self, rollout: str, number: int, limit_s: float = 30) -> None:
        """Wait until so many devices have an offer."""
        wait_until(lambda: len(self.members(rollout, "offered")) == number, limit_s)

    def leader(self) -> str:
        """Return the replica that decides."""
        with self.database.read() as connection:
            return leader.holder(connection)

    def whole(self, rollout: str) -> None:
        """Check that each device had it once, none twice, and that every decision follows."""
        decided = [fact.event.decision for fact in self.facts(rollout) if isinstance(fact.event, Decided)]
        assert Counter(d.device for d in decided if isinstance(d, Offer)) == Counter(NAMES)
        assert self.targets(NAMES) == dict.fromkeys(NAMES, V2)
        self.replayed(rollout)


@contextmanager
def place(kind: str, folder: Path) -> Iterator[str]:
    """Yield the URL of a database that replicas share."""
    if kind == "sqlite":
        yield f"sqlite:///{folder}/shared.sqlite"
        return
    with own_cluster(FAST) as server:
        yield server.url("postgres")


@pytest.mark.timeout(180)
@pytest.mark.parametrize("kind", [pytest.param("sqlite", marks=pytest.mark.long), "postgresql"])
def test_two_replicas_of_which_the_one_that_leads_is_killed(kind: str, tmp_path: Path) -> None:
    with (
        place(kind, tmp_path) as url,
        served_fleet(tmp_path / "fleet", database=url, replicas=2, tables=QUICK) as served,
    ):
        served.repository.add_release(SLOT, "2")
        watched = Watched(served)
        watched.enrol_all()
        served.replicas[0].start()
        wait_until(lambda: watched.leader() != "", 20)
        first = watched.leader()
        served.replicas[1].start()
        rollout = watched.started(1, waves=[{"count": 4}, {"percent": 100}])
        watched.offered(rollout, 4)
        served.replicas[0].end(signal.SIGKILL)
        watched.said(rollout)
        watched.offered(rollout, 8)
        assert watched.leader() not in {"", first}
        watched.said(rollout)
        wait_until(lambda: watched.status(rollout) is Status.FINISHED, 30)
        watched.whole(rollout)


@pytest.mark.timeout(180)
def test_a_database_that_is_gone_for_a_while_is_waited_for(tmp_path: Path) -> None:
    with (
        own_cluster(FAST) as server,
        served_fleet(tmp_path / "fleet", database=server.url("postgres"), tables=QUICK) as served,
    ):
        served.repository.add_release(SLOT, "2")
        watched = Watched(served)
        watched.enrol_all()
        served.replicas[0].start()
        rollout = watched.started(0, waves=[{"count": 4}, {"percent": 100}])
        watched.offered(rollout, 4)
        watched.said(rollout)
        server.halt()
        with served.operator() as operator:
            assert operator.get(f"/v1/rollouts/{rollout}").status_code == 503
            time.sleep(1.0)  # the scheduler has its turns meanwhile
            server.start()
            served.database.close()  # what this process knew of it
            wait_until(lambda: operator.get(f"/v1/rollouts/{rollout}").status_code == 200, 30)
        watched.offered(rollout, 8)
        watched.said(rollout)
        wait_until(lambda: watched.status(rollout) is Status.FINISHED, 30)
        watched.whole(rollout)
        assert served.replicas[0].end() == 0


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_a_controller_that_is_killed_again_and_again(kind: str, tmp_path: Path) -> None:
    """The kill comes at any moment, while a rollout goes through a wave for each device."""
    chance = random.Random(11)
    with place(kind, tmp_path) as url, served_fleet(tmp_path / "fleet", database=url, tables=QUICK) as served:
        served.repository.add_release(SLOT, "2")
        watched, replica = Watched(served), served.replicas[0]
        watched.enrol_all()
        replica.start()
        waves = [{"count": 1} for _ in NAMES[1:]] + [{"percent": 100}]
        rollout = watched.started(0, waves=waves)
        kills = 0
        while watched.status(rollout) is not Status.FINISHED:
            time.sleep(chance.uniform(0.0, 2.0))
            replica.end(signal.SIGKILL)
            kills += 1
            watched.said(rollout)
            replica.start()
        print(f"\n{kind}: killed {kills} times")
        watched.whole(rollout)
