"""What is counted per model version: the fields of Triton's statistics extension, in nanoseconds and counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Duration:
    """How often something happened and how long it took in all."""

    count: int = 0
    ns: int = 0

    def add(self, ns: int, count: int = 1) -> None:
        """Count `count` more that took `ns` in all."""
        self.count += count
        self.ns += ns


@dataclass(slots=True)
class BatchStatistics:
    """Runs of one batch size, in rows."""

    size_rows: int
    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)


@dataclass(slots=True)
class ServableStatistics:
    """`inferences` counts rows, `executions` counts runs; `last_inference_ms` is wall clock since the epoch.

    `drops` counts requests that were never run, by reason; `ignored_parameters` those nobody here knows.
    """

    model: str
    version: str
    last_inference_ms: int = 0
    inferences: int = 0
    executions: int = 0
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)
    batches: dict[int, BatchStatistics] = field(default_factory=dict)
    drops: dict[str, int] = field(default_factory=dict)
    queued: int = 0
    ignored_parameters: int = 0

    def batch(self, size_rows: int) -> BatchStatistics:
        """The statistics of runs of `size_rows` rows."""
        return self.batches.setdefault(size_rows, BatchStatistics(size_rows))

    def drop(self, reason: str) -> None:
        """Count one request that is refused or dropped before it runs."""
        self.drops[reason] = self.drops.get(reason, 0) + 1


@dataclass(frozen=True, slots=True)
class Placement:
    """What serves a model version now: variant, runtime, accelerator, why, and the largest batch in rows (0: none)."""

    variant: str
    runtime: str
    precision: str
    accelerator: str
    reason: str
    max_batch_rows: int
    facts: Mapping[str, str] = field(default_factory=dict)
