"""A fleet moves to PostgreSQL in the middle of a rollout while its devices go on asking.

No controller works during the move: devices find none, and ask again. No request that is answered is refused.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fleet.controller.database.engine import open_database
from fleet.controller.database.place import read_place
from tests.simulators.played_fleet import QUICK, playing
from tests.simulators.postgres import own_cluster
from tests.simulators.rolled_fleet import SLOT, document
from tests.simulators.served_fleet import ROOT, ServedFleet, roll_out, served_fleet, wait_until

MANY = 10_000
SLOW = {"director": {"poll_s": 240.0, "published_every_s": 1.0}}
SPEC = document(
    waves=[{"percent": 50}, {"percent": 100}],
    success={"min_sample": 10, "min_percent": 90},
    abort={"min_sample": 20, "max_failed_percent": 50},
    silence_s=86_400,
)
TAKEN = {"enrol 200", "assignment 200", "assignment 304", "telemetry 200", "inventory 204", "repository 200"}
"""Requests, with the status of the answer."""
NO_NEWER_ROOT = "repository 404"


def moved(fleet: ServedFleet, url: str) -> dict[str, Any]:
    """Move as an operator does: stop, migrate, name the new database, start. Return what `migrate` says."""
    (replica,), folder = fleet.replicas, fleet.repository.workspace.folder
    assert replica.end() == 0
    fleet.database.close()
    command = [sys.executable, "-m", "fleet", "migrate", "--dir", str(folder), "--to", url, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    settings = folder / "fleet.toml"
    settings.write_text(settings.read_text().replace('url = ""', f'url = "{url}"'))
    replica.start()
    fleet.database = open_database(read_place(url, folder), fleet.database.settings)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("devices", "tables", "limit_s"),
    [
        pytest.param(30, QUICK, 240.0, marks=[pytest.mark.long, pytest.mark.timeout(600)]),
        pytest.param(MANY, SLOW, 3_000.0, marks=[pytest.mark.long, pytest.mark.timeout(9_000)]),
    ],
)
def test_devices_go_on_through_a_move(tmp_path: Path, devices: int, tables: Mapping[str, Any], limit_s: float) -> None:
    with own_cluster() as server, served_fleet(tmp_path / "fleet", tables=tables) as fleet:
        fleet.repository.add_release(SLOT, "2")
        fleet.replicas[0].start()
        with playing(fleet, tmp_path, devices, {}, "--seconds", str(limit_s), limit_s=limit_s) as played:
            rollout = roll_out(played.operator, SPEC)
            wait_until(lambda: played.states(rollout)["committed"] > devices // 5, limit_s)
            began = time.monotonic()
            said = moved(fleet, server.url("postgres"))
            print(f"\nno controller worked for {time.monotonic() - began:.0f} s: {said}")
            played.asked.database = fleet.database
            assert played.rollout(rollout)["state"] == "running"
            found = played.ended(limit_s)
        print(json.dumps(found, indent=1))
        assert (found["settled"], found["distrusted"], found["committed"]) == (True, 0, devices)
        assert found["answers"]["enrol"] == {"200": devices}
        assert {f"{what} {status}" for what, each in found["answers"].items() for status in each} <= {
            *TAKEN,
            NO_NEWER_ROOT,
        }
        wait_until(lambda: played.rollout(rollout)["state"] == "finished", 60)
        played.check_rollout(rollout, devices)
        played.check_rows(found)
        fleet.database.close()
