"""The bench of tasks runs once, briefly: sparse detections are those of the code by hand. No figure is judged."""

from __future__ import annotations

import subprocess
import sys

from tests.simulators.daemon import ROOT


def test_every_line_of_the_bench() -> None:
    bench = (sys.executable, "-m", "tests.performance.tasks", "--rounds", "1")
    done = subprocess.run(bench, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split("|")[1].strip() for line in done.stdout.splitlines()[2:]]
    assert len(rows) == len(set(rows)) == 15
    assert all(
        any(kind in row for row in rows) for kind in ("sparse", "dense", "keypoints", "oriented-boxes", "21 classes")
    )
