"""End of a trial's process, and what it says: a fault of the model, or nothing yet. Pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass

OWN_SHARE = 0.75
"""Share of the time on one core above which a process was not held up by others."""
OTHERS_SHARE = 0.25
"""Share of the machine's time above which others (processes, hypervisor, disk) may have held up a process."""


@dataclass(frozen=True, slots=True)
class MachineTime:
    """Time of all cores since the start, in s: in all, and not idle (with steal, and the wait for the disk)."""

    total_s: float = 0.0
    occupied_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ChildEnd:
    """End of a process: exit code (-N: signal N), CPU time, most memory, and the times that passed meanwhile."""

    code: int
    cpu_s: float
    memory_bytes: int
    machine: MachineTime
    wall_s: float

    @property
    def held_up(self) -> bool:
        """Return True if other load may be the cause that the process was not ready in time."""
        others_s = self.machine.occupied_s - self.cpu_s
        return self.cpu_s < OWN_SHARE * self.wall_s and others_s > OTHERS_SHARE * self.machine.total_s

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


def read_machine_time(stat: str, ticks_per_s: int) -> MachineTime:
    """Return the sums of the first line of /proc/stat (proc(5)); zeros for other text."""
    fields = stat.partition("\n")[0].split()[1:9]
    try:
        user, nice, system, idle, *others = (int(field) / ticks_per_s for field in fields)
    except ValueError:
        return MachineTime()
    occupied_s = user + nice + system + sum(others)
    return MachineTime(idle + occupied_s, occupied_s)


def between(first: MachineTime, last: MachineTime) -> MachineTime:
    """Return the time between two readings."""
    return MachineTime(last.total_s - first.total_s, last.occupied_s - first.occupied_s)
