"""Fork server of one runtime: `python -m gateway.serving.runtimes.trial_server RUNTIME` forks a process for each task.

It has imported the engine and opened nothing, so a task does not pay for the import. Each message on stdin has a byte
and three sockets: stdin, stdout and stderr of the task's process. Its end is reported on the first one (`REPORT`). If
the caller closes that socket, the process and all that it started are killed. The server ends with its caller.
"""

from __future__ import annotations

import gc
import os
import resource
import select
import signal
import socket
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from gateway.common.domain.python310 import SAFE_PATH
from gateway.serving.runtimes import trial_child
from gateway.serving.runtimes.catalog import get_runtime
from gateway.serving.runtimes.job import FORKED, REPORT, ChildLine

USED_LATER = (
    "numpy.random",
    "zipfile",
    "gateway.common.domain.onnx_file",
    "gateway.serving.domain.onnx_graph",
    "gateway.serving.domain.rows.proof",
)
"""Modules that most tasks import: here they are imported once."""
OOM_SCORE_ADJ = "500"
"""OOM score of a trial: if memory is short, the kernel ends it before the gateway (proc_pid_oom_score_adj(5))."""
AGAIN = (sys.executable, SAFE_PATH, "-m", "gateway.serving.runtimes.trial_child")
"""Command of a task that must not be forked."""


def main() -> None:
    """Import the engine of the runtime, then fork until stdin is closed."""
    trial_child.die_with_parent()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):  # a sandbox with a read-only /proc
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE_ADJ)
    with suppress(Exception):  # a task that needs the engine reports the error
        get_runtime(sys.argv[1]).import_engine()
    for name in USED_LATER:
        import_module(name)
    gc.freeze()  # collections in forked processes would copy the pages of these objects
    _ServerLoop(socket.socket(fileno=os.dup(0))).serve()
    os._exit(0)  # without the teardown of an engine


class _ServerLoop:
    """Loop of the server: messages of the caller, callers that leave, processes that end."""

    def __init__(self, control: socket.socket) -> None:
        self._control, self._poll = control, select.poll()
        self._processes: dict[int, tuple[int, int]] = {}
        """Process and the socket of its caller by the process's descriptor (pidfd_open(2))."""
        # A thread of the engine would not exist in a forked process, but its locks would.
        self._single = len(list(Path("/proc/self/task").iterdir())) == 1
        self._poll.register(control, select.POLLIN)

    def serve(self) -> None:
        """Serve until the caller closes the control socket; then no process is left."""
        while True:
            descriptor, _ = self._poll.poll()[0]  # one at a time: each may close the others
            if descriptor in self._processes:
                self._reap(descriptor)
            elif descriptor != self._control.fileno():
                self._reap(next(ended for ended, (_, caller) in self._processes.items() if caller == descriptor))
            else:
                how, sockets, _, _ = socket.recv_fds(self._control, 1, 3)
                if not how:
                    break
                self._fork(sockets, again=how != FORKED or not self._single)
        for ended in list(self._processes):
            self._reap(ended)

    def _fork(self, sockets: list[int], *, again: bool) -> None:
        server, caller = os.getpid(), sockets[0]
        try:
            pid = os.fork()
        except OSError as error:
            problem = f"the trial's process could not be forked: {error.strerror}"
            line = ChildLine(problem=problem, remedy="free memory, or allow more processes", transient=True)
            os.write(sockets[1], line.encode())
        else:
            if pid == 0:
                self._become(sockets, server, again=again)
            ended = os.pidfd_open(pid)
            self._processes[ended] = pid, caller
            self._poll.register(ended, select.POLLIN)
            self._poll.register(caller, select.POLLRDHUP)
            sockets = sockets[1:]
        for descriptor in sockets:
            os.close(descriptor)

    def _become(self, sockets: list[int], server: int, *, again: bool) -> NoReturn:
        """Run the task in this process, which was just forked."""
        try:
            os.setsid()
            trial_child.die_with_parent()
            if os.getppid() != server:
                os._exit(0)  # it ended before its end could be signalled
            for target, descriptor in enumerate(sockets):
                os.dup2(descriptor, target)
            others = (each for ended, (_, caller) in self._processes.items() for each in (ended, caller))
            for descriptor in (*sockets, *others, self._control.detach()):
                os.close(descriptor)
            if again:
                os.execv(AGAIN[0], AGAIN)  # noqa: S606 - no shell is wanted
            trial_child.main()
        except BaseException:  # noqa: BLE001 - nothing may return into the server's loop
            sys.excepthook(*sys.exc_info())
        os._exit(1)

    def _reap(self, ended: int) -> None:
        """Kill a process, unless it has ended, and what it has left; report its end."""
        pid, caller = self._processes.pop(ended)
        for kill in (os.kill, os.killpg):  # its group, if it leads one already
            with suppress(ProcessLookupError):
                kill(pid, signal.SIGKILL)  # before it is reaped, no other process has its number
        _, status, usage = os.wait4(pid, 0)
        cpu_s = usage.ru_utime + usage.ru_stime
        with suppress(OSError):  # the caller has ended
            os.write(caller, REPORT.pack(os.waitstatus_to_exitcode(status), cpu_s, usage.ru_maxrss))
        for descriptor in (ended, caller):
            self._poll.unregister(descriptor)
            os.close(descriptor)


if __name__ == "__main__":
    main()
