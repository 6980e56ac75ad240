"""Limits of trials, and of isolated sessions, which run in processes of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gateway.common.domain.selection import MEASURED_ROWS


@dataclass(frozen=True, slots=True)
class TrialSettings:
    """Limits of the children that load, run and measure variants, which may crash or hang."""

    deadline_s: float = 60.0  # a trial or an inspection that takes longer is killed; compiling for a GPU takes long
    nice: int = 15  # added to the child's nice value, so that serving takes precedence
    measure_runs: int = 100  # most one-row runs that are measured
    measure_s: float = 0.5  # longest time for them (five runs are made in any case)
    one_thread_below_us: ClassVar[float] = 5_000.0  # a CPU run shorter than this is not tried with more than one thread
    runs_above_us: ClassVar[float] = (
        1_000.0  # a shorter run is not tried with others at a time: its hand-over costs more
    )
    batch_rows: ClassVar[int] = MEASURED_ROWS  # different rows that are run apart and together
    joined_rows: ClassVar[int] = 32  # rows of the largest such run, and so of any joined run
    joined_bytes: ClassVar[int] = 16_777_216  # largest inputs of that run; large rows are fewer
    exercise_samples: ClassVar[int] = 64  # most generated inputs that are tried
    golden_batch_rows: ClassVar[int] = 32  # rows of a golden set in one run
    stderr_tail_bytes: ClassVar[int] = 4096  # bytes of the end of a child's stderr that are kept
    answer_limit_bytes: ClassVar[int] = 1_048_576  # a longer answer of a child is refused

    @property
    def part_s(self) -> float:
        """Return the longest time of one part of a trial: of a generated input, of all of them, of joined rows."""
        return self.deadline_s / 4


@dataclass(frozen=True, slots=True)
class IsolationSettings:
    """`[isolation]`: models whose sessions serve from worker processes, next to those of the device profile."""

    models: tuple[str, ...] = ()  # names of models, or patterns such as "cam-*"; "*": all
    memory_mib: int = 0  # most memory of a worker process; 0: by what it began with and its trial took
    spare: bool = True  # hold a second worker process ready where memory allows: no request waits for a start
