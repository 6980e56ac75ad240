"""A whole fleet against `edge-fleet serve`: some of its devices lie, replay, flood, fail or fall silent."""

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
import pytest

from tests.simulators.served_fleet import ROOT, ServedFleet, answered, served_fleet, wait_until

SLOT = "meter-reader"
SHARES = {"lying": 1.0, "replaying": 1.0, "flooding": 0.5, "failing": 2.0, "silent": 1.0}
QUICK = {"director": {"poll_s": 1.0, "published_every_s": 0.2}, "scheduler": {"turn_s": 0.2}}
SPEC: dict[str, Any] = {
    "name": "meter-reader-2",
    "slot": SLOT,
    "target": f"acme/{SLOT}/2",
    "query": "all",
    "waves": [{"percent": 25}, {"percent": 100}],
    "soak_s": 0,
    "success": {"min_sample": 10, "min_percent": 80},
    "abort": {"min_sample": 20, "max_failed_percent": 90},
    "silence_s": 600,
}


@dataclass
class Played:
    """A fleet under way. `process` plays the devices."""

    fleet: ServedFleet
    operator: httpx.Client
    process: subprocess.Popen[str]

    def ended(self) -> dict[str, Any]:
        """What it found, once it ended by itself."""
        out, err = self.process.communicate(timeout=60)
        assert self.process.returncode in {0, 1}, err
        found: dict[str, Any] = json.loads(out)
        return found

    def rollout(self, rollout: str) -> dict[str, Any]:
        found: dict[str, Any] = answered(self.operator.get(f"/v1/rollouts/{rollout}"))
        return found

    def devices(self, rollout: str) -> list[dict[str, Any]]:
        """Every device of the rollout."""
        found: list[dict[str, Any]] = []
        after = ""
        while True:
            page = answered(self.operator.get(f"/v1/rollouts/{rollout}/devices", params={"after": after, "limit": 100}))
            found += page["items"]
            after = page["next"]
            if after is None:
                return found

    def states(self, rollout: str) -> Counter[str]:
        return Counter(device["state"] for device in self.devices(rollout))

    def count(self, what: str) -> int:
        """Rows of a table."""
        with self.fleet.database.read() as connection:
            return int(connection.exec_driver_sql(f"SELECT count(*) FROM {what}").scalar_one())  # noqa: S608


@contextmanager
def playing(fleet: ServedFleet, folder: Path, count: int, shares: Mapping[str, float]) -> Iterator[Played]:
    """That many devices, until all have committed that can; they are enrolled when this returns."""
    (folder / "tokens").write_text("\n".join(fleet.tokens(count)))
    replica = fleet.replicas[0]
    command = [sys.executable, "-m", "fleet", "simulate", "--devices", str(count), "--url", replica.url, "--json"]
    command += ["--ca", str(fleet.ca_file), "--tokens", str(folder / "tokens"), "--until-committed", "--seconds", "90"]
    command += ["--pid", str(replica.pid), "--database", str(fleet.repository.workspace.folder / "fleet.sqlite")]
    command += [word for name, share in shares.items() for word in (f"--{name}", str(share))]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        played = Played(fleet, fleet.operator(), process)
        wait_until(lambda: process.poll() is not None or played.count("devices WHERE profile <> ''") == count, 60)
        yield played
    finally:
        process.kill()
        process.communicate()


@pytest.mark.timeout(150)
def test_two_hundred_devices_some_of_them_hostile_are_rolled_out_to(tmp_path: Path) -> None:
    with served_fleet(tmp_path / "fleet", tables=QUICK) as fleet:
        fleet.repository.add_release(SLOT, "2")
        fleet.replicas[0].start()
        with playing(fleet, tmp_path, 200, SHARES) as played:
            rollout = fleet.roll_out(played.operator, SPEC)
            found = played.ended()
            assert (found["settled"], found["distrusted"]) == (True, 0), found
            assert found["states"] == {"committed": 194, "rolled_back": 4, "silent": 2}
            ends = {"committed": 192, "failed": 2, "rolled_back": 4, "offered": 2}  # of the silent nobody knows yet
            wait_until(lambda: played.states(rollout) == ends, 30)
            devices = played.devices(rollout)
            assert [wave["devices"] for wave in played.rollout(rollout)["waves"]] == [50, 150]
            assert {device["attempt"] for device in devices} == {1}
            assert len({device["device"] for device in devices}) == 200
            assert played.count("telemetry") == found["telemetry_rows"]
            assert played.count("events WHERE kind = 'rollback'") == 4
        assert fleet.replicas[0].end() == 0
        assert fleet.replicas[0].said() == ""


@pytest.mark.timeout(150)
def test_a_release_that_fails_on_many_devices_halts(tmp_path: Path) -> None:
    with served_fleet(tmp_path / "fleet", tables=QUICK) as fleet:
        fleet.repository.add_release(SLOT, "2")
        fleet.replicas[0].start()
        with playing(fleet, tmp_path, 40, {"failing": 50.0}) as played:
            abort = {"min_sample": 5, "max_failed_percent": 5}
            waves = [{"percent": 50}, {"percent": 100}]
            rollout = fleet.roll_out(played.operator, SPEC | {"abort": abort, "waves": waves})
            wait_until(lambda: played.rollout(rollout)["state"] == "paused", 60)
            seen = played.rollout(rollout)
            assert (seen["halted"], seen["wave"]) == (True, 1)
            assert seen["waiting"] >= 20  # the second half, and whose offer was withdrawn
            assert seen["evidence"]["failed"] >= 5
