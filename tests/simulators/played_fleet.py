"""`edge-fleet simulate` as a process against a served fleet, and what the controller makes of what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.simulators.served_fleet import ROOT, ServedFleet, answered, wait_until

PAGE_ROWS = 1000


@dataclass
class Played:
    """A fleet under way. `process` plays the devices; `operator` asks the first replica that runs."""

    fleet: ServedFleet
    operator: httpx.Client
    process: subprocess.Popen[str]

    def ended(self, limit_s: float) -> dict[str, Any]:
        """What it found, once it ended by itself."""
        out, err = self.process.communicate(timeout=limit_s)
        assert self.process.returncode in {0, 1}, err
        found: dict[str, Any] = json.loads(out)
        return found

    def rollout(self, rollout: str) -> dict[str, Any]:
        """As an operator sees it."""
        found: dict[str, Any] = answered(self.operator.get(f"/v1/rollouts/{rollout}"))
        return found

    def devices(self, rollout: str) -> list[dict[str, Any]]:
        """Every device of the rollout."""
        found: list[dict[str, Any]] = []
        after = ""
        while after is not None:
            wanted = {"after": after, "limit": PAGE_ROWS}
            page = answered(self.operator.get(f"/v1/rollouts/{rollout}/devices", params=wanted))
            found += page["items"]
            after = page["next"]
        return found

    def states(self, rollout: str) -> Counter[str]:
        """How many devices are in which state."""
        counts: Counter[str] = Counter()
        for wave in self.rollout(rollout)["waves"]:
            counts.update(wave["states"])
        return counts

    def count(self, what: str) -> int:
        """Rows of a table."""
        with self.fleet.database.read() as connection:
            return int(connection.exec_driver_sql(f"SELECT count(*) FROM {what}").scalar_one())  # noqa: S608


@contextmanager
def playing(
    fleet: ServedFleet, folder: Path, count: int, shares: Mapping[str, float], *words: str, limit_s: float = 60.0
) -> Iterator[Played]:
    """That many devices, until all have committed that can; they are enrolled when this returns. Their tokens are made
    beforehand, where `words` do not say otherwise."""
    (folder / "operator").write_text(fleet.token)
    running = [replica for replica in fleet.replicas if replica.process]
    command = [sys.executable, "-m", "fleet", "simulate", "--devices", str(count), "--json", "--until-committed"]
    command += ["--ca", str(fleet.ca_file)]
    if "--operator" not in words:
        (folder / "tokens").write_text("\n".join(fleet.tokens(count)))
        command += ["--tokens", str(folder / "tokens")]
    command += ["--url", *(replica.url for replica in running)]
    if len(running) == 1:  # one that ends meanwhile cannot be asked what it took
        command += ["--pid", str(running[0].pid)]
    if fleet.database.place.file:
        command += ["--database", str(fleet.database.place.file)]
    command += [word for name, share in shares.items() for word in (f"--{name}", str(share))]
    process = subprocess.Popen([*command, *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        played = Played(fleet, fleet.operator(), process)
        wait_until(lambda: process.poll() is not None or played.count("devices WHERE profile <> ''") == count, limit_s)
        yield played
    finally:
        process.kill()
        process.communicate()
