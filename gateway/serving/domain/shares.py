"""Shares of a bounded resource: a total, reserves, and a share for each caller and each network of addresses.

Decisions on values: no clock, no I/O. Every operation takes constant time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from gateway.common.domain.addresses import address_group, network_group, plain_address
from gateway.common.domain.python310 import StrEnum

PERCENT = 100
ANONYMOUS = "anonymous"
"""Key of a caller without any identification."""


class RefusalReason(StrEnum):
    """Reason to refuse a resource.

    The share of the `CALLER`, its `NETWORK` or the `CONNECTION` is used up; the rest is a `RESERVE` for callers on this
    device or identified ones; the `TOTAL` is in use.
    """

    CALLER = "caller"
    NETWORK = "network"
    CONNECTION = "connection"
    RESERVE = "reserve"
    TOTAL = "total"


@dataclass(frozen=True, slots=True)
class ShareBounds:
    """Units of one resource: `total`, `share` of them for each caller, `network` for the anonymous ones of one network.

    Callers on other devices leave `reserve` units to this device. Anonymous TCP leaves `reserve` to identified callers
    (token, certificate, user behind a UNIX socket); if it comes from another device, it leaves both.
    """

    total: int
    reserve: int
    share: int
    network: int

    @classmethod
    def of(cls, total: int, *, caller_percent: int, local_percent: int, network_percent: int = PERCENT) -> ShareBounds:
        """Divide `total`: at least one unit is left for callers on other devices, and at least one for each caller."""
        reserve = min(total * local_percent // PERCENT, total - 1)
        share = max(1, total * caller_percent // PERCENT)
        return cls(total, reserve, share, max(share, total * network_percent // PERCENT))


class ResourceUse:
    """Units in use of one resource: `used` in all, `remote` by callers beyond this device, `anonymous` by addresses.

    Callers are identified by a key (`caller_key`). A caller without units is not stored: `total` bounds the memory.
    """

    __slots__ = ("_by_caller", "_most_remote", "_most_remote_anonymous", "anonymous", "bounds", "remote", "used")

    def __init__(self, bounds: ShareBounds) -> None:
        self.bounds = bounds
        self.used = self.remote = self.anonymous = 0
        self._by_caller: dict[str, int] = {}
        """Units by key of a caller, and of a network."""
        self._most_remote = bounds.total - bounds.reserve
        self._most_remote_anonymous = max(1, self._most_remote - bounds.reserve)

    def take(self, key: str, *, local: bool, amount: int = 1) -> RefusalReason | None:
        """Take `amount` units for a caller. Return the reason of a refusal, which takes nothing, or None."""
        bounds, by_caller, network = self.bounds, self._by_caller, network_key(key)
        held, used = by_caller.get(key, 0) + amount, self.used + amount
        remote = self.remote if local else self.remote + amount
        if held > bounds.share or used > bounds.total or not (local or remote <= self._most_remote):
            return self.refusal(key, local=local, amount=amount)
        if network:
            in_network, anonymous = by_caller.get(network, 0) + amount, self.anonymous + amount
            if (
                in_network > bounds.network
                or anonymous > self._most_remote
                or not (local or remote <= self._most_remote_anonymous)
            ):
                return self.refusal(key, local=local, amount=amount)
            by_caller[network], self.anonymous = in_network, anonymous
        by_caller[key], self.used, self.remote = held, used, remote
        return None

    def refusal(self, key: str, *, local: bool, amount: int = 1) -> RefusalReason | None:
        """Return why `amount` more units would be refused, or None."""
        bounds, network = self.bounds, network_key(key)
        if self._by_caller.get(key, 0) + amount > bounds.share:
            return RefusalReason.CALLER
        if network and self._by_caller.get(network, 0) + amount > bounds.network:
            return RefusalReason.NETWORK
        if self.used + amount > bounds.total:
            return RefusalReason.TOTAL
        most = self._most_remote_anonymous if network else self._most_remote
        if (not local and self.remote + amount > most) or (network and self.anonymous + amount > self._most_remote):
            return RefusalReason.RESERVE
        return None

    def give(self, key: str, *, local: bool, amount: int = 1) -> None:
        """Return units that were taken with the same `key` and `local`."""
        self.add(key, local=local, amount=-amount)

    def add(self, key: str, *, local: bool, amount: int = 1) -> None:
        """Count `amount` more units (negative: fewer) that are in use already, regardless of the bounds."""
        self.used += amount
        if not local:
            self.remote += amount
        by_caller = self._by_caller
        if network := network_key(key):
            self.anonymous += amount
            if in_network := by_caller.get(network, 0) + amount:
                by_caller[network] = in_network
            else:
                by_caller.pop(network, None)
        if held := by_caller.get(key, 0) + amount:
            by_caller[key] = held
        else:
            by_caller.pop(key, None)

    def held(self, key: str) -> int:
        """Return the units that a caller holds."""
        return self._by_caller.get(key, 0)


def caller_key(*, token: str = "", certificate: str = "", uid: int | None = None, address: str = "") -> str:
    """Return the key of a caller, `class:name`, by the strongest identification available.

    Examples: "token:north", "user:1000", "loopback:127.0.0.1", "address:2001:db8::/64".
    """
    if token:
        return f"token:{token}"
    if certificate:
        return f"certificate:{certificate}"
    return f"user:{uid}" if uid is not None else _address_key(address)


def caller_class(key: str) -> str:
    """Return the class of a `caller_key`, such as "token": the label of metrics."""
    return key.partition(":")[0]


@lru_cache(maxsize=4096)
def network_key(key: str) -> str:
    """Return the network in whose share an anonymous caller counts, such as "network:192.0.2.0/24"; "": identified."""
    kind, _, address = key.partition(":")
    return f"network:{network_group(address)}" if kind in {"address", "loopback", ANONYMOUS} else ""


def is_loopback(key: str) -> bool:
    """Return True if a `caller_key` is a loopback address."""
    return caller_class(key) == "loopback"


@lru_cache(maxsize=4096)
def _address_key(text: str) -> str:
    try:
        address = plain_address(text)
    except ValueError:
        return f"address:{text}" if text else ANONYMOUS
    return f"loopback:{address}" if address.is_loopback else f"address:{address_group(text)}"
