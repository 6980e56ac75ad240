"""How fast, how long and how often: decisions about one download, on values and `now_ns`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gateway.agent.settings import FetchSettings
from gateway.domain.retry import pause_s

NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Verdict:
    """How long the next read may take at most (`wait_ns`), or why there is none (`problem`)."""

    wait_ns: int
    problem: str = ""


class Patience:
    """With one download: its deadline, the longest silence, and a rate below which its server is hung up on.

    The rate is held over one window after the other. A window in which we paused ourselves lasts that much longer.
    """

    def __init__(self, settings: FetchSettings, deadline_s: float, now_ns: int) -> None:
        self._settings = settings
        self._deadline_s = deadline_s
        self._deadline_ns = now_ns + round(deadline_s * NS)
        self.begin(now_ns)

    @property
    def deadline_s(self) -> float:
        """How long all of it may take."""
        return self._deadline_s

    def remaining_ns(self, now_ns: int) -> int:
        """Until the deadline; 0 where it is over."""
        return max(0, self._deadline_ns - now_ns)

    def begin(self, now_ns: int) -> None:
        """An attempt begins: whoever answers has a whole window."""
        self._window_ns = self._heard_ns = now_ns
        self._came_bytes = 0

    def came(self, count_bytes: int, now_ns: int) -> None:
        """So much was read."""
        self._came_bytes += count_bytes
        self._heard_ns = now_ns

    def paused(self, pause_ns: int) -> None:
        """We did not read for so long, by our own choice."""
        self._window_ns += pause_ns
        self._heard_ns += pause_ns

    def next_read(self, now_ns: int) -> Verdict:
        """Whether, and how long, to wait for more."""
        settings = self._settings
        remaining_ns = self.remaining_ns(now_ns)
        if not remaining_ns:
            return Verdict(0, f"it was not finished within {self._deadline_s:g} s")
        silence_ns = self._heard_ns + round(settings.read_timeout_s * NS) - now_ns
        if silence_ns <= 0:
            return Verdict(0, f"nothing came for {settings.read_timeout_s:g} s")
        window_ns = self._window_ns + round(settings.minimum_rate_window_s * NS) - now_ns
        if window_ns <= 0:
            if self._came_bytes < least_bytes(settings):
                return Verdict(0, f"only {self._came_bytes} bytes came in {settings.minimum_rate_window_s:g} s")
            self._window_ns, self._came_bytes = now_ns, 0
            window_ns = round(settings.minimum_rate_window_s * NS)
        return Verdict(max(1, min(remaining_ns, silence_ns, window_ns)))


def least_bytes(settings: FetchSettings) -> float:
    """What the minimum rate makes in one window: less than this is no progress."""
    return settings.minimum_rate_bytes_per_s * settings.minimum_rate_window_s


class TokenBucket:
    """At most `rate_bytes_per_s` on average and `burst_bytes` at once; a rate of 0 sets no limit.

    Bytes are taken after they came, so the bucket may run into debt: the pause pays it off.
    """

    def __init__(self, rate_bytes_per_s: float, burst_bytes: int, now_ns: int) -> None:
        self._rate, self._burst = rate_bytes_per_s, float(burst_bytes)
        self._tokens, self._at_ns = self._burst, now_ns

    def take(self, count_bytes: int, now_ns: int) -> int:
        """How long to pause (ns) after `count_bytes` came at `now_ns`."""
        if not self._rate:
            return 0
        gained = max(0, now_ns - self._at_ns) * self._rate / NS
        self._tokens = min(self._burst, self._tokens + gained) - count_bytes
        self._at_ns = now_ns
        return math.ceil(max(0.0, -self._tokens) / self._rate * NS)


def backoff_ns(settings: FetchSettings, failures: int, chance: float, retry_after_s: float = 0.0) -> int:
    """The pause after `failures` in a row (from 1), `chance` being drawn from [0, 1): full jitter.

    A server's Retry-After is kept to where it is longer, and believed up to `retry_after_limit_s`.
    """
    wait_s = pause_s(failures, settings.backoff_base_s, settings.backoff_limit_s, chance)
    return round(max(wait_s, min(retry_after_s, settings.retry_after_limit_s)) * NS)
