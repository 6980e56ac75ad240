"""Limits of a trial, which runs in a process of its own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TrialSettings:
    """Bounds of the children that load, run and measure what could crash or hang."""

    deadline_s: float = 60.0  # a trial or an inspection that takes longer is killed; compiling for a GPU takes long
    listing_deadline_s: float = 20.0  # the same for asking an engine for its version and devices
    nice: int = 15  # added to the child's nice value, so that what is being served goes first
    measure_runs: int = 100  # one-row runs measured, at most
    measure_s: float = 0.5  # time spent on them, at most (five runs are made in any case)
    one_thread_below_us: float = 5_000.0  # a CPU run quicker than this is not tried with more than one thread
    batch_rows: int = 8  # different rows that the joining proof runs apart and together
    joined_rows: int = 32  # rows of the largest run of the joining proof; requests are joined to as many, at most
    joined_bytes: int = 16_777_216  # inputs of that run, at most; of large rows it takes fewer
    joining_s: float = 10.0  # a model whose joining proof would take longer is not joined
    exercise_s: float = 10.0  # time spent on generated inputs that a model without a golden set refuses
    input_s: float = 15.0  # a generated input that takes longer on the CPU is left out, in a new process
    exercise_samples: int = 64  # generated inputs tried, at most
    golden_batch_rows: int = 32  # rows of a golden set fed at once
    stderr_tail_bytes: int = 4096  # how much of a child's last words is kept
    answer_limit_bytes: int = 1_048_576  # a longer answer of a child is refused
