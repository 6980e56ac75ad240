"""Rates and latencies of a feed. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

PERCENTILES = (50, 90, 99)
PARTS = ("decode", "wait", "prepare", "request", "whole")


@dataclass(frozen=True, slots=True)
class FrameTimes:
    """Times of one answered frame in seconds: decoding, in the slot, conversion, from request to answer."""

    decode_s: float
    wait_s: float
    prepare_s: float
    request_s: float

    @property
    def whole_s(self) -> float:
        """Return the time from the frame's arrival to its result."""
        return self.decode_s + self.wait_s + self.prepare_s + self.request_s


@dataclass(frozen=True, slots=True)
class FrameCounts:
    """Counted frames. `broken`: packets that could not be decoded."""

    read: int = 0
    left_out: int = 0
    skipped: int = 0
    asked: int = 0
    answered: int = 0
    failed: int = 0
    broken: int = 0


class LatencyRecord:
    """Times of the newest `limit` answered frames."""

    def __init__(self, limit: int) -> None:
        self._times: deque[tuple[float, ...]] = deque(maxlen=limit)

    def add(self, times: FrameTimes) -> None:
        """Keep the times of one frame."""
        self._times.append((times.decode_s, times.wait_s, times.prepare_s, times.request_s, times.whole_s))

    def milliseconds(self) -> dict[str, list[float]]:
        """Return p50, p90, p99 and maximum of each part in ms; none without an answered frame."""
        if not self._times:
            return {}
        columns = np.asarray(self._times).T * 1000
        return {
            part: [round(float(value), 3) for value in (*np.percentile(column, PERCENTILES), column.max())]
            for part, column in zip(PARTS, columns, strict=True)
        }


class RecentRate:
    """Rate of the newest answers."""

    def __init__(self, answers: int = 30) -> None:
        self._times_s: deque[float] = deque(maxlen=answers + 1)

    def add(self, at_s: float) -> None:
        """Count an answer."""
        self._times_s.append(at_s)

    @property
    def per_s(self) -> float:
        """Return answers per second; 0.0 before the second one."""
        span_s = self._times_s[-1] - self._times_s[0] if self._times_s else 0.0
        return (len(self._times_s) - 1) / span_s if span_s > 0 else 0.0


def summary(counts: FrameCounts, seconds: float, latencies: LatencyRecord) -> dict[str, Any]:
    """Return the document of a feed that lasted for `seconds`."""
    frames = asdict(counts)
    per_s = {name: round(count / seconds, 3) if seconds > 0 else 0.0 for name, count in frames.items()}
    names = [*(f"p{percentile}" for percentile in PERCENTILES), "max"]
    found = {part: dict(zip(names, values, strict=True)) for part, values in latencies.milliseconds().items()}
    return {"seconds": round(seconds, 3), "frames": frames, "per_s": per_s, "latency_ms": found}


def count_rows(document: dict[str, Any]) -> Sequence[tuple[str, str, str]]:
    """Return the rows of the table of frames."""
    words = {
        "read": "read", "left_out": "left out by --rate", "skipped": "skipped for a newer one", "asked": "asked",
        "answered": "answered", "failed": "failed", "broken": "broken packets",
    }  # fmt: skip
    optional = {"left_out", "broken"}
    return [
        (words[name], f"{count:,}", f"{document['per_s'][name]:.1f}")
        for name, count in document["frames"].items()
        if count or name not in optional
    ]


def latency_rows(document: dict[str, Any]) -> Sequence[tuple[str, ...]]:
    """Return the rows of the table of latencies."""
    return [(part, *(f"{value:.1f}" for value in values.values())) for part, values in document["latency_ms"].items()]
