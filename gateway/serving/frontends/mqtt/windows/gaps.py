"""Gaps between samples, and rows at a fixed rate. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gateway.serving.frontends.mqtt.windows.rings import FILLED, Marks, Times
from gateway.serving.frontends.mqtt.windows.samples import (
    GAP_FACTOR,
    MISSING_LIMIT_ROWS,
    GapPolicy,
    Rows,
    Sample,
    SampleTiming,
)


@dataclass(frozen=True, slots=True)
class TimedRows:
    """Rows [n, channels] for a window with their times (ns since the epoch) and marks.

    A mark counts the rows that are missing before a row, or is FILLED. `restarts`: the window
    begins again before these rows.
    """

    rows: Rows
    times_ns: Times
    marks: Marks
    restarts: bool = False


def between(previous: Sample | None, sample: Sample, timing: SampleTiming) -> TimedRows:
    """Return the rows that follow `previous` when `sample` comes, by the rules of `timing`."""
    if previous is None or sample.restarts:
        return single(sample, restarts=sample.restarts)
    missing = sample.missing  # by sequence number if there is one, else by time
    if sample.sequence is None and timing.interval_ns:
        steps = (sample.time_ns - previous.time_ns) / timing.interval_ns
        missing = round(steps) - 1 if steps > GAP_FACTOR else 0
    missing = min(missing, MISSING_LIMIT_ROWS)
    if timing.gap is GapPolicy.RESET and missing:
        return single(sample, restarts=True)
    if timing.gap in {GapPolicy.FILL_LAST, GapPolicy.FILL_LINEAR} and missing:
        if missing > timing.fill_limit_rows:
            return single(sample, restarts=True)
        return _filled(previous, sample, missing, linear=timing.gap is GapPolicy.FILL_LINEAR)
    return single(sample, missing)


def resampled(previous: Sample, sample: Sample, next_ns: int, interval_ns: int, mark: int) -> TimedRows:
    """Return rows at `next_ns`, `next_ns + interval_ns` … up to the time of `sample`, by linear interpolation.

    The first row carries `mark`.
    """
    times = np.arange(next_ns, sample.time_ns + 1, interval_ns, dtype=np.int64)
    span = max(1, sample.time_ns - previous.time_ns)
    share = ((times - previous.time_ns) / span).astype(np.float32)[:, None]
    marks = np.zeros(len(times), np.int32)
    marks[:1] = mark
    return TimedRows(previous.row + (sample.row - previous.row) * share, times, marks)


def single(sample: Sample, mark: int = 0, *, restarts: bool = False) -> TimedRows:
    """Return the row of one sample."""
    return TimedRows(sample.row[None], np.array([sample.time_ns]), np.array([mark], np.int32), restarts)


def _filled(previous: Sample, sample: Sample, missing: int, *, linear: bool) -> TimedRows:
    share = np.arange(1, missing + 2, dtype=np.float64)[:, None] / (missing + 1)
    times = previous.time_ns + (share[:, 0] * (sample.time_ns - previous.time_ns)).astype(np.int64)
    rows = (
        previous.row + (sample.row - previous.row) * share if linear else np.repeat(previous.row[None], missing + 1, 0)
    )
    rows = rows.astype(np.float32)
    rows[-1], times[-1] = sample.row, sample.time_ns
    marks = np.full(missing + 1, FILLED, np.int32)
    marks[-1] = 0
    return TimedRows(rows, times, marks)
