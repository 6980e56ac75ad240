"""Failed authentications by address: one token bucket per address, for a bounded number of addresses. No clock."""

from __future__ import annotations

from gateway.common.domain.access import FailureBounds
from gateway.common.domain.addresses import address_group
from gateway.common.domain.retry import TokenBuckets


class Failures:
    """Token buckets of the addresses whose authentication failed last."""

    def __init__(self, bounds: FailureBounds) -> None:
        self.bounds = bounds
        self._buckets = TokenBuckets(bounds.per_s, bounds.burst, bounds.addresses)

    def __len__(self) -> int:
        """Return the number of addresses that are remembered."""
        return len(self._buckets)

    def count(self, address: str, now_ns: int) -> float:
        """Count one failure; return 0.0, or the seconds until another failure of the address is answered as such."""
        return self._buckets.take(address_group(address), now_ns)
