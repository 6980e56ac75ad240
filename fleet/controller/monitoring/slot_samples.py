"""Shares of failed runs, computed from devices' counters over samples that are large enough.

They are kept in memory. A restart begins new samples, which may delay an alert and never causes one.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")
Counters = tuple[int, int]


@dataclass(frozen=True, slots=True)
class SlotSample:
    """Requests of one slot since the last sample: `percent` of its `requests` failed."""

    requests: int
    failed: int

    @property
    def percent(self) -> float:
        """The failed share, 0 to 100. A failed run may be counted before its requests, so the share is limited."""
        return 100.0 * min(1.0, self.failed / max(self.requests, self.failed, 1))


VERSIONS_LIMIT = 64
"""Most slots and versions that are kept of one device, whatever it reports."""


@dataclass(slots=True)
class _Device:
    """Counters of one device.

    `counters`: the last report by slot and version. `begun`: requests and failed runs of incomplete samples, by slot.
    """

    counters: OrderedDict[tuple[str, str], Counters] = field(default_factory=OrderedDict)
    begun: OrderedDict[str, Counters] = field(default_factory=OrderedDict)


class Samples:
    """Samples of up to `limit` devices. The device that has been silent longest is discarded first.

    So no device can cause another one to be discarded early.
    """

    def __init__(self, min_sample: int, limit: int) -> None:
        self._min_sample, self._limit = min_sample, limit
        self._devices: OrderedDict[str, _Device] = OrderedDict()

    def take(self, device: str, slot: str, version: str, counters: Counters) -> SlotSample | None:
        """Add a report. Return the sample if it is complete, or None.

        `counters`: requests and failed runs since the daemon started.
        """
        known = self._devices.get(device) or _Device()
        _keep(self._devices, device, known, self._limit)
        before = known.counters.get((slot, version))
        _keep(known.counters, (slot, version), counters, VERSIONS_LIMIT)
        if before is None:
            return None
        if counters[0] < before[0] or counters[1] < before[1]:
            before = (0, 0)  # the daemon was restarted
        begun = known.begun.pop(slot, (0, 0))
        sample = SlotSample(begun[0] + counters[0] - before[0], begun[1] + counters[1] - before[1])
        if max(sample.requests, sample.failed) >= self._min_sample:
            return sample
        _keep(known.begun, slot, (sample.requests, sample.failed), VERSIONS_LIMIT)
        return None

    def __len__(self) -> int:
        """Return how many devices are kept."""
        return len(self._devices)


def _keep(table: OrderedDict[K, V], key: K, value: V, limit: int) -> None:
    table[key] = value
    table.move_to_end(key)
    if len(table) > limit:
        table.popitem(last=False)
