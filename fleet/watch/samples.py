"""Counters that devices tell, turned into shares of failed runs over samples that are large enough.

In memory: a restart begins a sample anew, which delays an alert and never invents one.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Sample:
    """Of one slot since the last sample: `percent` of its `requests` failed."""

    requests: int
    failed: int

    @property
    def percent(self) -> float:
        """0 to 100: a run that fails may be counted before its requests are."""
        return 100.0 * min(1.0, self.failed / max(self.requests, self.failed, 1))


class Samples:
    """Versions of slots beyond `limit` are forgotten, the longest silent first."""

    def __init__(self, min_sample: int, limit: int) -> None:
        self._min_sample, self._limit = min_sample, limit
        self._counters: OrderedDict[tuple[str, str, str], tuple[int, int]] = OrderedDict()
        self._begun: OrderedDict[tuple[str, str], tuple[int, int]] = OrderedDict()

    def take(self, device: str, slot: str, version: str, counters: tuple[int, int]) -> Sample | None:
        """`counters`: requests and failed runs since the daemon started. The sample, where it is complete."""
        before = self._counters.get((device, slot, version))
        _keep(self._counters, (device, slot, version), counters, self._limit)
        if before is None:
            return None
        if counters[0] < before[0] or counters[1] < before[1]:
            before = (0, 0)  # the daemon started anew
        return self._add((device, slot), counters[0] - before[0], counters[1] - before[1])

    def _add(self, slot: tuple[str, str], requests: int, failed: int) -> Sample | None:
        begun = self._begun.pop(slot, (0, 0))
        sample = Sample(begun[0] + requests, begun[1] + failed)
        if max(sample.requests, sample.failed) >= self._min_sample:
            return sample
        _keep(self._begun, slot, (sample.requests, sample.failed), self._limit)
        return None

    def __len__(self) -> int:
        """How many versions of slots are remembered."""
        return len(self._counters)


def _keep(table: OrderedDict[K, V], key: K, value: V, limit: int) -> None:
    table[key] = value
    table.move_to_end(key)
    if len(table) > limit:
        table.popitem(last=False)
