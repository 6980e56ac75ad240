"""Child processes of the installer: with a deadline, the end of their output, and watchdog calls while they run."""

from __future__ import annotations

import os
import pwd
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence

from gateway.device.domain.software_update import UnitState

LAST_WORDS_BYTES = 2000
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "OPENBLAS_NUM_THREADS": "1"}
"""Complete environment of a command: no variable of this process can change what Python imports."""
SLICE_S = 5.0
"""Longest time between two calls of `alive` while a child runs."""


class CommandError(Exception):
    """A command failed. The message has the command, the exit status and the end of its output."""


def run(
    command: Sequence[str],
    timeout_s: float,
    *,
    user: str = "",
    alive: Callable[[], object] = bool,
) -> str:
    """Run `command` to its end, as `user` ("": this one). Return its output. Raise CommandError."""
    text = " ".join(command[:4])
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd="/",
                env=ENVIRONMENT,
                user=user or None,
                group=pwd.getpwnam(user).pw_gid if user else None,
                extra_groups=[] if user else None,
                start_new_session=True,
            )
        except (OSError, KeyError) as error:
            raise CommandError(f"'{text}' could not be started: {error}") from error
        ended = _ended(process, timeout_s, alive)
        output.seek(max(0, os.fstat(output.fileno()).st_size - LAST_WORDS_BYTES))
        words = output.read().decode("utf-8", "replace")
    if not ended:
        raise CommandError(f"'{text}' did not end within {timeout_s:g} s: {_line(words)}")
    if process.returncode:
        raise CommandError(f"'{text}' ended with {process.returncode}: {_line(words)}")
    return words


def _ended(process: subprocess.Popen[bytes], timeout_s: float, alive: Callable[[], object]) -> bool:
    """Wait for the process; kill it at the deadline."""
    deadline_s = time.monotonic() + timeout_s
    while (left_s := deadline_s - time.monotonic()) > 0:
        alive()
        try:
            process.wait(min(SLICE_S, left_s))
        except subprocess.TimeoutExpired:
            continue
        return True
    process.kill()
    process.wait()
    return False


def _line(words: str) -> str:
    return " ".join(words.split())[-300:] or "without output"


UNITS = ("edge-gateway.service", "edge-agent.service")
"""Units, in the order of their restart."""
PROPERTIES = ("Id", "ActiveState", "SubState", "Result", "ExecMainStatus", "ActiveEnterTimestampMonotonic")
STOPPED = "inactive"


class Units:
    """Client of systemctl. `states` and `restart` raise CommandError if systemd does not answer."""

    def __init__(self, timeout_s: float, alive: Callable[[], object]) -> None:
        self._timeout_s, self._alive = timeout_s, alive

    def states(self) -> Mapping[str, UnitState]:
        """Return the state of every unit."""
        command = ("systemctl", "show", f"--property={','.join(PROPERTIES)}", *UNITS)
        return read_states(run(command, self._timeout_s, alive=self._alive))

    def restart(self, units: Sequence[str]) -> None:
        """Let systemd restart units without waiting. Their states show the result."""
        if units:
            run(("systemctl", "restart", "--no-block", *units), self._timeout_s, alive=self._alive)


def read_states(text: str) -> Mapping[str, UnitState]:
    """Parse the output of `systemctl show`: a block of KEY=VALUE lines for each unit."""
    found: dict[str, UnitState] = {}
    for block in text.strip().split("\n\n"):
        values = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        summary = f"{values.get('ActiveState', 'unknown')} ({values.get('SubState', '')}, {values.get('Result', '')}, "
        found[values.get("Id", "")] = UnitState(
            active=values.get("ActiveState") == "active",
            wanted=values.get("ActiveState", STOPPED) != STOPPED,
            since_s=int(values.get("ActiveEnterTimestampMonotonic") or 0) / 1e6,
            state=f"{summary}status {values.get('ExecMainStatus', '')})",
        )
    missing = [unit for unit in UNITS if unit not in found]
    if missing:
        raise CommandError(f"systemctl says nothing of {', '.join(missing)}: {text.strip()!r:.200}")
    return found
