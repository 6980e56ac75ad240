"""Failed authentications by address: a token bucket for each, of a bounded number of addresses. No clock."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict

from gateway.domain.access import FailureBounds

SUBNET_BITS = 64
"""Bits of an IPv6 address that a network gives; a host chooses the others freely (RFC 4291, section 2.5.4)."""
SECOND_NS = 1_000_000_000


class Failures:
    """The addresses that failed last."""

    def __init__(self, bounds: FailureBounds) -> None:
        self.bounds = bounds
        self._buckets: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def __len__(self) -> int:
        """Return how many addresses are remembered."""
        return len(self._buckets)

    def count(self, address: str, now_ns: int) -> float:
        """Count one failure; return 0.0, or the seconds after which the address may fail again."""
        group, bounds = address_group(address), self.bounds
        left, since_ns = self._buckets.pop(group, (float(bounds.burst), now_ns))
        left = min(float(bounds.burst), left + (now_ns - since_ns) * bounds.per_s / SECOND_NS)
        wait_s = 0.0 if left >= 1.0 else (1.0 - left) / bounds.per_s
        self._buckets[group] = (left if wait_s else left - 1.0, now_ns)
        while len(self._buckets) > bounds.addresses:
            self._buckets.popitem(last=False)
        return wait_s


def address_group(text: str) -> str:
    """Return an address as failures are counted by it: the /64 of an IPv6 address, any other text itself."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return text
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(address.ipv4_mapped or ipaddress.ip_network((address, SUBNET_BITS), strict=False))
