"""Everything that the demo starts, and the promise that nothing of it is left running: Ctrl-C or not."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
STOP_S, RUN_S, START_S = 15.0, 120.0, 60.0
LAST_WORDS_CHARS = 2_000
ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Child:
    """A process that ends with the demo, in a group of its own: a Ctrl-C reaches the demo, which ends it."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def wait_for(self, ready: Callable[[], bool]) -> None:
        """Wait until `ready` holds. End the demo with the child's last words where it dies or takes too long."""
        deadline_s = time.monotonic() + START_S
        while time.monotonic() < deadline_s and self.process.poll() is None:
            if ready():
                return
            time.sleep(0.02)
        raise SystemExit(f"{self.name} did not start; its last words:\n{self.last_words()}")

    def last_words(self) -> str:
        """Return the end of its log."""
        return self.log.read_text("utf-8", "replace")[-LAST_WORDS_CHARS:]


class Children:
    """A block at whose end all that was started in it has ended, and its `folder` is gone."""

    def __init__(self) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="edge-fleet-demo-")
        self.folder = Path(self._temporary.name)
        self._before: dict[int, Any] = {}
        self._running: list[Child] = []
        self._starting, self._told_to_end = False, 0
        self._environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}

    def __enter__(self) -> Children:
        for number in ENDINGS:
            self._before[number] = signal.signal(number, self._signalled)
        return self

    def __exit__(self, *_: object) -> None:
        """End all children, the last first, so that none asks one that has ended.

        Each is asked to end; then its whole group is killed. A second Ctrl-C waits.
        """
        for number in ENDINGS:
            signal.signal(number, signal.SIG_IGN)
        deadline_s = time.monotonic() + STOP_S
        for child in reversed(self._running):
            child.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(max(0.0, deadline_s - time.monotonic()))
            with contextlib.suppress(ProcessLookupError):  # what it started, too; an ended group is gone
                os.killpg(child.process.pid, signal.SIGKILL)
            child.process.wait()
        self._temporary.cleanup()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def start(self, name: str, command: Sequence[str | Path]) -> Child:
        """Let it run; its log is in the demo's folder."""
        return self._begun(name, command, {})

    def run(self, module: str, *arguments: str | Path, environ: Mapping[str, str] | None = None) -> str:
        """Return what `python -m module …` prints. End the demo where it fails."""
        command = [sys.executable, "-m", module, *map(str, arguments)]
        child = self._begun(module, command, environ or {}, subprocess.PIPE)
        output = child.process.communicate(timeout=RUN_S)[0].decode()
        self._running.remove(child)
        if child.process.returncode:
            failed = f"{' '.join(command[1:])} ended with {child.process.returncode}"
            raise SystemExit(f"{failed}:\n{output}{child.last_words()}")
        return output

    def check(self) -> None:
        """End the demo where a child has ended before it."""
        for child in self._running:
            if child.process.poll() is not None:
                raise SystemExit(f"{child.name} ended with {child.process.returncode}:\n{child.last_words()}")

    def _begun(
        self, name: str, command: Sequence[str | Path], environ: Mapping[str, str], output: int | None = None
    ) -> Child:
        log = self.folder / f"{name}.log"
        with log.open("wb") as logged, self._unbroken():
            process = subprocess.Popen(
                list(map(str, command)),
                cwd=ROOT,
                env={**self._environ, **environ},
                stdin=subprocess.DEVNULL,
                stdout=output or logged,
                stderr=logged,
                start_new_session=True,
            )
            child = Child(name, process, log)
            self._running.append(child)
        return child

    @contextlib.contextmanager
    def _unbroken(self) -> Iterator[None]:
        """Defer a Ctrl-C to the end of the block: within, it would leave a process that is in no list."""
        self._starting = True
        try:
            yield
        finally:
            self._starting = False
        if self._told_to_end:
            raise SystemExit(128 + self._told_to_end)

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        self._told_to_end = number
        if not self._starting:
            raise SystemExit(128 + number)


def free_port() -> int:
    """Return a TCP port of the loopback interface that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    """Return whether a process listens there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
