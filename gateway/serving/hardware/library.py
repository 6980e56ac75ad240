"""Check of vendor libraries in a child that may hang or die: that breaks a rung, not the daemon."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.serving.hardware.settings import HardwareSettings

CHILD = (sys.executable, "-I", str(Path(__file__).with_name("ask_library.py")))
"""Command of the child, isolated and by path: environment and working directory do not affect its imports."""

CHUNK_BYTES = 4096
PROBLEM_CHARS = 300
KILL_WAIT_S = 2.0


@dataclass(frozen=True, slots=True)
class LibraryAnswer:
    """Result for one library. `problem` names the library.

    `loaded` None: not tried, because an earlier library ended the child.
    """

    loaded: bool | None
    problem: str = ""


LibraryAnswers = Mapping[str, LibraryAnswer]
"""Answers by soname."""


def ask_libraries(
    sets: Iterable[Sequence[str]], settings: HardwareSettings | None = None, *, child: Sequence[str] = CHILD
) -> LibraryAnswers:
    """Load each set of sonames in a child process with a deadline. Never raises for faults of the libraries."""
    answers: dict[str, LibraryAnswer] = {}
    for names in sets:
        answers |= _ask(names, settings or HardwareSettings(), child)
    return answers


def _ask(names: Sequence[str], settings: HardwareSettings, child: Sequence[str]) -> dict[str, LibraryAnswer]:
    command = [*child, *names]
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
    except OSError as error:
        return {name: LibraryAnswer(False, f"{name}: the child could not start: {error}") for name in names}
    output, overrun = _read(process, settings)
    end = _kill(process, overrun) if overrun else _ending(process, settings)
    given = dict(filter(None, map(_answer, output.splitlines())))
    answers = {name: given[name] for name in names if name in given}
    missing = [name for name in names if name not in given]
    # The first library without an answer ended the child; those after it were not tried.
    for index, name in enumerate(missing):
        answers[name] = (
            LibraryAnswer(None, f"{name}: not asked, {missing[0]} {end}")
            if index
            else LibraryAnswer(False, f"{name} {end}")
        )
    return answers


def _read(process: subprocess.Popen[bytes], settings: HardwareSettings) -> tuple[bytes, str]:
    """Return the output, and "" at its end, else the reason to stop: the deadline or the size limit."""
    deadline_s = time.monotonic() + settings.child_deadline_s
    output = bytearray()
    assert process.stdout is not None  # noqa: S101 - Popen was given a pipe
    with process.stdout as stdout, selectors.DefaultSelector() as selector:
        selector.register(stdout, selectors.EVENT_READ)
        while len(output) < settings.child_output_bytes:
            if not selector.select(max(0.0, deadline_s - time.monotonic())):
                return bytes(output), _hung(settings)
            chunk = os.read(stdout.fileno(), CHUNK_BYTES)
            if not chunk:
                return bytes(output), ""
            output += chunk
    return bytes(output), f"printed more than {settings.child_output_bytes} bytes"


def _ending(process: subprocess.Popen[bytes], settings: HardwareSettings) -> str:
    """Return the end of a child whose output has ended, as text."""
    try:
        code = process.wait(settings.child_deadline_s)
    except subprocess.TimeoutExpired:
        return _kill(process, _hung(settings))
    return f"died by {_signal_name(-code)}" if code < 0 else f"ended with code {code} before it answered"


def _kill(process: subprocess.Popen[bytes], reason: str) -> str:
    """Kill the child and the processes that it started. One that is blocked in a driver is left, not waited for."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(KILL_WAIT_S)
    return reason


def _hung(settings: HardwareSettings) -> str:
    return f"hung for {settings.child_deadline_s:g} s"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _answer(line: bytes) -> tuple[str, LibraryAnswer] | None:
    try:
        match json.loads(line):
            case {"name": str(name), "problem": str(problem)}:
                words = problem if not problem or name in problem else f"{name}: {problem}"
                return name, LibraryAnswer(not problem, words[:PROBLEM_CHARS])
    except (ValueError, RecursionError):
        return None
    return None
