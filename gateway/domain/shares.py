"""Shares of a bounded resource: a total, a reserve for callers on this device, and a share for each caller.

Decisions on values: no clock, no I/O. Every operation takes constant time.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from gateway.domain.addresses import address_group, plain_address

PERCENT = 100
ANONYMOUS = "anonymous"
"""The key of a caller that nothing identifies."""


class Refusal(enum.StrEnum):
    """Why a resource is not given: the share of the `CALLER` or `CONNECTION` is used up; the rest is a `RESERVE` for
    callers on this device; the `TOTAL` is in use."""

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
        """Divide `total`, of which one unit at least is for everyone, and one for each caller."""
        reserve = min(total * local_percent // PERCENT, total - 1)
        return cls(total, reserve, max(1, total * caller_percent // PERCENT))


class Shares:
    """What is in use of one resource. `used` units are taken, `remote` of them by callers beyond this device.

    Callers are named by a key (`caller_key`); who has nothing is not remembered, so that memory is bounded by `total`.
    """

    __slots__ = ("_by_caller", "_most_remote", "_share", "_total", "bounds", "remote", "used")

    def __init__(self, bounds: ShareBounds) -> None:
        self.bounds = bounds
        self._share, self._total, self._most_remote = bounds.share, bounds.total, bounds.total - bounds.reserve
        self.used = self.remote = 0
        self._by_caller: dict[str, int] = {}

    def take(self, key: str, *, local: bool, amount: int = 1) -> Refusal | None:
        """Take `amount` units for a caller; returns why not, and then takes nothing."""
        held, used = self._by_caller.get(key, 0) + amount, self.used + amount
        remote = self.remote if local else self.remote + amount
        if held > self._share or used > self._total or (remote > self._most_remote and not local):
            return self.refusal(key, local=local, amount=amount)
        self.used, self.remote, self._by_caller[key] = used, remote, held
        return None

    def refusal(self, key: str, *, local: bool, amount: int = 1) -> Refusal | None:
        """Why `amount` more units would not be given, or None."""
        if self._by_caller.get(key, 0) + amount > self._share:
            return Refusal.CALLER
        if self.used + amount > self._total:
            return Refusal.TOTAL
        if not local and self.remote + amount > self._most_remote:
            return Refusal.RESERVE
        return None

    def give(self, key: str, *, local: bool, amount: int = 1) -> None:
        """Return what was taken with the same `key` and `local`."""
        self.used -= amount
        if not local:
            self.remote -= amount
        held = self._by_caller.get(key, 0) - amount
        if held:
            self._by_caller[key] = held
        else:
            self._by_caller.pop(key, None)

    def add(self, key: str, *, local: bool, amount: int = 1) -> None:
        """Count `amount` units more (negative: fewer) that are in use already, whatever the bounds say."""
        self.used += amount
        if not local:
            self.remote += amount
        held = self._by_caller.get(key, 0) + amount
        if held:
            self._by_caller[key] = held
        else:
            self._by_caller.pop(key, None)

    def held(self, key: str) -> int:
        """Units that a caller has."""
        return self._by_caller.get(key, 0)


def caller_key(*, token: str = "", certificate: str = "", uid: int | None = None, address: str = "") -> str:
    """Name a caller, `class:name`, by the strongest of what identifies it: "token:north", "user:1000",
    "loopback:127.0.0.1", "address:2001:db8::/64"."""
    if token:
        return f"token:{token}"
    if certificate:
        return f"certificate:{certificate}"
    return f"user:{uid}" if uid is not None else _address_key(address)


def caller_class(key: str) -> str:
    """The class of a `caller_key`, such as "token": the label of metrics."""
    return key.partition(":")[0]


def is_loopback(key: str) -> bool:
    """Whether a `caller_key` is an address of this device alone."""
    return caller_class(key) == "loopback"


def _address_key(text: str) -> str:
    if text == "unix":  # a user that grpcio does not tell
        return "user:unknown"
    try:
        address = plain_address(text)
    except ValueError:
        return f"address:{text}" if text else ANONYMOUS
    return f"loopback:{address}" if address.is_loopback else f"address:{address_group(text)}"
