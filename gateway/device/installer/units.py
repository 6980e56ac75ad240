"""Units of systemd that run the new version: their states, and their restart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gateway.device.domain.software_update import UnitState
from gateway.device.installer.commands import CommandError, run

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
