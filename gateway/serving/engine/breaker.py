"""Circuit breaker: of runs on the event loop, of joined runs, of a candidate. Pure: no clock inside.

    closed --`limit` faults within `window_ns`--> open --`wait_ns` later--> half open --a fault--> open, wait doubled
    half open --no fault for `window_ns`, or `probation` waits if that is longer--> closed, wait forgotten

Faults that the machine's noise explains change nothing but the beginning of the window. Source of the pattern:
https://martinfowler.com/bliki/CircuitBreaker.html
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

WINDOW_NS = 10_000_000_000
"""Time within which faults add up, unless a breaker has its own. A half-open breaker closes after it."""
LONGEST_WAIT_NS = 3_600_000_000_000
"""Longest wait before another attempt."""
EXPLAINED = 0.5
"""Least part of what faults cost that the machine's noise must have taken meanwhile: then they may be its fault."""
NEVER_NS = 2**63


class BreakerState(Enum):
    """State of a circuit breaker; the table is in this module's docstring."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half open"


@dataclass(frozen=True, slots=True)
class Breaker:
    """Circuit breaker. `limit`: faults that open it. `first_wait_ns`: wait before the first attempt.

    `since_ns`: begin of the window, or when it opened. `noise_ns`: the machine's noise then. `cost_ns`: cost of the
    window's faults since then. `wait_ns`: last wait (0: none). `probation`: as in this module's docstring.
    """

    limit: int
    first_wait_ns: int
    state: BreakerState = BreakerState.CLOSED
    faults: int = 0
    since_ns: int = 0
    noise_ns: int = 0
    cost_ns: int = 0
    wait_ns: int = 0
    window_ns: int = WINDOW_NS
    probation: int = 0

    @property
    def is_open(self) -> bool:
        """Return True if it is not to be used for now."""
        return self.state is BreakerState.OPEN

    @property
    def retry_ns(self) -> int:
        """Return the time of the next attempt; NEVER_NS if it is in use."""
        return self.since_ns + self.wait_ns if self.is_open else NEVER_NS

    def fault(self, now_ns: int, cost_ns: int = 0, noise_ns: int = 0) -> Breaker:
        """Return the breaker after a fault that took `cost_ns`; `noise_ns` grows with the machine's noise."""
        if self.is_open:
            return self
        window, limit = self, 1 if self.state is BreakerState.HALF_OPEN else self.limit
        half_open = self.state is BreakerState.HALF_OPEN
        if now_ns - self.since_ns > max(self.window_ns, self.probation * self.wait_ns * half_open):
            closed = BreakerState.CLOSED
            window, limit = replace(self, state=closed, faults=0, noise_ns=0, cost_ns=0, wait_ns=0), self.limit
        if not window.faults and limit > 1:
            return replace(window, faults=1, since_ns=now_ns, noise_ns=noise_ns)
        faults, cost_ns = window.faults + 1, window.cost_ns + cost_ns
        if faults < limit:
            return replace(window, faults=faults, cost_ns=cost_ns)
        if cost_ns and noise_ns - window.noise_ns >= EXPLAINED * cost_ns:
            return replace(window, faults=0, since_ns=now_ns, noise_ns=noise_ns, cost_ns=0)
        wait_ns = min(2 * window.wait_ns, max(LONGEST_WAIT_NS, self.first_wait_ns)) or self.first_wait_ns
        return replace(self, state=BreakerState.OPEN, faults=faults, since_ns=now_ns, cost_ns=0, wait_ns=wait_ns)

    def attempt(self, now_ns: int, noise_ns: int = 0) -> Breaker:
        """Return the breaker as it is used again, on probation."""
        half_open = BreakerState.HALF_OPEN
        return replace(self, state=half_open, faults=0, since_ns=now_ns, noise_ns=noise_ns, cost_ns=0)
