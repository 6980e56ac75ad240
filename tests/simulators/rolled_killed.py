"""A scheduler that is killed at any statement of a tick, and what the next one finds.

`python -m tests.simulators.rolled_killed KIND CAST STEP`: ticks withdraw the offers of one rollout, let devices join
another and offer its release, until nothing is due. They run in a child on a copy of the database that is killed at
every STEP-th point. Each time another replica takes over. Prints one JSON line.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

from fleet.controller.audit import Break
from fleet.controller.control.scheduler import Scheduler
from fleet.controller.control.settings import SchedulerSettings
from fleet.controller.database import audit
from fleet.controller.database.engine import open_database
from fleet.controller.database.place import read_place
from fleet.controller.rollouts.decisions import PART_LOW, Offer, RollBack
from fleet.controller.rollouts.facts import Aborted, Decided, Fact, Unattended
from tests.simulators.constants import settings_with
from tests.simulators.databases import copied, url
from tests.simulators.dying import die_at, died
from tests.simulators.fleet_repository import FleetRepository
from tests.simulators.rolled_fleet import RolledFleet

ABSENCE = timedelta(seconds=180)
"""Time between two leaders: longer than a lease, and long enough for a recorded gap (`gap_s`)."""
POINTS_LIMIT = 1000


@dataclass(frozen=True, slots=True)
class Cast:
    """Numbers of devices that return a release, that are in the other rollout, and that are in its first wave."""

    ending: int
    beginning: int
    first: int
    settings: SchedulerSettings


CASTS = {
    "few": Cast(5, 10, 6, settings_with(SchedulerSettings(), devices_per_tick=4)),
    "parts": Cast(
        PART_LOW + 50, 2 * PART_LOW, PART_LOW + 20, settings_with(SchedulerSettings(), decisions_per_tick=PART_LOW)
    ),
}
"""Sizes of the scenario. With "parts", each rollout takes two ticks."""


class Scene:
    """Database with two rollouts. `text`: its URL; `ending`: an aborted rollout, `beginning`: a started one."""

    def __init__(self, kind: str, text: str, repository: FleetRepository, cast: Cast) -> None:
        self.kind, self.text, self.repository, self.cast = kind, text, repository, cast
        self.old = [f"a-{number}" for number in range(cast.ending)]
        self.new = [f"b-{number}" for number in range(cast.beginning)]
        with self.opened(text) as fleet:
            fleet.publish("1", "2")
            fleet.enrol(self.old, tags=["a"])
            self.ending = fleet.start(target="acme/meter-reader/1", query="tag = a", waves=[{"percent": 100}])
            _turn(fleet, fleet.scheduler)
            fleet.say(self.ending, Aborted("ann"))
            fleet.enrol(self.new, tags=["b"])
            self.beginning = fleet.start(query="tag = b", waves=[{"count": cast.first}, {"percent": 100}])
            self.now = fleet.now + ABSENCE
            fleet.scheduler.resign()

    @contextmanager
    def opened(self, text: str, now: datetime | None = None) -> Iterator[RolledFleet]:
        """Open a replica on the database."""
        with closing(open_database(read_place(text, Path()))) as database:
            fleet = RolledFleet(database, self.repository, self.cast.settings)
            fleet.now = now or fleet.now
            yield fleet

    def killed(self, text: str, until: int) -> bool:
        """Run the ticks in a child; return whether it was killed."""

        def turn() -> None:
            with self.opened(text, self.now) as fleet:
                die_at(fleet.database, until)
                _turn(fleet, fleet.scheduler)

        return died(turn)

    def left(self, text: str) -> str:
        """Check that the child's result is consistent, and describe it."""
        with self.opened(text, self.now) as fleet:
            offered, returned = self._whole(fleet)
            return f"{offered} offered, {returned} returned"

    def gone_on(self, text: str) -> str:
        """Let the next leader continue, and describe the result."""
        with self.opened(text, self.now + ABSENCE) as fleet:
            _turn(fleet, fleet.replica("the next"))
            offered, returned = self._whole(fleet)
            return f"{offered} offered, {returned} returned"

    def _whole(self, fleet: RolledFleet) -> tuple[int, int]:
        facts = fleet.facts(self.beginning)
        assert _disjoint(facts), "time was given back twice"
        decided = [f.event.decision for f in facts if isinstance(f.event, Decided)]
        offers = Counter(decision.device for decision in decided if isinstance(decision, Offer))
        assert set(offers.values()) <= {1}, "a device was offered it twice"
        wanted = {name for name, one in fleet.desired(self.new).items() if one.rollout == self.beginning}
        assert wanted == set(offers), "what was decided is not what is desired"
        ended = [f.event.decision for f in fleet.facts(self.ending) if isinstance(f.event, Decided)]
        back = {decision.device for decision in ended if isinstance(decision, RollBack)}
        assert fleet.desired(self.old).keys() == set(self.old) - back
        for rollout in (self.ending, self.beginning):
            fleet.replayed(rollout)
        with fleet.database.read() as connection:
            assert not isinstance(audit.verify(connection, fleet.database.settings), Break)
        return len(offers), len(back)


def _disjoint(facts: Sequence[Fact]) -> bool:
    gaps = [(fact.event.since, fact.at) for fact in facts if isinstance(fact.event, Unattended)]
    return all(end <= since for (_, end), (since, _) in pairwise(gaps))


def _turn(fleet: RolledFleet, scheduler: Scheduler) -> None:
    """Run ticks until nothing is due."""
    due = scheduler._rolling.due
    while True:
        due.clear()
        fleet.turn(scheduler=scheduler)
        if not due.is_set():
            return


def main(kind: str, cast: str, step: str) -> None:
    """Kill the child at every point, and let another replica continue each time."""
    with tempfile.TemporaryDirectory() as folder, url(kind, Path(folder)) as text:
        scene = Scene(kind, text, FleetRepository(Path(folder) / "publisher"), CASTS[cast])
        left, ends = Counter[str](), Counter[str]()
        for until in range(1, POINTS_LIMIT, int(step)):
            with copied(scene.kind, scene.text) as copy:
                died = scene.killed(copy, until)
                left[scene.left(copy)] += 1
                ends[scene.gone_on(copy)] += 1
            if not died:
                print(json.dumps({"points": sum(left.values()) - 1, "left": left, "ends": ends}))
                return
        raise RuntimeError("it never ends")


if __name__ == "__main__":
    main(*sys.argv[1:])
