"""The bench cannot rot: each of its tools runs once, briefly, and says something. No figure is judged."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.performance import seams
from tests.performance.servers import SERVERS
from tests.simulators.daemon import ROOT

pytestmark = pytest.mark.timeout(300)
BENCH = (sys.executable, "-m", "tests.performance.bench")


def bench(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*BENCH, *options], cwd=ROOT, capture_output=True, text=True, check=False)


def measured(*patterns: str) -> list[dict[str, Any]]:
    """Return the rows of one short pass over what matches."""
    only = [word for pattern in patterns for word in ("--only", pattern)]
    for seconds in (1.0, 4.0, 16.0):  # on a busy machine a second may pass without an answer
        done = bench("--json", "--seconds", str(seconds), "--passes", "1", *only)
        if "no request was answered" not in done.stderr:
            break
    assert done.returncode == 0, done.stdout + done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)["rows"]
    return rows


QUICK = (
    "tiny model: session",
    "tiny model: 8*",
    "*client*: 8 connections, own",
    "requests that differ*, own",
    "streams*: 1 stream, 8 in flight, own",
    "REST*: JSON, 8 connections, own",
    "frames of 150*corner: *mem*, own",
)


@pytest.mark.long
@pytest.mark.timeout(1200)  # two C++ programs are built
def test_a_short_pass_uses_every_server_and_every_tool() -> None:
    rows = measured(*QUICK)
    assert len(rows) == 15
    assert {row["server"] for row in rows} == {"bare loop", *SERVERS}
    for row in rows:
        assert row["median"]["requests"] >= 1
        assert 0 < row["median"]["p50_us"] <= row["median"]["p99_us"]
        assert row["median"]["cpu_us"] > 1


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_everything_there_is_to_measure() -> None:
    rows = measured("*")
    listed = bench("--list").stdout.splitlines()
    mixed = sum(name.startswith("mixed") for name in listed)
    assert len(rows) == len(listed) + mixed  # two rows each


def test_a_pattern_that_matches_nothing_is_said() -> None:
    done = bench("--only", "no such thing")
    assert done.returncode == 1
    assert "nothing matches no such thing; --list" in done.stderr


def test_a_tool_that_fails_ends_the_run_with_its_words(tmp_path: Path) -> None:
    (tmp_path / "h2load").write_text("#!/bin/sh\necho the reason why\nexit 7\n")
    (tmp_path / "h2load").chmod(0o755)
    only = ("--only", "tiny model: 8*", "--servers", "grpcio.aio", "--seconds", "0.1")
    path = f"PATH={tmp_path}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    done = subprocess.run(["/usr/bin/env", path, *BENCH, *only], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "exit code 7" in done.stderr
    assert "the reason why" in done.stderr


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", seams.CASES)
def test_no_message_is_lost_or_doubled_between_two_lives(case: str) -> None:
    *_, doubled, lost, _ = asyncio.run(seams.measure(case, 5.0))
    assert (doubled, lost) == ("0", "0")
