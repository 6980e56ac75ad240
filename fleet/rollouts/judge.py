"""Whether a release does well: limits on counted verdicts, each with a minimum sample beside its percentage."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from statistics import NormalDist

from fleet.rollouts.decisions import Evidence
from fleet.rollouts.spec import AbortLimit, Success
from fleet.rollouts.state import Member

REASONS_SHOWN = 3
REASON_LIMIT_CHARS = 200
GROUP_LIMIT_CHARS = 400
"""Of a group's name as it is recorded: a device may say that it has 64 accelerators with names of 128 characters, and a
fact with a text beyond `facts_form.TEXT_LIMIT_CHARS` could not be read again."""
_ALWAYS = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Tally:
    """Verdicts of a group of devices."""

    passed: int
    failed: int

    @property
    def sample(self) -> int:
        """How many there are."""
        return self.passed + self.failed


def wilson_interval(hits: int, sample: int, confidence: float) -> tuple[float, float]:
    """Between which shares the true one lies at that confidence (two-sided), after Wilson (1927); (0, 1) of nothing.

    Unlike the plain share it is honest about few devices: of 1 failure in 1 it says above 21 % at 95 %.
    """
    if sample == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    found, weight = hits / sample, z * z / sample
    middle = (found + weight / 2) / (1 + weight)
    margin = z / (1 + weight) * math.sqrt(found * (1 - found) / sample + weight / sample / 4)
    return 0.0 if hits == 0 else max(0.0, middle - margin), 1.0 if hits == sample else min(1.0, middle + margin)


def excess(groups: Mapping[str, Tally], limit: AbortLimit) -> tuple[str, Evidence] | None:
    """The first group in which too many fail for sure, as a sentence and its measurements; None: no group."""
    for name, tally in groups.items():
        low, _ = wilson_interval(tally.failed, tally.sample, limit.confidence)
        if tally.sample >= limit.min_sample and low * 100 > limit.max_failed_percent:
            shown = name[:GROUP_LIMIT_CHARS]
            reason = f"{tally.failed} of {tally.sample} devices failed ({shown})"
            return f"{reason}: for sure more than {limit.max_failed_percent:g} %", _measured(shown, tally, low, limit)
    return None


def passed_at(size: int, commits: Sequence[datetime], success: Success) -> datetime | None:
    """When a group of `size` devices had done what `success` asks, by the times of its commits; None: not yet.

    A group without devices always has.
    """
    percent = math.ceil(size * Fraction(str(success.min_percent)) / 100)
    needed = max(percent, min(success.min_sample, size))
    if len(commits) < needed:
        return None
    return sorted(commits)[needed - 1] if needed else _ALWAYS


def common_reasons(members: Iterable[Member]) -> Evidence:
    """What failed devices say, most frequent first, bounded."""
    said = Counter(member.reason[:REASON_LIMIT_CHARS] for member in members if member.failing and member.reason)
    ranked = sorted(said.items(), key=lambda item: (-item[1], item[0]))[:REASONS_SHOWN]
    return {f"reason_{place}": f"{count} × {reason}" for place, (reason, count) in enumerate(ranked, 1)}


def _measured(name: str, tally: Tally, low: float, limit: AbortLimit) -> Evidence:
    return {
        "group": name,
        "failed": tally.failed,
        "sample": tally.sample,
        "failed_percent": round(100 * tally.failed / tally.sample, 3),
        "lower_bound_percent": round(100 * low, 3),
        "limit_percent": limit.max_failed_percent,
        "confidence": limit.confidence,
    }
