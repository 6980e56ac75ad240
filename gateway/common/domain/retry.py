"""Pauses before another attempt, and rates of attempts. The clock is passed in, and so is the chance of a pause."""

from __future__ import annotations

from collections import OrderedDict
from datetime import datetime, timezone
from random import SystemRandom

draw_chance = SystemRandom().random
"""Return a number from [0, 1), the `chance` of a pause."""
SECOND_NS = 1_000_000_000
DOUBLINGS_LIMIT = 32
SECONDS_DIGITS = 10
"""Digits of a Retry-After in seconds that are read."""


def longest_pause_s(failures: int, base_s: float, limit_s: float) -> float:
    """Return `base_s`, doubled with each failure in a row after the first, at most `limit_s`."""
    return min(limit_s, base_s * 2.0 ** min(max(failures, 1) - 1, DOUBLINGS_LIMIT))


def pause_s(failures: int, base_s: float, limit_s: float, chance: float) -> float:
    """Return the pause after `failures` in a row, with full jitter. `chance`: drawn from [0, 1) for each pause.

    Source: https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
    """
    return chance * longest_pause_s(failures, base_s, limit_s)


def retry_after_s(text: str, now: datetime) -> float:
    """Return the seconds of a Retry-After header, which holds seconds or a date (RFC 9110, 10.2.3); else 0.0."""
    if text.isascii() and text.isdigit():
        return float(text[:SECONDS_DIGITS])
    from email.utils import parsedate_to_datetime  # 10 ms of a start

    try:
        at = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return 0.0
    return max(0.0, ((at if at.tzinfo else at.replace(tzinfo=timezone.utc)) - now).total_seconds())


class TokenBuckets:
    """One token bucket per key: it begins with `burst` tokens and gains `per_s`; a rate of 0 sets no limit.

    Of more than `limit` keys the one that was silent longest is forgotten: its bucket is full again.
    """

    def __init__(self, per_s: float, burst: float, limit: int) -> None:
        self._per_s, self._burst, self._limit = per_s, max(1.0, burst), limit
        self._levels: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def __len__(self) -> int:
        """Return how many keys are remembered."""
        return len(self._levels)

    def take(self, key: str, now_ns: int, cost: float = 1.0) -> float:
        """Return 0.0 and take `cost` if the bucket holds a token; else return the seconds until it does."""
        if not self._per_s:
            return 0.0
        level = self._level(key, now_ns)
        granted = level >= 1.0
        self._keep(key, level - cost if granted else level, now_ns)
        return 0.0 if granted else (1.0 - level) / self._per_s

    def fine(self, key: str, now_ns: int, cost: float) -> None:
        """Take `cost` whatever the bucket holds; the debt is at most one burst."""
        if self._per_s:
            self._keep(key, max(-self._burst, self._level(key, now_ns) - cost), now_ns)

    def _level(self, key: str, now_ns: int) -> float:
        level, then_ns = self._levels.get(key, (self._burst, now_ns))
        return min(self._burst, level + max(0, now_ns - then_ns) / SECOND_NS * self._per_s)

    def _keep(self, key: str, level: float, now_ns: int) -> None:
        self._levels[key] = (level, now_ns)
        self._levels.move_to_end(key)
        if len(self._levels) > self._limit:
            self._levels.popitem(last=False)
