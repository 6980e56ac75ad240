"""The guide's commands that read the database with sqlite-utils, carried out as they stand there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from fleet.controller.audit import Deed
from fleet.controller.control.rollouts_record import new_fact
from fleet.controller.database import audit, devices, events, rollouts, telemetry
from fleet.controller.database.devices import Running
from fleet.controller.database.events import Event
from fleet.controller.database.ingestion import Batch, Row
from fleet.controller.database.rollouts import StoredRollout
from fleet.controller.rollouts.facts import Reported
from tests.simulators.controller import RunningController, controlling

ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "fleet" / "README.md").read_text()
SECTION = re.split(r"\n##+ ", GUIDE.partition("### Digging in the database\n")[2])[0]
COMMANDS = [
    line
    for block in re.findall(r"```sh\n(.*?)```", SECTION.replace("\\\n", " "), re.DOTALL)
    for line in block.splitlines()
]
TARGET = "models/acme/reader/2/release"
SHOWN = {
    "--counts": r"device_running +1\n",
    "schema": r"CREATE TABLE \"?devices",
    "device_running": rf"{TARGET} +committed +1\n",
    "device_seen": r"silent +\d{4}-",
    "temperatures_c": r"hot +cpu +91\.5\n",
    "'reported'": r"r1 +too slow +1\n",
    "telemetry_sources group": r"hot +1 +\d+ +0\n",
    "from audit": r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,ann,devices\.revoke,hot\r?\n",
    "from events": r'"kind": "rollback", "document": \{"why": "heat"\}',
}
"""Patterns of answers, by what is in a command."""


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningController]:
    with controlling(tmp_path_factory.mktemp("controller")) as running:
        for name in ("hot", "silent"):
            running.enrolled(name)
        _fill(running)
        yield running


def _fill(running: RunningController) -> None:
    now, settings = running.clock(), running.control.database.settings
    rollout = StoredRollout("r1", "n", "reader", TARGET, "running", {"query": "all"}, now, "ann")
    with running.control.database.write() as connection:
        devices.report(connection, "hot", [Running("reader", TARGET, "ab" * 32, "v", "cpu", "committed", now)], "ok")
        devices.touch(connection, {"silent": now - timedelta(days=2), "hot": now})
        row = Row(1, now, "vitals", {"temperatures_c": {"cpu": 91.5}})
        telemetry.receive(connection, "hot", Batch("vitals", 1, [row]), now, settings.telemetry)
        events.record(connection, [Event("hot", "k", now, "rollback", document={"why": "heat"})], now, settings)
        rollouts.create(connection, rollout)
        reported = Reported("hot", "rolled_back", "ab" * 32, 1, "too slow")
        rollouts.record(connection, "r1", [new_fact(now, reported)], settings)
        audit.append(connection, Deed("ann", "devices.revoke", "hot"), now)


def test_every_command_of_the_guide_answers(controller, tmp_path: Path) -> None:
    assert len(COMMANDS) == len(SHOWN) + 1
    for line in COMMANDS:
        said = _done(line.replace("--dir .", f"--dir {controller.folder}"), tmp_path)
        for name, pattern in SHOWN.items():
            if name in line:
                assert re.search(pattern, said), (line, said)


def _done(line: str, folder: Path) -> str:
    """Run a line like a shell in `folder`, where the programs are those of this interpreter; return its output."""
    program, *words = shlex.split(line)
    module = {"edge-fleet": "fleet", "sqlite-utils": "sqlite_utils"}[program]
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, (line, done.stderr)
    return done.stdout
