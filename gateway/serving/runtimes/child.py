"""Parent's side of a task's process: it is read to its end or the deadline, and always killed and reaped."""

from __future__ import annotations

import asyncio
import os
import signal
import site
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.common.domain.errors import VariantError
from gateway.common.domain.inventory import CPU
from gateway.common.domain.noise import busy_share
from gateway.common.timeouts import timeout
from gateway.serving import machine_noise
from gateway.serving.runtimes.fork_server import END_S, ForkServer, begin
from gateway.serving.runtimes.job import (
    AGAIN,
    FORKED,
    REPORT,
    ChildLine,
    ChildTask,
    Listing,
    Task,
    Trial,
    read_line,
    write_job,
)
from gateway.serving.runtimes.settings import TrialSettings

CHUNK_BYTES = 4096
LAST_WORDS_CHARS = 300
LAST_WORDS_S = 1.0
OWN_SHARE = 0.75
"""Share of the time on one core above which a process was not held up by others."""
OTHERS_SHARE = 0.25
"""Share of the machine's time above which others (processes, hypervisor, disk) may have held up a process."""


@dataclass(frozen=True, slots=True)
class ChildEnd:
    """End of a process: exit code (-N: signal N), times, most memory; cores of the machine, and their busy share."""

    code: int
    cpu_s: float
    memory_bytes: int
    wall_s: float
    cores: int = 1
    busy_share: float = 0.0

    @property
    def held_up(self) -> bool:
        """Return True if other load may be the cause that the process was not ready in time."""
        others_share = self.busy_share - self.cpu_s / (self.wall_s * self.cores)
        return self.cpu_s < OWN_SHARE * self.wall_s and others_share > OTHERS_SHARE

    @property
    def killed(self) -> bool:
        """Return True if another process or the kernel killed it: that says nothing about the model."""
        return self.code == -signal.SIGKILL

    @property
    def words(self) -> str:
        """Return how a process ended that gave no answer."""
        memory = f"{self.memory_bytes / 2**20:.0f} MiB"
        if self.code >= 0:
            return f"ended without an answer (exit {self.code}, it had {memory})"
        try:
            name = signal.Signals(-self.code).name
        except ValueError:
            name = f"signal {-self.code}"
        hint = ", perhaps for lack of memory" if self.killed else ""
        return f"died by {name} (exit {self.code}{hint}; it had {memory})"


class UnendingPartError(VariantError):
    """A part of the trial took longer than its limit; a new trial may leave it out."""

    def __init__(self, line: ChildLine, *, transient: bool) -> None:
        remedy = "if this device is that slow, raise [trial] deadline_s; else add a golden set"
        super().__init__(f"no end within {line.limit_s:g} s while {line.stage}", remedy=remedy, transient=transient)
        self.part = line.part


class CrashedError(VariantError):
    """The process ended by itself, without an answer."""


async def ask_child(task: Task, deadline_s: float, settings: TrialSettings) -> Mapping[str, Any]:
    """Run a task in a process of its own, and return its result. If the process crashes, another one tries again.

    Raises VariantError with the process's own problem, the signal that ended it, or the deadline; it is transient if
    that says nothing about the model. Raises UnendingPartError if only one part of the task did not end. Cancelling the
    caller kills the process. Needs a running loop whose thread outlives the process.
    """
    try:
        return await _ask_once(task, deadline_s, settings)
    except CrashedError:
        pass
    try:
        return await _ask_once(task, deadline_s, settings)
    except CrashedError as error:
        remedy = "repair the model, or serve it with another runtime (EG-309)"
        raise VariantError(f"crashed twice: {error.reason}", remedy=remedy) from None


async def _ask_once(task: Task, deadline_s: float, settings: TrialSettings) -> Mapping[str, Any]:
    conversation = await _begin(task, settings)
    line, late = None, False
    try:
        async with timeout(deadline_s):
            line = await conversation.hear(task)
    except TimeoutError:
        late = True
    finally:
        end = await conversation.end()
    if line is not None and line.result is not None:
        return line.result
    reached = conversation.reached
    if line is not None:
        raise VariantError(f"{line.problem} (while {reached.stage})", remedy=line.remedy, transient=line.transient)
    if late and conversation.part_late:
        raise UnendingPartError(reached, transient=end.held_up)
    if late:
        held_up = f" (with {end.cpu_s:.1f} s of CPU time: the machine was busy)" if end.held_up else ""
        remedy = "if this device is that slow, raise [trial] deadline_s"
        problem = f"no answer within {deadline_s:g} s while {reached.stage}{held_up}"
        raise VariantError(problem, remedy=remedy, transient=end.held_up)
    problem = f"{end.words} while {reached.stage}{conversation.last_words}"
    if end.killed:
        raise VariantError(problem, remedy="free memory, or end what kills processes", transient=True)
    raise CrashedError(problem)


