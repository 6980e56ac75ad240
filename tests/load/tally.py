"""Counts and latencies of a simulation, and their summary. No I/O."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.load.casting import COMMITTING, Behaviour, Character

STEP = 1.02
"""Ratio between the bounds of adjacent buckets: two percent."""
PERCENTILES = (50, 90, 99)


class Spread:
    """Histogram of durations: percentiles with a precision of two percent, in bounded memory."""

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()
        self.count, self.total_s, self.most_s = 0, 0.0, 0.0

    def add(self, duration_s: float) -> None:
        """Add one duration."""
        self._buckets[math.ceil(math.log(max(duration_s, 1e-6), STEP))] += 1
        self.count += 1
        self.total_s += duration_s
        self.most_s = max(self.most_s, duration_s)

    def percentile(self, percent: float) -> float:
        """Return a percentile in seconds; 0 if there are no durations."""
        wanted, seen = self.count * percent / 100.0, 0
        for bucket, count in sorted(self._buckets.items()):
            seen += count
            if seen >= wanted:
                return min(self.most_s, STEP**bucket)
        return 0.0

    def document(self, scale: float = 1.0) -> dict[str, float]:
        """Return percentiles, mean and maximum. `scale` 1000: in milliseconds."""
        found = {f"p{percent}": self.percentile(percent) for percent in PERCENTILES}
        found |= {"mean": self.total_s / self.count if self.count else 0.0, "max": self.most_s}
        return {name: round(value * scale, 3) for name, value in found.items()}


@dataclass
class Tally:
    """Counts of a simulation.

    `answers`: by request kind and status; `problems`: other failures; `states`: of devices, by number. `offers` and
    `ends`: seconds from the start at which a device first received an offer, and committed it.
    """

    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    problems: Counter[str] = field(default_factory=Counter)
    latencies: dict[str, Spread] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)
    offers: dict[int, float] = field(default_factory=dict)
    ends: dict[int, float] = field(default_factory=dict)
    to_committed: Spread = field(default_factory=Spread)
    connections: int = 0
    resumed: int = 0
    rows: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    distrusted: int = 0

    def answered(self, what: str, status: int, duration_s: float) -> None:
        """Count a response."""
        self.answers[what, status] += 1
        self._took(what if status != 304 else f"{what} unchanged", duration_s)

    def connected(self, duration_s: float, *, resumed: bool) -> None:
        """Count an established connection, TLS included."""
        self.connections += 1
        self.resumed += resumed
        self._took("connect", duration_s)

    def _took(self, what: str, duration_s: float) -> None:
        self.latencies.setdefault(what, Spread()).add(duration_s)

    def failed(self, what: str, why: str) -> None:
        """Count a request without a usable response."""
        self.problems[f"{what}: {why}"] += 1

    def offered(self, number: int, at_s: float) -> None:
        """Record that a device received an offer."""
        self.states[number] = "offered"
        self.offers.setdefault(number, at_s)

    def ended(self, number: int, state: str, at_s: float, took_s: float) -> None:
        """Record the end of an update."""
        self.states[number] = state
        if state == "committed":
            self.ends.setdefault(number, at_s)
            self.to_committed.add(took_s)

    @property
    def requests(self) -> int:
        """The number of requests with a response."""
        return sum(self.answers.values())

    def settled(self, characters: Iterable[Character]) -> bool:
        """Return whether every device that can commit has committed something."""
        return all(c.number in self.ends for c in characters if c.part in COMMITTING)


def by_status(answers: Mapping[tuple[str, int], int]) -> dict[str, dict[str, int]]:
    """Return counts by request kind and status."""
    found: dict[str, dict[str, int]] = {}
    for (what, status), count in sorted(answers.items()):
        found.setdefault(what, {})[str(status)] = count
    return found


def summary(tally: Tally, characters: Iterable[Character], seconds: float, seed: int) -> dict[str, Any]:
    """Return the result of `run --json`, without the costs on the controller's machine."""
    cast = tuple(characters)
    parts = Counter(character.part for character in cast)
    states = Counter(tally.states.get(character.number, "waiting") for character in cast)
    return {
        "devices": len(cast),
        "seed": seed,
        "seconds": round(seconds, 3),
        "parts": {part.value: parts[part] for part in Behaviour if parts[part]},
        "states": dict(sorted(states.items())),
        "requests": tally.requests,
        "requests_per_s": round(tally.requests / seconds, 1) if seconds else 0.0,
        "answers": by_status(tally.answers),
        "problems": dict(sorted(tally.problems.items())),
        "distrusted": tally.distrusted,
        "latency_ms": {what: spread.document(1000.0) for what, spread in sorted(tally.latencies.items())},
        "connections": tally.connections,
        "resumed": tally.resumed,
        "telemetry_rows": tally.rows,
        "sent_bytes": tally.sent_bytes,
        "received_bytes": tally.received_bytes,
        "offered": len(tally.offers),
        "committed": len(tally.ends),
        "settled": tally.settled(cast),
        "offer_to_committed_s": tally.to_committed.document(),
        "first_offer_to_last_commit_s": _wave_s(tally),
    }


def _wave_s(tally: Tally) -> float | None:
    if not tally.ends:
        return None
    return round(max(tally.ends.values()) - min(tally.offers.values()), 3)
