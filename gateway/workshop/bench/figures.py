"""Figures of a measurement: rate, percentiles, processor time, histogram, also as SVG. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

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


WIDTH, ROW_HEIGHT, LABEL_WIDTH, MARGIN = 900, 70, 130, 40
"""Sizes in pixels: the picture, one histogram, the column of labels, the edge."""
INK, BAR, LINE = "#222222", "#2a9d8f", "#bbbbbb"


def plot(title: str, measured: Sequence[BenchFigures], buckets: int) -> str:
    """Return an SVG document with a histogram for each measurement, on one logarithmic scale."""
    edges = common_edges(measured, buckets)
    height = 2 * MARGIN + ROW_HEIGHT * len(measured)
    size = f'width="{WIDTH}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12" fill="{INK}">',
        f'<rect {size} fill="white"/>',
        f'<text x="{MARGIN}" y="{MARGIN // 2 + 4}" font-size="14">{escape(title)}</text>',
    ]
    for row, each in enumerate(measured):
        parts += _row(each, counts(each, edges), MARGIN + ROW_HEIGHT * (row + 1))
    parts += _axis([float(edge) for edge in edges], height - MARGIN)
    return "\n".join((*parts, "</svg>", ""))


def _row(each: BenchFigures, found: Sequence[int], base: int) -> Iterator[str]:
    step, most = (WIDTH - LABEL_WIDTH - 2 * MARGIN) / len(found), max(found)
    yield f'<text x="{MARGIN}" y="{base - 22}">{escape(each.label)}</text>'
    yield f'<text x="{MARGIN}" y="{base - 6}" fill="#666666">{each.per_s:,.0f}/s</text>'
    for index, count in enumerate(found):
        height = (ROW_HEIGHT - 14) * count / most
        x = MARGIN + LABEL_WIDTH + index * step
        yield f'<rect x="{x:.1f}" y="{base - height:.1f}" width="{step - 1:.1f}" height="{height:.1f}" fill="{BAR}"/>'
    yield f'<line x1="{MARGIN + LABEL_WIDTH}" y1="{base}" x2="{WIDTH - MARGIN}" y2="{base}" stroke="{LINE}"/>'


def _axis(edges: Sequence[float], base: int) -> Iterator[str]:
    """Yield the labels of every eighth edge; the first and the last bucket are open."""
    step = (WIDTH - LABEL_WIDTH - 2 * MARGIN) / (len(edges) - 1)
    for index in range(1, len(edges) - 1, max(1, (len(edges) - 1) // 6)):
        x = MARGIN + LABEL_WIDTH + index * step
        yield f'<text x="{x:.1f}" y="{base + 18}" text-anchor="middle">{time_text(edges[index])}</text>'


def time_text(micros: float) -> str:
    """Return a time for people, from µs."""
    if micros < 1_000:
        return f"{micros:.3g} µs"
    return f"{micros / 1_000:.3g} ms" if micros < 1_000_000 else f"{micros / 1_000_000:.3g} s"