async def _begin(task: Task, settings: TrialSettings) -> _Conversation:
    """Begin a task. The libraries of accelerators are loaded in a process that was not forked."""
    runtime = task.variant.runtime if isinstance(task, Trial) else task.runtime
    again = isinstance(task, Listing) or (
        isinstance(task, Trial) and (task.budget.accelerator != CPU or task.budget.provider != "")
    )
    streams, sockets = [], []
    with ExitStack() as ours, ExitStack() as theirs:
        try:
            for _ in range(3):
                mine, other = socket.socketpair()
                sockets.append(theirs.enter_context(other).fileno())
                ours.enter_context(mine)
                streams.append(await asyncio.open_connection(sock=mine, limit=settings.answer_limit_bytes))
                ours.callback(streams[-1][1].transport.abort)
            server = begin(runtime, AGAIN if again else FORKED, sockets, child_environment("1"))
        except OSError as error:
            raise VariantError(
                f"the trial's process could not be started: {error}",
                remedy="free memory, or allow more processes",
                transient=True,
            ) from error
        ours.pop_all()
        return _Conversation(server, streams, settings)


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Conversation:
    """Communication with the process of one task.

    `reached` is the stage that it has reported; `part_late`: that stage took longer than its limit.
    """

    def __init__(self, server: ForkServer, streams: Sequence[Stream], settings: TrialSettings) -> None:
        self.reached, self.part_late = ChildLine(stage="starting"), False
        self._server, self._streams, self._settings = server, streams, settings
        self._began_s, self._times = time.monotonic(), machine_noise.stat()
        self._tail = bytearray()
        self._listener = asyncio.create_task(self._keep_tail())

    async def hear(self, task: Task) -> ChildLine | None:
        """Send the task, and return the line with the result or the problem; None if the process ends before."""
        await self._give(write_job(ChildTask(task, self._settings)))
        while line := await self._next_part():
            if line.result is not None or line.problem:
                return line
            self.reached = line
        return None

    async def end(self) -> ChildEnd:
        """Let the process and all that it started be killed. Return how it ended, by itself or so."""
        reader, writer = self._streams[0]
        report = b""
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            writer.write_eof()
            async with timeout(END_S):
                report = await reader.readexactly(REPORT.size)
        code, cpu_s, memory_kib = REPORT.unpack(report) if report else (await self._server.ended(), 0.0, 0)
        self._server.release()
        await asyncio.wait({self._listener}, timeout=LAST_WORDS_S)  # a process that left the group may keep it open
        self._listener.cancel()
        for _, writer in self._streams:
            writer.close()
        wall_s, busy = time.monotonic() - self._began_s, busy_share(self._times, machine_noise.stat())
        return ChildEnd(code, cpu_s, memory_kib * 1024, wall_s, os.cpu_count() or 1, busy)

    @property
    def last_words(self) -> str:
        """Return the end of what the process wrote to stderr."""
        words = " ".join(bytes(self._tail).decode("utf-8", "replace").split())[-LAST_WORDS_CHARS:]
        return f"; last words: {words}" if words else ""

    async def _give(self, content: bytes) -> None:
        _, writer = self._streams[0]
        writer.write(content)
        with suppress(BrokenPipeError, ConnectionResetError):  # it ended at once: the end of its output shows the cause
            await writer.drain()

    async def _next_part(self) -> ChildLine | None:
        try:
            async with timeout(self.reached.limit_s) as limit:
                return await self._next_line()
        finally:
            self.part_late = limit.expired()

    async def _next_line(self) -> ChildLine | None:
        try:
            raw = await self._streams[1][0].readline()
        except ConnectionResetError:  # it ended without reading everything
            return None
        except ValueError:
            problem = f"the answer exceeds {self._settings.answer_limit_bytes} bytes"
            raise VariantError(problem, remedy="use a model with fewer inputs and outputs") from None
        return read_line(raw) if raw else None

    async def _keep_tail(self) -> None:
        while chunk := await self._streams[2][0].read(CHUNK_BYTES):
            self._tail += chunk
            del self._tail[: -self._settings.stderr_tail_bytes]


def child_environment(threads: str) -> dict[str, str]:
    """Return our environment with this package found first; numpy gets one thread, as in `common.terminal.program`."""
    root = str(Path(__file__).resolve().parents[3])
    paths = [] if root in site.getsitepackages() else [root]  # an installed package is found anyway
    paths += filter(None, [os.environ.get("PYTHONPATH")])
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": "1",
    }
