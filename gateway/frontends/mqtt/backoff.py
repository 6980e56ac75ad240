"""Random delays before another attempt: full jitter, so that the devices of a fleet do not reconnect together."""

from __future__ import annotations

from random import SystemRandom

_RANDOM = SystemRandom()


def ceiling_s(failures: int, low_s: float, high_s: float) -> float:
    """Return the upper end of the delay after `failures` (from 0) failed attempts.

    It is `low_s`, doubled for each failure, and at most `high_s`.
    """
    return min(high_s, low_s * 2.0 ** min(failures, 32))


def delay_s(failures: int, low_s: float, high_s: float) -> float:
    """Return a random delay in seconds between 0 and the upper end."""
    return _RANDOM.uniform(0.0, ceiling_s(failures, low_s, high_s))
