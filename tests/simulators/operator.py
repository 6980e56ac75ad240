"""An operator at a shell: `edge-fleet` as a process against a running controller."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.controller.access import Role
from tests.simulators.controller import RunningController

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Operator:
    """Shell of an operator, with its environment."""

    environment: Mapping[str, str]

    def run(self, *words: str | Path, **environment: str) -> tuple[int, str, str]:
        """Run a command. Return exit code, standard output and standard error."""
        done = subprocess.run(
            self._command(words),
            cwd=ROOT,
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    def told(self, *words: str | Path) -> Any:
        """Run a command that must end with 0. Return its JSON."""
        code, out, err = self.run(*words, "--json")
        assert code == 0, err
        return json.loads(out)

    def begin(self, *words: str | Path) -> subprocess.Popen[str]:
        """Start a command in the background."""
        pipe = subprocess.PIPE
        return subprocess.Popen(
            self._command(words), cwd=ROOT, env=self.environment, stdout=pipe, stderr=pipe, text=True
        )

    def looked(self, *words: str | Path, columns: int = 80, typed: str = "") -> tuple[int, str]:
        """Run a command on a terminal of `columns` columns. Return exit code and output. `typed`: the input."""
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        environment = {name: text for name, text in self.environment.items() if name != "COLUMNS"} | {"TERM": "xterm"}
        process = subprocess.Popen(
            self._command(words), cwd=ROOT, env=environment, stdin=slave, stdout=slave, stderr=slave
        )
        os.close(slave)
        os.write(master, typed.encode())
        try:
            said = _all_of(master)
            return process.wait(PATIENCE_S), said
        finally:
            process.kill()
            process.wait()
            os.close(master)

    def _command(self, words: tuple[str | Path, ...]) -> list[str]:
        return [sys.executable, "-m", "fleet", *map(str, words)]


def _all_of(master: int) -> str:
    """Read until the other end is closed."""
    found, end_s = b"", time.monotonic() + PATIENCE_S
    while select.select([master], [], [], max(0.0, end_s - time.monotonic()))[0]:
        try:
            found += os.read(master, 65_536)
        except OSError:  # EIO
            break
    return found.decode()


def operator(controller: RunningController, role: Role = Role.ADMIN, *, name: str = "olga") -> Operator:
    """Return an operator with a token of the role."""
    return operator_with(controller, controller.token(role, name=name))


def operator_with(controller: RunningController, token: str) -> Operator:
    """Return an operator with this token."""
    known = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    said = {"EDGE_FLEET_URL": controller.url, "EDGE_FLEET_CA": str(controller.ca_file), "EDGE_FLEET_TOKEN": token}
    return Operator({**known, **said, "COLUMNS": "200", "TZ": "Europe/Berlin"})


def until(holds: Any, what: str) -> Any:
    """Poll until the value is true, and return it. Raise AssertionError."""
    end_s = time.monotonic() + PATIENCE_S
    while not (found := holds()):
        assert time.monotonic() < end_s, what
        time.sleep(0.05)
    return found
