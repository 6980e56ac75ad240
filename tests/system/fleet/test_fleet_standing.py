"""A standing rollout from end to end: a controller as a process that is killed, devices over HTTP that come later."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from fleet.controller.rollouts.decisions import Offer, Retry
from fleet.controller.rollouts.facts import Decided
from fleet.controller.rollouts.replay import replay
from fleet.controller.rollouts.spec_form import read_spec
from tests.simulators.memory import memory_path
from tests.simulators.played_fleet import QUICK, Asked, Played, simulating
from tests.simulators.rolled_fleet import SLOT, document
from tests.simulators.served_fleet import ServedFleet, answered, roll_out, served_fleet, wait_until

__all__ = ["memory_path"]
LIMIT_S = 90.0
LENIENT, ANY = {"min_sample": 100, "max_failed_percent": 99}, {"min_sample": 1, "min_percent": 0.001}
SPEC = document(query="tag = pilot", standing=True, waves=[{"percent": 25}, {"percent": 100}])


class Standing:
    """Fleet with a standing rollout. `more` simulates further devices."""

    def __init__(self, fleet: ServedFleet, folder: Path, stack: ExitStack) -> None:
        self.fleet, self.folder, self.stack = fleet, folder, stack
        self.asked = Asked([fleet.replicas[0].url], fleet.ca_file, fleet.token, fleet.operator(), fleet.database)
        self.operator = self.asked.operator

    def more(self, prefix: str, count: int, **shares: float) -> Played:
        """Simulate devices with these names."""
        folder = self.folder / prefix
        folder.mkdir()
        (folder / "tokens").write_text("\n".join(self.fleet.tokens(count)))
        words = ("--tokens", str(folder / "tokens"), "--prefix", prefix, "--poll", "1", "--keep-alive")
        return self.stack.enter_context(simulating(self.asked, folder, count, shares, *words))

    def tag(self, query: str) -> None:
        answered(self.operator.post("/v1/devices/tags", json={"query": query, "add": ["pilot"]}))

    def say(self, rollout: str, verb: str) -> None:
        answered(self.operator.post(f"/v1/rollouts/{rollout}/{verb}"))

    def shown(self, rollout: str) -> dict[str, Any]:
        found: dict[str, Any] = answered(self.operator.get(f"/v1/rollouts/{rollout}"))
        return found

    def until(self, rollout: str, **wanted: Any) -> None:
        """Wait until the view of the rollout has these values."""
        wait_until(lambda: {name: self.shown(rollout)[name] for name in wanted} == wanted, LIMIT_S)

    def killed(self) -> None:
        """Kill the controller and start it again."""
        self.fleet.replicas[0].end(signal.SIGKILL)
        self.fleet.replicas[0].start()

    def offers(self, played: Played, rollout: str) -> list[str]:
        """Check that every decision follows from the facts. Return the devices that were offered the release."""
        facts = played.facts(rollout)
        assert replay(read_spec(self.shown(rollout)["spec"]), facts).difference is None
        decided = [fact.event.decision for fact in facts if isinstance(fact.event, Decided)]
        return sorted(one.device for one in decided if isinstance(one, Offer | Retry))


@contextmanager
def standing(folder: Path) -> Iterator[Standing]:
    with served_fleet(folder / "fleet", tables=QUICK | {"database": {"lease_s": 3.0}}) as fleet, ExitStack() as stack:
        for version in ("2", "3"):
            fleet.repository.add_release(SLOT, version)
        fleet.replicas[0].start()
        yield Standing(fleet, folder, stack)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_devices_that_come_later_are_served_whatever_happens_to_the_controller(memory_path: Path) -> None:
    with standing(memory_path) as fleet:
        played = fleet.more("a", 10)
        fleet.tag("id != a-00001?")
        rollout = roll_out(fleet.operator, SPEC)
        fleet.until(rollout, state="standing", round=1, served={"committed": 9})

        fleet.more("b", 5)  # a round in which the controller is killed, as it begins and when devices have committed
        fleet.tag("id = b-* or id = a-000010")
        wait_until(lambda: (view := fleet.shown(rollout))["round"] > 1 or view["wave"] is not None, LIMIT_S)
        fleet.killed()
        wait_until(lambda: (view := fleet.shown(rollout))["round"] > 1 or view["wave"] == 2, LIMIT_S)
        fleet.killed()
        fleet.until(rollout, state="standing", served={"committed": 15})

        fleet.say(rollout, "pause")
        fleet.more("c", 5, failing=100.0)
        fleet.tag("id = c-*")
        fleet.until(rollout, state="paused", waiting=5, halted=False)
        assert len(fleet.offers(played, rollout)) == 15
        fleet.say(rollout, "resume")
        fleet.until(rollout, state="paused", served={"committed": 15})  # a round that failed
        fleet.killed()
        assert "0 of its 2 devices committed: too few" in fleet.shown(rollout)["reason"]

        later = roll_out(fleet.operator, SPEC | {"target": "acme/meter-reader/3", "query": "id = a-* or id = b-*"})
        fleet.until(later, state="standing", served={"committed": 15})
        fleet.until(rollout, state="paused")  # devices of the round that failed are to run it still
        fleet.say(rollout, "resume")
        fleet.until(rollout, state="paused", wave=2)
        assert len(set(fleet.offers(played, rollout))) == len(fleet.offers(played, rollout)) == 20
        last = roll_out(fleet.operator, SPEC | {"target": "acme/meter-reader/3", "abort": LENIENT, "success": ANY})
        fleet.until(rollout, state="finished", reason=f"superseded by {last}")
        for one in (later, last):
            fleet.offers(played, one)
        assert answered(fleet.operator.get("/v1/audit/verify"))["ok"]
