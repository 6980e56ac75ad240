"""Power failure at a chosen system call of a scenario: the run before it, and the next boot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

KINDS = ("ext4", pytest.param("xfs", marks=pytest.mark.long), "none")
"""Kinds of machine; every one meets whole updates (test_power_cut, test_disk_full), xfs other work in `test-long`."""
ROOT = Path(__file__).parents[2]
MEMORY = Path("/dev/shm")
"""Disk images are in memory if possible: then fsync is fast and deterministic."""


@dataclass(frozen=True)
class Life:
    """Result of a run.

    `calls`: names of system calls; `claims`: claims of the scenario; `found`: what a boot finds. `after`: what a boot
    finds after another run; `fault`: errors of the file system's check; `error`: class of the error with which the
    scenario ended on a full disk.
    """

    calls: tuple[str, ...]
    claims: tuple[str, ...]
    found: Any
    after: Any = None
    fault: str = ""
    error: str = ""


class Power:
    """A machine with a disk on which `scenario` (a module, see `power_machine.Scenario`) is prepared."""

    def __init__(self, process: subprocess.Popen[str], kind: str) -> None:
        self._process = process
        self.kind = kind
        """"ext4" or "xfs": a real power cut; "none": the process is killed, because mounting is not permitted."""

    def rehearse(self) -> Life:
        """Run the scenario without a power cut."""
        return self._ask(do="rehearse")

    def cut(self, at: int, loss: str) -> Life:
        """Cut the power before system call `at`, counted from 0; `loss`: one of `disk.LOSSES`."""
        return self._ask(do="cut", at=at, loss=loss)

    def crowd(self, free_bytes: int) -> Life:
        """Run with this much free disk space; without permission to mount, with this limit on every file."""
        return self._ask(do="crowd", free_bytes=free_bytes)

    def _ask(self, **request: str | int) -> Life:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = _answer(self._process)
        if "broken" in answer:
            raise AssertionError(f"{request}: {answer['broken']}")
        calls, claims = tuple(answer.pop("calls")), tuple(answer.pop("claims"))
        return Life(calls=calls, claims=claims, **answer)


@contextmanager
def power(scenario: str, kind: str) -> Iterator[Power]:
    """Run a machine with this kind of file system; without permission to mount, kill processes. Print which."""
    with tempfile.TemporaryDirectory(prefix="power-", dir=MEMORY if MEMORY.is_dir() else None) as folder:
        process, why = _started(scenario, kind, Path(folder) / "mounted")
        if why:
            print(f"power cannot be cut on {kind}: {why}; processes are killed instead, all they wrote is kept")
            kind = "none"
            process, why = _started(scenario, kind, Path(folder) / "killed")
            assert not why, why
        with process:
            yield Power(process, kind)
            assert process.stdin
            process.stdin.close()


def _started(scenario: str, kind: str, folder: Path) -> tuple[subprocess.Popen[str], str]:
    folder.mkdir()
    command = [sys.executable, "-m", "tests.simulators.power_machine", scenario, kind, str(folder)]
    alone = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # no threads of numpy, since the machine forks
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen(command, **pipes, text=True, cwd=ROOT, env=alone)
    answer = _answer(process)
    if answer["ready"]:
        return process, ""
    process.communicate()
    return process, str(answer["why"])


def _answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout
    line = process.stdout.readline()
    assert line, "the machine has gone; its error stands above"
    answer: dict[str, Any] = json.loads(line)
    return answer
