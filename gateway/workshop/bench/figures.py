"""Figures of a measurement: rate, percentiles, processor time, histogram. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gateway.common.domain.tensor import Array

PERCENTILES = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class BenchFigures:
    """Result of one measurement. `cpu_us`: processor time of the server for each request, None if it is not known."""

    front_end: str
    concurrency: int
    requests: int
    per_s: float
    p50_us: float
    p95_us: float
    p99_us: float
    cpu_us: float | None
    laps_us: Array

    @property
    def label(self) -> str:
        """Name for tables and plots."""
        return f"{self.front_end} ×{self.concurrency}"


def figures(
    front_end: str, concurrency: int, laps_ns: Sequence[int] | Array, span_s: float, cpu_s: float | None
) -> BenchFigures:
    """Return the figures of requests that took `laps_ns` each, `span_s` together. Raise ValueError without any."""
    laps_us = np.asarray(laps_ns, np.float64) / 1000
    if not laps_us.size or span_s <= 0:
        raise ValueError("no request was answered; give it more --seconds")
    p50, p95, p99 = (float(value) for value in np.percentile(laps_us, PERCENTILES))
    count = int(laps_us.size)
    cpu_us = None if cpu_s is None else cpu_s * 1e6 / count
    return BenchFigures(front_end, concurrency, count, count / span_s, p50, p95, p99, cpu_us, laps_us)


def common_edges(measured: Sequence[BenchFigures], buckets: int) -> Array:
    """Return the edges in µs of histograms that can be compared: a logarithmic scale over all measurements."""
    low = min(float(each.laps_us.min()) for each in measured)
    high = max(float(each.laps_us.max()) for each in measured)
    low = max(low, 0.001)
    edges: Array = np.geomspace(low, max(high, low * 1.001), buckets + 1)
    edges[0], edges[-1] = 0.0, np.inf  # rounding must not lose the fastest and the slowest
    return edges


def counts(each: BenchFigures, edges: Array) -> list[int]:
    """Return how many requests are in each bucket."""
    return [int(count) for count in np.histogram(each.laps_us, edges)[0]]


def document(each: BenchFigures, edges: Array) -> dict[str, Any]:
    """Return the figures for programs. The last bucket has no upper edge."""
    numbers = {key: getattr(each, key) for key in ("requests", "per_s", "p50_us", "p95_us", "p99_us", "cpu_us")}
    histogram = {"from_us": [float(edge) for edge in edges[:-1]], "counts": counts(each, edges)}
    return {"front_end": each.front_end, "concurrency": each.concurrency, **numbers, "histogram": histogram}
