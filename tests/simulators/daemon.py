"""The real daemon as a child process: free ports, readiness by sd_notify, its log if a test fails.

Ports are 0 and read from its log. It sends READY=1, RELOADING=1 and STOPPING=1 to an abstract UNIX socket.
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gateway.serving.config import SECTIONS
from tests.simulators import constants, runtime_only

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "models"
COMMAND = (runtime_only.interpreter(), "-m", "gateway")
WAIT_S = 120.0
QUIET = "[selection]\nidle_before_trial_s = 3600.0\n"
"""No trials in the background during a test."""
SHORT_TRIALS = "[trial]\nmeasure_s = 0.02\nnice = 0\n"
ANYWHERE = "127.0.0.1:0"
LIVE: list[Daemon] = []
"""Running daemons, for the report of a failed test."""


class DaemonEndedError(Exception):
    """The daemon ended, or did not notify in time. The message contains its log."""


class Daemon:
    """`edge-gateway run` in `folder`, which contains its configuration, state and log."""

    def __init__(
        self,
        folder: Path,
        *,
        models: Path = SHIPPED,
        state: Path | None = None,
        config: str = QUIET + SHORT_TRIALS,
        grpc: Sequence[str] = (ANYWHERE,),
        http: Sequence[str] = (ANYWHERE,),
        mqtt: str = "off",
        arguments: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        command: Sequence[str] = COMMAND,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.models, self.state = folder, models, state or folder / "state"
        self.config_file, self.log_file = folder / "edge-gateway.toml", folder / "log.jsonl"
        settings, given = constants.take(config, SECTIONS)
        self.config_file.write_text(settings)
        self.heard: list[str] = []
        listens = [option for name, ads in (("grpc", grpc), ("http", http)) for a in ads for option in (f"--{name}", a)]
        self.options = ["--config", str(self.config_file), "--models", str(models), "--state", str(self.state)]
        self.options += [*listens, "--mqtt", mqtt, *arguments]
        self._environ, self._command = dict(environ or {}), constants.command(command, given)
        self._process: subprocess.Popen[bytes] | None = None
        self._notified: socket.socket | None = None
        self._log_begin = 0

    # ---- life ------------------------------------------------------------------------------------------------------
    def start(self, *, ready: bool = True) -> Daemon:
        """Start it. Return once it is ready, or at once with `ready=False`."""
        self._notified, name = _notify_socket()
        environ = {**os.environ, "NOTIFY_SOCKET": name, **self._environ}
        self._log_begin = self.log_file.stat().st_size if self.log_file.exists() else 0
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command, "run", *self.options], cwd=ROOT, env=environ, stdout=log, stderr=log
            )
        LIVE.append(self)
        if ready:
            self.wait("READY=1")
        return self

    @property
    def pid(self) -> int:
        return self._running.pid

    def signal(self, number: signal.Signals) -> None:
        self._running.send_signal(number)

    def wait(self, assignment: str, timeout_s: float = WAIT_S) -> None:
        """Wait until it has sent `assignment` again."""
        deadline = time.monotonic() + timeout_s
        while (said := self._hear(deadline)) is not None:
            self.heard.append(said)
            if assignment in said.splitlines():
                return
        raise DaemonEndedError(f"{assignment} was not heard within {timeout_s} s, or it ended first\n{self.log}")

    def wait_logged(self, event: str, timeout_s: float = WAIT_S, **facts: object) -> dict[str, Any]:
        """Wait until its log has a line with `event` and `facts`, and return the line."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for line in self.lines():
                if event in line["event"] and facts.items() <= line.items():
                    return line
            if self._running.poll() is not None:
                break
            select.select([], [], [], 0.02)  # poll: there is no event for a growing file
        raise DaemonEndedError(f"{event!r} {facts} was not logged within {timeout_s} s, or it ended first\n{self.log}")

    def reload(self) -> None:
        """Send SIGHUP. Return once the reload is complete."""
        self.signal(signal.SIGHUP)
        self.wait("RELOADING=1")
        self.wait("READY=1")

    def stop(self, timeout_s: float = WAIT_S) -> int:
        """Send SIGTERM and return its exit code."""
        if self._running.poll() is None:
            self.signal(signal.SIGTERM)
        return self.ended(timeout_s)

    def ended(self, timeout_s: float = WAIT_S) -> int:
        """Wait until it ends by itself, and return its exit code."""
        code = self._running.wait(timeout_s)
        self._forget()
        return code

    def kill(self) -> None:
        """Kill it by SIGKILL."""
        self._running.kill()
        self._running.wait(WAIT_S)
        self._forget()

    # ---- output ----------------------------------------------------------------------------------------------------
    @property
    def log(self) -> str:
        """Log text since its last start."""
        with self.log_file.open("rb") as file:
            file.seek(self._log_begin)
            return file.read().decode(errors="replace")

    def lines(self) -> list[dict[str, Any]]:
        """Return the JSON lines of its log."""
        return [json.loads(line) for line in self.log.splitlines() if line.startswith("{") and line.endswith("}")]

    def addresses(self, protocol: str) -> list[str]:
        """Return the addresses that it reported to listen on."""
        return [
            line["address"] for line in self.lines() if line["event"] == "listening" and line["protocol"] == protocol
        ]

    @property
    def grpc(self) -> str:
        """The first gRPC address, in the form that clients use."""
        return self.addresses("grpc")[0]

    @property
    def http(self) -> str:
        """The first HTTP address, host:port."""
        return self.addresses("http")[0]

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the daemon was not started")
        return self._process

    def _hear(self, deadline_s: float) -> str | None:
        assert self._notified is not None
        ended = os.pidfd_open(self._running.pid) if self._running.poll() is None else None
        try:
            watched = [self._notified] if ended is None else [self._notified, ended]
            ready, _, _ = select.select(watched, [], [], max(0.0, deadline_s - time.monotonic()) if ended else 0)
            return self._notified.recv(4096).decode() if self._notified in ready else None
        finally:
            if ended is not None:
                os.close(ended)

    def _forget(self) -> None:
        if self in LIVE:
            LIVE.remove(self)
        if self._notified is not None:
            self._notified.close()


