"""End of a trial's process, and what it says: a fault of the model, or nothing yet. Pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass

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
