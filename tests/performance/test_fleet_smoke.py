"""The fleet's measurements cannot rot: each step runs once, briefly, and says something. No figure is judged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.performance.fleet_steps import STEPS
from tests.simulators.daemon import ROOT


@pytest.mark.long
@pytest.mark.timeout(120)
def test_a_short_pass_measures_every_step(tmp_path: Path) -> None:
    words = ["--devices", "12", "--passes", "1", "--seconds", "0.2", "--json", str(tmp_path / "found.json")]
    command = [sys.executable, "-m", "tests.performance.fleet", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["calibration"] in done.stdout
    assert set(found["steps"]) == {step.name for step in STEPS}
    for step in STEPS:
        assert found["steps"][step.name]["answers"][str(step.status)] >= 1
        assert found["steps"][step.name]["p50_ms"] <= found["steps"][step.name]["p99_ms"]
        assert step.name in done.stdout
    assert found["enrolment"]["answers"]["enrol"] == {"200": 12}
    assert (found["rollout"]["committed"], found["rollout"]["distrusted"]) == (12, 0)
    assert found["sizes"]["row_bytes"] > 100
