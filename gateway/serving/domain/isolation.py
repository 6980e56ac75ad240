"""Decisions about worker processes of isolated sessions: when one is started again, replaced or held ready. Pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass

MIB = 2**20
OPEN_S = 120.0
"""Least bound on the time for a worker to open its variant; compiling for an accelerator takes long."""
PAUSES_S = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Pauses before a worker is started again, by the ends that came one after the other."""
ANSWERED_PAUSE_S = 1.0
"""Longest pause after a worker that had answered: bad inputs of one caller must not keep the others from the model."""
STEADY_S = 60.0
"""Time without an end after which the first pause counts again."""
LEAK_FACTOR, LEAK_BYTES = 2, 512 * MIB
"""Memory (PSS) at which a worker is replaced that has no limit: so many times what it had when it was open, and more.

Models of many shapes keep what their largest run took; a leak goes on.
"""
EXCESS = 1.25
"""Multiple of the limit at which a worker is killed in the midst of a run. Below, its run ends first."""
SPARE_SHARE = 0.25
"""Largest share of the available memory that a spare worker may take."""

CRASHED, EXITED, KILLED, OVERLONG = "crashed", "exited", "killed", "overlong"
MEMORY, GARBAGE, UNOPENED, RETIRED = "memory", "garbage", "unopened", "retired"
"""Reasons for the end of a worker: it died by a signal, ended by itself, was killed by another process or the kernel,
had a run that took too long, took too much memory, answered what is no answer, did not open its model; or it was not
needed any more, which is no fault."""
REPEATED = frozenset({KILLED, MEMORY, RETIRED})
"""Reasons after which the run under way is asked once more: it need not be the cause."""


@dataclass(frozen=True, slots=True)
class WorkerPolicy:
    """Rules for the workers of one session. `memory_bytes`: most memory (PSS) of a worker; 0: see LEAK_FACTOR.

    `spare`: a second worker may be held ready. `devices`: the engine needs the device nodes of an accelerator. `nice`:
    added to the nice value of the process. `open_s`: longest time for a worker to open its variant. `ran_bytes`: memory
    that the trial's runs took (0: not known).
    """

    memory_bytes: int = 0
    spare: bool = True
    devices: bool = False
    nice: int = 0
    open_s: float = OPEN_S
    ran_bytes: int = 0

    def limit_bytes(self, opened_bytes: int) -> int:
        """Return the memory at which a worker is replaced that had `opened_bytes` when it was open."""
        least = LEAK_FACTOR * opened_bytes + LEAK_BYTES
        return self.memory_bytes or max(least, opened_bytes + LEAK_FACTOR * self.ran_bytes)

    def holds_spare(self, worker_bytes: int, available_bytes: int, *, there: bool) -> bool:
        """Return True if a spare is to be held. Once it is `there`, it stays until memory is short."""
        share = 1.0 if there else SPARE_SHARE
        return self.spare and worker_bytes <= share * available_bytes


@dataclass(slots=True)
class Restarts:
    """Ends of a session's workers, and the pause that follows from them."""

    ends: int = 0
    ended_s: float = 0.0

    def ended(self, now_s: float, *, opening_s: float = 0.0, had_answered: bool = False) -> float:
        """Note an end. Return the time (monotonic) from which another worker may be started.

        `opening_s`: time that this worker took to open its model, or tried to. It is no time without an end.
        """
        most = PAUSES_S.index(ANSWERED_PAUSE_S) + 1 if had_answered else len(PAUSES_S)
        self.ends = min(self.ends + 1 if now_s - opening_s < self.ended_s + STEADY_S else 1, most)
        self.ended_s = now_s
        return now_s + PAUSES_S[self.ends - 1]


def end_reason(code: int) -> str:
    """Return the reason for the end of a worker that was not ended here, from its exit code (-N: signal N)."""
    if code >= 0:
        return EXITED
    return KILLED if code == -signal.SIGKILL else CRASHED
