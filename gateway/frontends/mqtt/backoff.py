"""How long to wait before another try: full jitter, so that a fleet does not come back in step."""

from __future__ import annotations

from random import SystemRandom

_RANDOM = SystemRandom()


def ceiling_s(failures: int, low_s: float, high_s: float) -> float:
    """Upper end of the delay after `failures` (from 0) failed tries: `low_s`, doubled each time, at most `high_s`."""
    return min(high_s, low_s * 2.0 ** min(failures, 32))


def delay_s(failures: int, low_s: float, high_s: float) -> float:
    """A random delay in seconds between 0 and the ceiling."""
    return _RANDOM.uniform(0.0, ceiling_s(failures, low_s, high_s))
