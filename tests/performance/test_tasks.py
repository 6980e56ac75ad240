"""The benches of tasks run once, briefly: sparse detections are those of the code by hand. No figure is judged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulators.daemon import ROOT
from tests.simulators.images_made import drawn_jpeg
from tests.simulators.yolov8n import yolov8n


def rows_of(*bench: str) -> list[list[str]]:
    """Run a bench for one round. Return the cells of its tables."""
    command = (sys.executable, "-m", *bench, "--rounds", "1")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split("|")[1:-1] for line in done.stdout.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in cells] for cells in lines]


def test_every_line_of_the_bench() -> None:
    rows = [cells[0] for cells in rows_of("tests.performance.tasks")[2:]]
    assert len(rows) == len(set(rows)) == 15
    assert all(
        any(kind in row for row in rows) for kind in ("sparse", "dense", "keypoints", "oriented-boxes", "21 classes")
    )


@pytest.mark.long
def test_costs_of_a_whole_detection_and_of_decoders(tmp_path: Path) -> None:
    photograph, detector = tmp_path / "photograph.jpg", tmp_path / "detector.onnx"
    photograph.write_bytes(drawn_jpeg(320, 240))
    detector.write_bytes(yolov8n(64, 2)[0].SerializeToString())
    files = ("--jpeg", str(photograph), "--detector", str(detector))
    headers = {"JPEG", "raw frame", "---"}
    rows = [cells for cells in rows_of("tests.performance.task_cost", *files) if cells[0] not in headers]
    steps, frames, decoders = ([cells for cells in rows if len(cells) == width] for width in (3, 4, 5))
    assert len(steps) == 3 * 6
    assert [cells[0] for cells in frames] == ["nv12"] * 3 + ["i420"] * 3 + ["yuyv"] * 3
    assert all(0 < float(cells[3]) < 1 for cells in frames if "gateway" in cells[1])
    assert len(decoders) == (3 + 1) * 5
    assert [cells[3:] for cells in decoders if "Pillow, whole" in cells[1]] == [["0.00", "0.000"]] * 4
    assert all(0 < float(cells[3]) < 8 for cells in decoders if "Pillow, scaled" in cells[1])
