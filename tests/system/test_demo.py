"""`make demo` as a newcomer runs it, less the installation: its exit code is what it promises."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(150)
def test_demo_answers_right_and_leaves_nothing_running(tmp_path: Path) -> None:
    """Everything is detected, chosen, answered and printed; exit 0."""
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/sbin:/usr/bin:/bin", "HOME": str(tmp_path), "COLUMNS": "120"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "packaging" / "demo")],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=140,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "360 of 360" in done.stdout
    assert "40 of 40" in done.stdout
    assert re.search(r"Profile\s+\S+", done.stdout)
    assert re.search(r"meter-reader: \S+ serves", done.stdout)
    assert not _children_of_the_demo()


def _children_of_the_demo() -> list[str]:
    import psutil

    lines = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    return [line for line in lines if "edge-gateway-demo-" in line]


@pytest.mark.parametrize(("answered", "right"), [(360, 340), (359, 359)], ids=["too many wrong", "one lost"])
def test_demo_is_not_content_with_less(monkeypatch: pytest.MonkeyPatch, answered: int, right: int) -> None:
    """A lost answer, or too many wrong ones, and the demo ends with 1."""
    monkeypatch.syspath_prepend(str(ROOT / "packaging" / "demo"))
    from camera import Played
    from processes import Cost
    from report import Summary

    good = Played(sent=40, answered=40, right=40)
    cost = Cost(cpu_s=1.0, memory_bytes=1)
    assert Summary(Played(360, 360, 358), good, cost, cost, 0.1, 1).good
    assert not Summary(Played(360, answered, right), good, cost, cost, 0.1, 1).good
