"""Requests served to each caller while a queue is congested. Decisions on values: no clock, no lock, no thread.

Periodic callers, such as cameras of one frame rate, arrive in the same order again and again: at a full queue without a
memory, the same ones are refused each time. With it a caller that got less than the mean goes before one that got more.
"""

from __future__ import annotations

CREDIT = 8.0
"""Requests below the mean that a caller may save up."""
CALLERS_LIMIT = 4096
"""Callers counted; one more makes the record begin again."""


class ServiceRecord:
    """Counts of one congested period. A caller enters it with the mean of the others."""

    __slots__ = ("_by_caller", "_total")

    def __init__(self) -> None:
        self._by_caller: dict[str, float] = {}
        self._total = 0.0

    def enter(self, caller: str) -> None:
        """Count `caller` from now on."""
        if caller in self._by_caller:
            return
        if len(self._by_caller) >= CALLERS_LIMIT:
            self._by_caller.clear()
            self._total = 0.0
        served = self._mean()
        self._by_caller[caller] = served
        self._total += served

    def add(self, caller: str) -> None:
        """Count one request that is served."""
        self.enter(caller)
        self._by_caller[caller] += 1
        self._total += 1

    def of(self, caller: str) -> float:
        """Return what was served to `caller`, at least CREDIT less than the mean."""
        mean = self._mean()
        return max(self._by_caller.get(caller, mean), mean - CREDIT)

    def _mean(self) -> float:
        return self._total / len(self._by_caller) if self._by_caller else 0.0
