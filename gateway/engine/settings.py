"""Bounds of the engine, each with its unit."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.domain.errors import ConfigurationError
from gateway.domain.selection import OBJECTIVES

THREADS_LIMIT = 1024
"""More threads than any device of ours has cores; a typing error beyond."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """`[limits]`: what one request and one queue may hold."""

    max_batch_rows: int = 1024  # rows one request may carry; announced as max_batch_size
    batch_rows: int = 32  # rows that queued requests are joined to, where batching was measured to pay
    batch_gain: float = 1.2  # one row's time over a batched row's, below which requests are not joined
    queue_requests: int = 256  # requests waiting per model version; one more is OVERLOADED
    retry_after_s: float = 1.0  # what an OVERLOADED or UNAVAILABLE caller is told to wait
    ready_within_s: float = 10.0  # a start announces itself ready after this long, whatever models still load
    drain_s: float = 10.0  # how long a version that is replaced or unloaded may finish its queue
    image_bytes: int = 32 * 1_048_576  # an encoded image larger than this is refused
    image_pixels: int = 40_000_000  # images of one request that decode to more in all are refused before that
    image_threads: int = 1  # images decoded at once

    def __post_init__(self) -> None:
        """Refuse bounds that nothing passes. Raises ConfigurationError (table limits)."""
        for key in ("max_batch_rows", "batch_rows", "queue_requests", "image_bytes", "image_pixels", "image_threads"):
            if getattr(self, key) < 1:
                raise ConfigurationError("must be at least 1", table="limits", key=key)


@dataclass(frozen=True, slots=True)
class SelectionSettings:
    """`[selection]`: what decides among the variants that pass."""

    objective: str = "latency"  # latency, throughput or energy (CPU time)
    loads_at_once: int = 2  # models tried and opened at the same time when the model directory is read
    idle_before_trial_s: float = 2.0  # quiet time before a variant is measured in the background
    threads: int = 0  # threads per session; 0: the profile's budget, at most one per core

    def __post_init__(self) -> None:
        """Refuse an unknown objective and a gate that nothing passes. Raises ConfigurationError (table selection)."""
        if self.loads_at_once < 1:
            raise ConfigurationError("must be at least 1", table="selection", key="loads_at_once")
        if self.threads > THREADS_LIMIT:
            raise ConfigurationError(
                f"must be between 0 and {THREADS_LIMIT}, not {self.threads}", table="selection", key="threads"
            )
        if self.objective not in OBJECTIVES:
            known = ", ".join(OBJECTIVES)
            raise ConfigurationError(
                f"must be one of {known}, not {self.objective!r:.40}", table="selection", key="objective"
            )
