"""Shares of a bounded resource: a total, a reserve for callers on this device, and a share for each caller.

Decisions on values: no clock, no I/O. Every operation takes constant time.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from gateway.domain.addresses import address_group, plain_address

PERCENT = 100
ANONYMOUS = "anonymous"
"""Key of a caller without any identification."""


class RefusalReason(enum.StrEnum):
    """Reason to refuse a resource.

    The share of the `CALLER` or `CONNECTION` is used up; the rest is a `RESERVE` for callers on this device; the
    `TOTAL` is in use.
    """

    CALLER = "caller"
    CONNECTION = "connection"
    RESERVE = "reserve"
    TOTAL = "total"


@dataclass(frozen=True, slots=True)
class ShareBounds:
    """Units of one resource: `total`, `reserve` of them for callers on this device only, `share` for each caller."""

    total: int
    reserve: int
    share: int

    @classmethod
    def of(cls, total: int, *, caller_percent: int, local_percent: int) -> ShareBounds:
        """Divide `total`: at least one unit is left for callers on other devices, and at least one for each caller."""
        reserve = min(total * local_percent // PERCENT, total - 1)
        return cls(total, reserve, max(1, total * caller_percent // PERCENT))


class ResourceUse:
    """Units in use of one resource: `used` in all, `remote` of them by callers beyond this device.

    Callers are identified by a key (`caller_key`). A caller without units is not stored: `total` bounds the memory.
    """

    __slots__ = ("_by_caller", "_most_remote", "_share", "_total", "bounds", "remote", "used")

    def __init__(self, bounds: ShareBounds) -> None:
        self.bounds = bounds
        self._share, self._total, self._most_remote = bounds.share, bounds.total, bounds.total - bounds.reserve
        self.used = self.remote = 0
        self._by_caller: dict[str, int] = {}

    def take(self, key: str, *, local: bool, amount: int = 1) -> RefusalReason | None:
        """Take `amount` units for a caller. Return the reason of a refusal, which takes nothing, or None."""
        held, used = self._by_caller.get(key, 0) + amount, self.used + amount
        remote = self.remote if local else self.remote + amount
        if held > self._share or used > self._total or (remote > self._most_remote and not local):
            return self.refusal(key, local=local, amount=amount)
        self.used, self.remote, self._by_caller[key] = used, remote, held
        return None

    def refusal(self, key: str, *, local: bool, amount: int = 1) -> RefusalReason | None:
        """Return why `amount` more units would be refused, or None."""
        if self._by_caller.get(key, 0) + amount > self._share:
            return RefusalReason.CALLER
        if self.used + amount > self._total:
            return RefusalReason.TOTAL
        if not local and self.remote + amount > self._most_remote:
            return RefusalReason.RESERVE
        return None

    def give(self, key: str, *, local: bool, amount: int = 1) -> None:
        """Return units that were taken with the same `key` and `local`."""
        self.used -= amount
        if not local:
            self.remote -= amount
        held = self._by_caller.get(key, 0) - amount
        if held:
            self._by_caller[key] = held
        else:
            self._by_caller.pop(key, None)

    def add(self, key: str, *, local: bool, amount: int = 1) -> None:
        """Count `amount` more units (negative: fewer) that are in use already, regardless of the bounds."""
        self.used += amount
        if not local:
            self.remote += amount
        held = self._by_caller.get(key, 0) + amount
        if held:
            self._by_caller[key] = held
        else:
            self._by_caller.pop(key, None)

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


def is_loopback(key: str) -> bool:
    """Return True if a `caller_key` is a loopback address."""
    return caller_class(key) == "loopback"


def _address_key(text: str) -> str:
    if text == "unix":  # a user that grpcio does not report
        return "user:unknown"
    try:
        address = plain_address(text)
    except ValueError:
        return f"address:{text}" if text else ANONYMOUS
    return f"loopback:{address}" if address.is_loopback else f"address:{address_group(text)}"
