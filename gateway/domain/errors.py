"""Two exception roots, by who can mend the matter: the caller of one request, or the operator of the device."""

from __future__ import annotations

import enum


class Fault(enum.Enum):
    """What a caller should do about a refused request; the wire codes stand in `gateway.frontends.status`."""

    INVALID = "INVALID"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    DENIED = "DENIED"
    NOT_FOUND = "NOT_FOUND"
    TOO_LARGE = "TOO_LARGE"
    THROTTLED = "THROTTLED"
    OVERLOADED = "OVERLOADED"
    EXPIRED = "EXPIRED"
    UNAVAILABLE = "UNAVAILABLE"
    UNSUPPORTED = "UNSUPPORTED"
    INTERNAL = "INTERNAL"


class RequestError(Exception):
    """One request is refused; nobody else is disturbed.

    `retry_after_s` is set where waiting helps (OVERLOADED, THROTTLED, UNAVAILABLE).
    """

    def __init__(self, fault: Fault, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.fault = fault
        self.message = message
        self.retry_after_s = retry_after_s


class ConfigurationError(Exception):
    """Something an operator wrote cannot be used: which file, table and key, on which line, and what to do."""

    def __init__(
        self, problem: str, *, file: str = "", table: str = "", key: str = "", line: int | None = None
    ) -> None:
        self.problem, self.file, self.table, self.key, self.line = problem, file, table, key, line
        super().__init__(self._sentence())

    def _sentence(self) -> str:
        place = self.file + (f":{self.line}" if self.line else "")
        name = ".".join(part for part in (self.table, self.key) if part)
        where = ": ".join(part for part in (place, name) if part)
        return f"{where}: {self.problem}" if where else self.problem


class VariantError(Exception):
    """A runtime cannot open or run a variant: `reason` says why in words, `remedy` what to do (may be empty).

    `transient`: the fault lies with the moment (no memory, no process), not with the variant.
    """

    def __init__(self, reason: str, *, remedy: str = "", transient: bool = False) -> None:
        super().__init__(f"{reason}; {remedy}" if remedy else reason)
        self.reason = reason
        self.remedy = remedy
        self.transient = transient


class UnreachableError(ConfigurationError):
    """What was named is well formed but cannot be had now: a port in use, a daemon that does not answer."""
