"""`python -m tests.load run` as a process against a controller, and checks of what the controller recorded."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from fleet.controller.database.engine import Database
from fleet.controller.rollouts.decisions import MarkSilent, Offer, Retry
from fleet.controller.rollouts.facts import Decided, Fact, Reported
from fleet.controller.rollouts.facts_form import read_fact
from fleet.controller.rollouts.replay import replay
from fleet.controller.rollouts.spec_form import read_spec
from tests.simulators.served_fleet import ROOT, ServedFleet, answered, wait_until

POLL_S, TURN_S = 3.0, 0.2
QUICK = {
    "director": {"poll_s": POLL_S, "published_every_s": 0.2},
    "scheduler": {"tick_s": TURN_S},
    "ingestion": {"rows_per_s": 500.0, "rows_burst": 5_000.0},
}
"""Tables of `fleet.toml` with short periods."""
PAGE_ROWS = 1000
STORED = """
    SELECT sources.device, sources.stream, sources.boot_epoch, sources.contiguous, sources.lost, sources.rows,
        count(telemetry.seq), max(telemetry.seq)
    FROM telemetry_sources AS sources LEFT JOIN telemetry ON telemetry.source = sources.id GROUP BY sources.id
"""


@dataclass
class Asked:
    """A controller and access to it. `cost`: its resource use, by names of the result."""

    urls: Sequence[str]
    ca_file: Path
    token: str
    operator: httpx.Client
    database: Database
    cost: Callable[[], dict[str, float]] = dict


@dataclass
class Played:
    """A running simulation. `process` simulates the devices; `operator` is a client of the first running replica."""

    asked: Asked
    operator: httpx.Client
    process: subprocess.Popen[str]
    told: Path

    def ended(self, limit_s: float) -> dict[str, Any]:
        """Return the result and its cost once the simulation has ended."""
        out, err = self.process.communicate(timeout=limit_s)
        assert self.process.returncode in {0, 1}, err
        found: dict[str, Any] = json.loads(out)
        return found | self.asked.cost()

    def stopped(self, limit_s: float) -> dict[str, Any]:
        """Stop it with Ctrl-C, and return the same as `ended`."""
        self.process.send_signal(signal.SIGINT)
        return self.ended(limit_s)

    def rollout(self, rollout: str) -> dict[str, Any]:
        """Return a rollout as an operator sees it."""
        found: dict[str, Any] = answered(self.operator.get(f"/v1/rollouts/{rollout}"))
        return found

    def devices(self, rollout: str) -> list[dict[str, Any]]:
        """Return all devices of the rollout."""
        return list(self._pages(f"/v1/rollouts/{rollout}/devices"))

    def facts(self, rollout: str) -> list[Fact]:
        """Return all facts of the rollout."""
        return [read_fact(document) for document in self._pages(f"/v1/rollouts/{rollout}/facts")]

    def states(self, rollout: str) -> Counter[str]:
        """Count the devices by state."""
        counts: Counter[str] = Counter()
        for wave in self.rollout(rollout)["waves"]:
            counts.update(wave["states"])
        return counts

    def count(self, what: str) -> int:
        """Return the number of rows of a table."""
        return _count(self.asked.database, what)

    # ---- invariants --------------------------------------------------------------------------------------------------
    def check_rollout(self, rollout: str, count: int) -> None:
        """Check a rollout's record.

        Each device had one offer and committed at most once, and devices marked silent are silent. Every decision must
        follow from the facts, and the audit log must be unbroken.
        """
        facts, devices = self.facts(rollout), self.devices(rollout)
        decided = [fact.event.decision for fact in facts if isinstance(fact.event, Decided)]
        offers = Counter(one.device for one in decided if isinstance(one, Offer | Retry))
        assert (len(offers), set(offers.values())) == (count, {1})
        assert {one["device"]: one["attempt"] for one in devices} == offers
        silent = {one.device for one in decided if isinstance(one, MarkSilent)}
        assert silent == {one["device"] for one in devices if one["state"] == "silent"}
        spec = read_spec(self.rollout(rollout)["spec"])
        told = (fact.event for fact in facts if isinstance(fact.event, Reported))
        commits = Counter(one.device for one in told if (one.state, one.release) == ("committed", spec.target.sha256))
        assert commits == {one["device"]: 1 for one in devices if one["state"] == "committed"}
        assert replay(spec, facts).difference is None
        assert answered(self.operator.get("/v1/audit/verify"))["ok"]

    def check_rows(self, found: Mapping[str, Any]) -> int:
        """Check each stream: acknowledged rows are stored, each once, and no row is stored that was not made.

        Return how many stored rows have an acknowledgement that the device did not receive.
        """
        told = {
            (t["device"], t["stream"], t["boot_epoch"]): t for t in map(json.loads, self.told.read_text().splitlines())
        }
        stored = {source[:3]: source[3:] for source in self._sources()}
        assert stored.keys() <= told.keys()
        for key, one in told.items():
            contiguous, lost, rows, counted, last = stored.get(key, (0, 0, 0, 0, None))
            assert one["acknowledged"] <= contiguous <= one["made"], key
            assert contiguous - lost == rows == counted, key
            assert (last or 0) == contiguous, key
        acknowledged = sum(one["acknowledged"] for one in told.values())
        assert acknowledged == found["telemetry_rows"]
        return self.count("telemetry") - acknowledged

    def _sources(self) -> list[tuple[Any, ...]]:
        with self.asked.database.read() as connection:
            return [tuple(row) for row in connection.exec_driver_sql(STORED)]

    def _pages(self, path: str) -> Iterator[Any]:
        after: Any = None
        while True:
            wanted = {"limit": PAGE_ROWS} | ({"after": after} if after is not None else {})
            page = answered(self.operator.get(path, params=wanted))
            yield from page["items"]
            after = page["next"]
            if after is None:
                return


@contextmanager
def playing(
    fleet: ServedFleet, folder: Path, count: int, shares: Mapping[str, float], *words: str, limit_s: float = 300.0
) -> Iterator[Played]:
    """Simulate `count` devices until all that can have committed. Yield once they are enrolled.

    Their tokens are made before, unless `words` have "--operator".
    """
    urls = [replica.url for replica in fleet.replicas if replica.process]
    if "--operator" not in words:
        (folder / "tokens").write_text("\n".join(fleet.tokens(count)))
        words = (*words, "--tokens", str(folder / "tokens"))

    began_s = fleet.cpu_s

    def cost() -> dict[str, float]:
        spent_s = fleet.cpu_s - began_s
        per_device = {"cpu_s": round(spent_s, 2), "cpu_ms_per_device": round(1000.0 * spent_s / count, 2)}
        return {**per_device, "database_bytes": fleet.database_bytes}

    asked = Asked(urls, fleet.ca_file, fleet.token, fleet.operator(), fleet.database, cost)
    with simulating(asked, folder, count, shares, "--until-committed", *words, limit_s=limit_s) as played:
        yield played


@contextmanager
def simulating(
    asked: Asked,
    folder: Path,
    count: int,
    shares: Mapping[str, float],
    *words: str,
    limit_s: float = 300.0,
    program: str = "tests.load",
) -> Iterator[Played]:
    """Run a simulation with the options `words`. Yield once all devices are enrolled."""
    (folder / "operator").write_text(asked.token)
    command = [sys.executable, "-m", program, "run", "--devices", str(count), "--json", "--url", *asked.urls]
    command += ["--ca", str(asked.ca_file), "--reported", str(folder / "told")]
    command += [word for name, share in shares.items() for word in (f"--{name}", str(share))]
    known = "devices WHERE profile <> ''"
    before = _count(asked.database, known)
    process = subprocess.Popen([*command, *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        played = Played(asked, asked.operator, process, folder / "told")
        wait_until(lambda: process.poll() is not None or played.count(known) == before + count, limit_s)
        yield played
    finally:
        process.kill()
        process.communicate()


def _count(database: Database, what: str) -> int:
    with database.read() as connection:
        return int(connection.exec_driver_sql(f"SELECT count(*) FROM {what}").scalar_one())  # noqa: S608
