"""Parent's side of a trial's child process: it is read to its end or the deadline, and always killed and reaped."""

from __future__ import annotations

import asyncio
import os
import signal
import site
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.domain.errors import VariantError
from gateway.runtimes.job import ChildLine, ChildTask, Task, Trial, read_line, write_job
from gateway.runtimes.settings import TrialSettings

COMMAND = (sys.executable, "-P", "-m", "gateway.runtimes.trial_child")
"""Command of the child.

-P: Python searches neither the working directory nor this folder, whose `onnx.py` would hide the package.
"""

CHUNK_BYTES = 4096
LAST_WORDS_CHARS = 300
LAST_WORDS_S = 1.0


class UnendingPartError(VariantError):
    """A part of the trial took longer than its limit; a new trial may leave it out."""

    def __init__(self, line: ChildLine) -> None:
        remedy = "if this device is that slow, raise [trial] input_s; else add a golden set"
        super().__init__(f"no end within {line.limit_s:g} s while {line.stage}", remedy=remedy)
        self.part = line.part


async def ask_child(task: Task, deadline_s: float, settings: TrialSettings) -> Mapping[str, Any]:
    """Run a task in a child, and return its result.

    Raises VariantError with the child's own problem, the signal that ended it, or the deadline. Raises
    UnendingPartError if only one part of the task did not end. Cancelling the caller kills the child. Needs a running
    loop whose thread outlives the child.
    """
    process = await _start(task, settings)
    conversation = _Conversation(process, settings)
    try:
        async with asyncio.timeout(deadline_s):
            return await conversation.hear(task)
    except TimeoutError:
        remedy = "if this device is that slow, raise [trial] deadline_s (listing_deadline_s for devices)"
        raise VariantError(f"no answer within {deadline_s:g} s while {conversation.stage}", remedy=remedy) from None
    finally:
        await conversation.end()


async def _start(task: Task, settings: TrialSettings) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            *COMMAND,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=child_environment(str(task.budget.threads) if isinstance(task, Trial) else "1"),
            start_new_session=True,
            limit=settings.answer_limit_bytes,
        )
    except OSError as error:
        raise VariantError(
            f"the throw-away process could not be started: {error}",
            remedy="free memory, or allow more processes",
            transient=True,
        ) from error


class _Conversation:
    """Communication with one child, and the stage that it has reported."""

    def __init__(self, process: asyncio.subprocess.Process, settings: TrialSettings) -> None:
        self._reached = ChildLine(stage="starting")
        self._process = process
        self._settings = settings
        self._tail = bytearray()
        self._listener = asyncio.create_task(self._keep_tail())

    async def hear(self, task: Task) -> Mapping[str, Any]:
        """Send the task to the child, and read its lines up to the result."""
        await self._give(write_job(ChildTask(task, self._settings, os.getpid())))
        while line := await self._next_part():
            if line.result is not None:
                return line.result
            if line.problem:
                problem = f"{line.problem} (while {self.stage})"
                raise VariantError(problem, remedy=line.remedy, transient=line.transient)
            self._reached = line
        raise VariantError(await self._obituary(), transient=self._process.returncode == -signal.SIGKILL)

    async def end(self) -> None:
        """Kill the child and all processes that it started, and reap it. It is still running unless it crashed."""
        if self._process.returncode is None:
            _kill_group(self._process.pid)
        if self._process.stdin is not None:
            self._process.stdin.close()
        await self._process.wait()
        await self._last_words()

    async def _give(self, content: bytes) -> None:
        assert self._process.stdin is not None  # noqa: S101 - it was made a pipe
        self._process.stdin.write(content)
        try:
            await self._process.stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            return  # it ended at once: the end of its output shows the cause

    @property
    def stage(self) -> str:
        """Return the stage that the child has reported."""
        return self._reached.stage

    async def _next_part(self) -> ChildLine | None:
        try:
            async with asyncio.timeout(self._reached.limit_s):
                return await self._next_line()
        except TimeoutError:
            raise UnendingPartError(self._reached) from None

    async def _next_line(self) -> ChildLine | None:
        assert self._process.stdout is not None  # noqa: S101 - it was made a pipe
        try:
            raw = await self._process.stdout.readline()
        except ValueError:
            problem = f"the answer exceeds {self._settings.answer_limit_bytes} bytes"
            raise VariantError(problem, remedy="raise [trial] answer_limit_bytes") from None
        return read_line(raw) if raw else None

    async def _keep_tail(self) -> None:
        assert self._process.stderr is not None  # noqa: S101 - it was made a pipe
        while chunk := await self._process.stderr.read(CHUNK_BYTES):
            self._tail += chunk
            del self._tail[: -self._settings.stderr_tail_bytes]

    async def _last_words(self) -> None:
        """Wait for the end of stderr, for a limited time: a process that left the child's group may keep it open."""
        await asyncio.wait({self._listener}, timeout=LAST_WORDS_S)
        self._listener.cancel()

    async def _obituary(self) -> str:
        code = await self._process.wait()
        await self._last_words()
        words = " ".join(bytes(self._tail).decode("utf-8", "replace").split())[-LAST_WORDS_CHARS:]
        spoken = f"; last words: {words}" if words else ""
        return f"{_death(code)} while {self.stage}{spoken}"


def _death(code: int) -> str:
    if code >= 0:
        return f"ended without an answer (exit {code})"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = ", perhaps for lack of memory" if name == "SIGKILL" else ""
    return f"died by {name} (exit {code}{hint})"


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def child_environment(threads: str) -> dict[str, str]:
    """Return our environment with this package found first; numpy gets one thread, as in `gateway.terminal.program`."""
    root = str(Path(__file__).resolve().parents[2])
    paths = [] if root in site.getsitepackages() else [root]  # an installed package is found anyway
    paths += filter(None, [os.environ.get("PYTHONPATH")])
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": "1",
    }
