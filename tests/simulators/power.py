"""Power that fails at a chosen system call of a scenario: a program's life before, its death, and its next boot."""

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

ROOT = Path(__file__).parents[2]
MEMORY = Path("/dev/shm")
"""Images lie in memory where there is some: an fsync is then as fast as it is deterministic."""


@dataclass(frozen=True)
class Life:
    """`calls`: system calls made, by name; `claims`: what the scenario told the world; `found`: what a boot finds.

    `after`: what a boot finds once the scenario was run again; `fault`: what the file system's check complains of;
    `error`: the class of the error that the scenario ended with, where the disk was full.
    """

    calls: tuple[str, ...]
    claims: tuple[str, ...]
    found: Any
    after: Any = None
    fault: str = ""
    error: str = ""


class Power:
    """A machine with a disk on which `scenario` (a module, see `power_machine.Scenario`) has been prepared."""

    def __init__(self, process: subprocess.Popen[str], kind: str) -> None:
        self._process = process
        self.kind = kind
        """"ext4" or "xfs": power is cut for real; "none": the process is killed, because mounting is not allowed."""

    def rehearse(self) -> Life:
        """Without a cut."""
        return self._ask(do="rehearse")

    def cut(self, at: int, loss: str) -> Life:
        """Power fails before system call `at`, counted from 0; `loss`: one of `disk.LOSSES`."""
        return self._ask(do="cut", at=at, loss=loss)

    def crowd(self, free_bytes: int) -> Life:
        """No cut, but so much room on the disk; without a right to mount, that much in every single file."""
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
    """A machine on `kind` of file system; without a right to mount, one whose processes are killed. Prints which."""
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
    alone = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # numpy's threads, of which the machine has no use
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
