"""Limits of one download: time, rate and retries. Decisions on values and `now_ns`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gateway.common.domain.retry import pause_s
from gateway.common.transfer.settings import FetchSettings

NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ReadPace:
    """Longest time for the next read (`wait_ns`), or why there is none (`problem`)."""

    wait_ns: int
    problem: str = ""


class TransferPace:
    """Limits of one download: its deadline, the longest silence and the minimum rate.

    The rate is checked over consecutive windows. A pause of our own extends its window.
    """

    def __init__(self, settings: FetchSettings, deadline_s: float, now_ns: int) -> None:
        self._settings = settings
        self._deadline_s = deadline_s
        self._deadline_ns = now_ns + round(deadline_s * NS)
        self.begin(now_ns)

    @property
    def deadline_s(self) -> float:
        """Time for the whole download, in seconds."""
        return self._deadline_s

    def remaining_ns(self, now_ns: int) -> int:
        """Return the time until the deadline; 0 after it."""
        return max(0, self._deadline_ns - now_ns)

    def begin(self, now_ns: int) -> None:
        """Begin an attempt with a new window."""
        self._window_ns = self._received_ns = now_ns
        self._came_bytes = 0

    def came(self, count_bytes: int, now_ns: int) -> None:
        """Count bytes that were read."""
        self._came_bytes += count_bytes
        self._received_ns = now_ns

    def paused(self, pause_ns: int) -> None:
        """Extend the window by a pause of our own."""
        self._window_ns += pause_ns
        self._received_ns += pause_ns

    def next_read(self, now_ns: int) -> ReadPace:
        """Return how long the next read may wait, or why it may not."""
        settings = self._settings
        remaining_ns = self.remaining_ns(now_ns)
        if not remaining_ns:
            return ReadPace(0, f"it was not finished within {self._deadline_s:g} s")
        silence_ns = self._received_ns + round(settings.read_timeout_s * NS) - now_ns
        if silence_ns <= 0:
            return ReadPace(0, f"nothing came for {settings.read_timeout_s:g} s")
        window_ns = self._window_ns + round(settings.minimum_rate_window_s * NS) - now_ns
        if window_ns <= 0:
            if self._came_bytes < least_bytes(settings):
                return ReadPace(0, f"only {self._came_bytes} bytes came in {settings.minimum_rate_window_s:g} s")
            self._window_ns, self._came_bytes = now_ns, 0
            window_ns = round(settings.minimum_rate_window_s * NS)
        return ReadPace(max(1, min(remaining_ns, silence_ns, window_ns)))


def least_bytes(settings: FetchSettings) -> float:
    """Return the bytes of the minimum rate in one window. Fewer bytes count as no progress."""
    return settings.minimum_rate_bytes_per_s * settings.minimum_rate_window_s


class TokenBucket:
    """Limit of `rate_bytes_per_s` on average and `burst_bytes` at once; a rate of 0 sets no limit.

    Bytes are taken after they came, so the level may be negative. The pause restores it.
    """

    def __init__(self, rate_bytes_per_s: float, burst_bytes: int, now_ns: int) -> None:
        self._rate, self._burst = rate_bytes_per_s, float(burst_bytes)
        self._tokens, self._at_ns = self._burst, now_ns

    def take(self, count_bytes: int, now_ns: int) -> int:
        """Return the pause in ns after `count_bytes` came at `now_ns`."""
        if not self._rate:
            return 0
        gained = max(0, now_ns - self._at_ns) * self._rate / NS
        self._tokens = min(self._burst, self._tokens + gained) - count_bytes
        self._at_ns = now_ns
        return math.ceil(max(0.0, -self._tokens) / self._rate * NS)


def backoff_ns(settings: FetchSettings, failures: int, chance: float, retry_after_s: float = 0.0) -> int:
    """Return the pause after `failures` in a row (from 1), with full jitter. `chance` is drawn from [0, 1).

    A longer Retry-After of the server is respected, up to `retry_after_limit_s`.
    """
    wait_s = pause_s(failures, settings.backoff_base_s, settings.backoff_limit_s, chance)
    return round(max(wait_s, min(retry_after_s, settings.retry_after_limit_s)) * NS)
