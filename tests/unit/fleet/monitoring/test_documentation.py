"""The guide of monitoring names every rule and every maintenance job, and shows messages as they are sent."""

from __future__ import annotations

import json
import re
from pathlib import Path

from fleet.controller.control.maintenance import all_jobs
from fleet.controller.monitoring.message import alert_document
from fleet.controller.monitoring.readings import RULES
from tests.simulators.controller import controlling
from tests.unit.fleet.monitoring.test_message import ALERT

GUIDE = (Path(__file__).parents[4] / "fleet/controller/monitoring" / "README.md").read_text()


def test_every_rule() -> None:
    assert set(re.findall(r"^\| `([a-z]+)` \| (?!every|the leader)", GUIDE, re.MULTILINE)) == set(RULES)


def test_every_job(tmp_path: Path) -> None:
    with controlling(tmp_path) as fleet:
        found = {(job.name, "every replica" if job.everywhere else "the leader") for job in all_jobs(fleet.control)}
    assert set(re.findall(r"^\| `([a-z]+)` \| (every replica|the leader) \|", GUIDE, re.MULTILINE)) == found


def test_the_message() -> None:
    shown = json.loads(re.findall(r"```json\n(.*?)```", GUIDE, re.DOTALL)[0])
    assert list(shown["data"]) == list(alert_document(ALERT))
    assert set(shown) == {"type", "timestamp", "data"}
