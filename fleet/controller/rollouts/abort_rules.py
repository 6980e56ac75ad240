"""Abort and success rules of a rollout: limits on counted verdicts, each with a minimum sample and a percentage."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from fractions import Fraction
from statistics import NormalDist

from fleet.controller.rollouts.decisions import Evidence
from fleet.controller.rollouts.spec import AbortLimit, Success
from fleet.controller.rollouts.state import Member

REASONS_SHOWN = 3
REASON_LIMIT_CHARS = 200
GROUP_LIMIT_CHARS = 400
"""Most characters of a group's name that are recorded.

A device may report 64 accelerators with names of 128 characters. A fact with a text longer than
`facts_form.TEXT_LIMIT_CHARS` could not be read again.
"""
_ALWAYS = datetime.min.replace(tzinfo=timezone.utc)


@dataclass(frozen=True, slots=True)
class VerdictTally:
    """Verdicts of a group of devices."""

    passed: int
    failed: int

    @property
    def sample(self) -> int:
        """The number of verdicts."""
        return self.passed + self.failed


def wilson_interval(hits: int, sample: int, confidence: float) -> tuple[float, float]:
    """Return the two-sided Wilson score interval (1927) of a share; (0, 1) for an empty sample.

    Unlike the plain share it is cautious with few devices: 1 failure in 1 means above 21 % at 95 % confidence.
    """
    if sample == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    found, weight = hits / sample, z * z / sample
    middle = (found + weight / 2) / (1 + weight)
    margin = z / (1 + weight) * math.sqrt(found * (1 - found) / sample + weight / sample / 4)
    return 0.0 if hits == 0 else max(0.0, middle - margin), 1.0 if hits == sample else min(1.0, middle + margin)


def excess(groups: Mapping[str, VerdictTally], limit: AbortLimit) -> tuple[str, Evidence] | None:
    """Return the first group in which significantly too many devices fail, as a reason and its evidence, or None."""
    for name, tally in groups.items():
        low, _ = wilson_interval(tally.failed, tally.sample, limit.confidence)
        if tally.sample >= limit.min_sample and low * 100 > limit.max_failed_percent:
            label = name[:GROUP_LIMIT_CHARS]
            reason = f"{tally.failed} of {tally.sample} devices failed ({label})"
            return f"{reason}: for sure more than {limit.max_failed_percent:g} %", _measured(label, tally, low, limit)
    return None


def passed_at(size: int, commits: Sequence[datetime], success: Success) -> datetime | None:
    """Return the time at which a group of `size` devices met `success`, from the times of its commits; None: not yet.

    A group without devices always meets it.
    """
    percent = math.ceil(size * Fraction(str(success.min_percent)) / 100)
    needed = max(percent, min(success.min_sample, size))
    if len(commits) < needed:
        return None
    return sorted(commits)[needed - 1] if needed else _ALWAYS


def common_reasons(members: Iterable[Member]) -> Evidence:
    """Return the most frequent reasons that failed devices report, at most `REASONS_SHOWN`."""
    counts = Counter(member.reason[:REASON_LIMIT_CHARS] for member in members if member.failing and member.reason)
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:REASONS_SHOWN]
    return {f"reason_{place}": f"{count} × {reason}" for place, (reason, count) in enumerate(ranked, 1)}


def _measured(name: str, tally: VerdictTally, low: float, limit: AbortLimit) -> Evidence:
    return {
        "group": name,
        "failed": tally.failed,
        "sample": tally.sample,
        "failed_percent": round(100 * tally.failed / tally.sample, 3),
        "lower_bound_percent": round(100 * low, 3),
        "limit_percent": limit.max_failed_percent,
        "confidence": limit.confidence,
    }
