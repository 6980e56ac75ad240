"""Limits of a trial, which runs in a process of its own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TrialSettings:
    """Limits of the children that load, run and measure variants, which may crash or hang."""

    deadline_s: float = 60.0  # a trial or an inspection that takes longer is killed; compiling for a GPU takes long
    listing_deadline_s: float = 20.0  # the same for a child that lists an engine's version and devices
    nice: int = 15  # added to the child's nice value, so that serving takes precedence
    measure_runs: int = 100  # most one-row runs that are measured
    measure_s: float = 0.5  # longest time for them (five runs are made in any case)
    one_thread_below_us: float = 5_000.0  # a CPU run shorter than this is not tried with more than one thread
    batch_rows: int = 8  # different rows that are run apart and together
    joined_rows: int = 32  # rows of the largest such run, and so of any joined run
    joined_bytes: int = 16_777_216  # largest inputs of that run; large rows are fewer
    joining_s: float = 10.0  # a model whose runs apart and together would take longer is not joined
    exercise_s: float = 10.0  # longest time for generated inputs that a model without a golden set refuses
    input_s: float = 15.0  # a generated input that takes longer on the CPU is left out, in a new process
    exercise_samples: int = 64  # most generated inputs that are tried
    golden_batch_rows: int = 32  # rows of a golden set in one run
    stderr_tail_bytes: int = 4096  # bytes of the end of a child's stderr that are kept
    answer_limit_bytes: int = 1_048_576  # a longer answer of a child is refused