@contextmanager
def running(folder: Path, **options: Any) -> Iterator[Daemon]:
    """Run a ready daemon. At the end it must stop with exit code 0 and without a traceback in its log."""
    with starting(folder, **options) as daemon:
        daemon.wait("READY=1")
        yield daemon


@contextmanager
def starting(folder: Path, **options: Any) -> Iterator[Daemon]:
    """Run a daemon as `running` does, but do not wait for readiness."""
    daemon = Daemon(folder, **options).start(ready=False)
    try:
        yield daemon
        if daemon in LIVE:
            code = daemon.stop()
            assert code == 0, f"exit code {code}\n{daemon.log}"
        assert "Traceback" not in daemon.log, daemon.log
    finally:
        if daemon in LIVE:
            daemon.kill()


@dataclass(frozen=True, slots=True)
class Golden:
    """Rows of a shipped model's golden set: the input's name and values, expected scores, true classes."""

    name: str
    rows: np.ndarray[Any, Any]
    scores: np.ndarray[Any, Any]
    classes: np.ndarray[Any, Any]


def golden(model: str, count: int = 64) -> Golden:
    """Return the first `count` golden rows of a shipped model."""
    with np.load(SHIPPED / model / "1" / "golden.npz") as arrays:
        name = next(key for key in arrays if key.startswith("input."))
        parts = (arrays[key][:count] for key in (name, "output.scores", "label"))
        return Golden(name.removeprefix("input."), *parts)


def copy_model(model: str, folder: Path, version: str = "1", name: str = "") -> Path:
    """Copy a shipped model to another directory, version or name. Return its version folder."""
    target = folder / (name or model) / version
    shutil.copytree(SHIPPED / model / "1", target)
    manifest = target / "manifest.toml"
    text = manifest.read_text().replace('version = "1"', f'version = "{version}"', 1)
    manifest.write_text(text.replace(f'name = "{model}"', f'name = "{name or model}"', 1))
    return target


def documented() -> set[str]:
    """Return the metrics that METRICS.md describes."""
    return set(re.findall(r"`(edge_gateway_\w+)`", (ROOT / "gateway/serving/observe/METRICS.md").read_text()))


def _notify_socket() -> tuple[socket.socket, str]:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    name = f"edge-gateway-test-{uuid.uuid4().hex}"
    listener.bind(f"\0{name}")
    return listener, f"@{name}"
