"""Failed authentications by address: one token bucket per address, for a bounded number of addresses. No clock."""

from __future__ import annotations

from collections import OrderedDict

from gateway.domain.access import FailureBounds
from gateway.domain.addresses import address_group

SECOND_NS = 1_000_000_000


class Failures:
    """Token buckets of the addresses whose authentication failed last."""

    def __init__(self, bounds: FailureBounds) -> None:
        self.bounds = bounds
        self._buckets: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of addresses that are remembered."""
        return len(self._buckets)

    def count(self, address: str, now_ns: int) -> float:
        """Count one failure; return 0.0, or the seconds until another failure of the address is answered as such."""
        group, bounds = address_group(address), self.bounds
        left, since_ns = self._buckets.pop(group, (float(bounds.burst), now_ns))
        left = min(float(bounds.burst), left + (now_ns - since_ns) * bounds.per_s / SECOND_NS)
        wait_s = 0.0 if left >= 1.0 else (1.0 - left) / bounds.per_s
        self._buckets[group] = (left if wait_s else left - 1.0, now_ns)
        while len(self._buckets) > bounds.addresses:
            self._buckets.popitem(last=False)
        return wait_s
