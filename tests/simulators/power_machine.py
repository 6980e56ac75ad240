"""Process in which scenarios run and lose power. `power.py` starts it; requests and responses are lines of JSON.

It has no threads, so that it can fork. Its mounts are private and end with it.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, Protocol

from tests.simulators import disk
from tests.simulators.syscalls import Traced


class Scenario(Protocol):
    """A module. Each call runs in a process of its own; `folder` is on the disk whose power is cut."""

    def prepare(self, folder: Path) -> None:
        """Create the initial state."""

    def run(self, folder: Path, claim: Callable[[str], None]) -> None:
        """Perform the work that power interrupts and that is repeated later. `claim`: promise what must hold later."""

    def inspect(self, folder: Path) -> Any:
        """Return what a boot finds, as values for JSON."""


class Machine:
    """Runner of a scenario. `kind`: "ext4", "xfs", or "none": processes are killed, and the disk keeps all writes."""

    def __init__(self, scenario: Scenario, kind: str, folder: Path) -> None:
        self._scenario, self._kind = scenario, kind
        self._place, self._image, self._base = folder / "disk", folder / "now", folder / "base"
        self._place.mkdir()
        if kind == "none":
            self._base.mkdir()
            _apart(lambda: scenario.prepare(self._base))
        else:
            disk.own_mounts()
            disk.make(self._base, kind)
            with disk.mounted(self._base, kind, self._place):
                _apart(lambda: scenario.prepare(self._place))

    def rehearse(self) -> dict[str, Any]:
        """Run it completely. Return all possible points of a cut, the claims, and what a boot finds."""
        self._reset()
        with self._mounted():
            calls, claims = self._interrupted(None)
            return {"calls": calls, "claims": claims, "found": self._inspect()}

    def cut(self, at: int, loss: str) -> dict[str, Any]:
        """Cut the power before call `at`. Return the claims, what the next boot finds, and after another run."""
        self._reset()
        with self._mounted():
            calls, claims = self._interrupted(at, loss)
        with self._mounted():
            found = self._inspect()
            _apart(lambda: self._scenario.run(self._place, lambda _: None))
            after = self._inspect()
        fault = "" if self._kind == "none" else disk.fault(self._image, self._kind)
        return {"calls": calls, "claims": claims, "found": found, "after": after, "fault": fault}

    def crowd(self, free_bytes: int) -> dict[str, Any]:
        """Run it with limited space. Return its error, what a boot finds, and the same after a run with space."""
        self._reset()
        with self._mounted():
            filler = self._place / "filler"
            disk.fill(filler, free_bytes if self._kind != "none" else None)
            limit_bytes = free_bytes if self._kind == "none" else None
            error, claims = json.loads(_apart(lambda: json.dumps(self._attempt(limit_bytes))))
            filler.unlink()
        with self._mounted():
            found = self._inspect()
            _apart(lambda: self._scenario.run(self._place, lambda _: None))
            after = self._inspect()
        return {"calls": [], "claims": claims, "found": found, "after": after, "error": error}

    def _attempt(self, limit_bytes: int | None) -> tuple[str, list[str]]:
        """Run the scenario. Return the name of its error ("": none) and its claims.

        `limit_bytes`: size limit of every file (setrlimit(2)).
        """
        claims: list[str] = []
        if limit_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))
        try:
            self._scenario.run(self._place, claims.append)
        except Exception as error:  # noqa: BLE001  any error on a full disk is a result
            return type(error).__name__, claims
        return "", claims

    def _reset(self) -> None:
        if self._kind == "none":
            shutil.rmtree(self._place)
            subprocess.run(
                ["/usr/bin/env", "cp", "-a", str(self._base), str(self._place)], check=True
            )  # preserves hard links
        else:
            copy = ["/usr/bin/env", "cp", "--sparse=always", "--reflink=auto"]
            subprocess.run([*copy, str(self._base), str(self._image)], check=True)

    @contextmanager
    def _mounted(self) -> Iterator[None]:
        if self._kind == "none":
            yield
        else:
            with disk.mounted(self._image, self._kind, self._place):
                yield

    def _interrupted(self, at: int | None, loss: str = "all") -> tuple[list[str], list[str]]:
        """Run the scenario until call `at` (None: to its end). Return the names of its calls, and its claims."""
        reader, writer = os.pipe()
        traced = Traced(lambda: self._scenario.run(self._place, lambda text: _tell(writer, text)))
        os.close(writer)
        calls: list[str] = []
        for name in traced:
            if len(calls) == at:
                break
            calls.append(name)
        if at is not None and self._kind != "none":
            disk.cut_power(self._place, loss, seed=at)
        traced.kill()
        if at is None and traced.status != 0:
            raise RuntimeError(f"the scenario ended with {traced.status}; its error stands above")
        with os.fdopen(reader, encoding="utf-8") as stream:
            return calls, stream.read().splitlines()

    def _inspect(self) -> Any:
        return json.loads(_apart(lambda: json.dumps(self._scenario.inspect(self._place))))


def _apart(work: Callable[[], str | None]) -> str:
    """Run `work` in a child process and return its result. Raise RuntimeError if it failed."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        _work_and_exit(work, writer)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as stream:
        told = stream.read()
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0:
        raise RuntimeError(told)
    return told


def _work_and_exit(work: Callable[[], str | None], writer: int) -> NoReturn:
    code = 1
    try:
        _tell(writer, work() or "")
        code = 0
    except BaseException:  # noqa: BLE001  the child's boundary: the parent raises it
        _tell(writer, traceback.format_exc())
    finally:
        os._exit(code)


def _tell(writer: int, text: str) -> None:
    os.write(writer, f"{text}\n".encode())  # may exceed the pipe's buffer: the reader reads concurrently


def main() -> None:
    """Serve requests. Arguments: the scenario's module, the kind of file system, a folder."""
    module, kind, folder = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # keep output of scenarios out of the responses
    scenario: Any = importlib.import_module(module)
    try:
        machine = Machine(scenario, kind, Path(folder))
        print(json.dumps({"ready": True}), file=answers, flush=True)
    except OSError as error:
        print(json.dumps({"ready": False, "why": str(error)}), file=answers, flush=True)
        return
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(machine, request.pop("do"))(**request)
        except Exception:  # noqa: BLE001  the process's boundary: the test fails with it
            answer = {"broken": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
