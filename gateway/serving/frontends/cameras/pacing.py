"""Times of frames: the pace of a file, and the upper limit of a rate. Pure: the clock is passed in."""

from __future__ import annotations

EARLY_SHARE = 0.01
"""Share of a period by which a frame may be early: sums of timestamps are not exact."""

GAP_LIMIT_S = 60.0
"""Longest time from one frame of a file to the next; a longer one is an error of its timestamps."""


class PlaybackClock:
    """Pace of a file by its timestamps. The first frame is due at once."""

    def __init__(self) -> None:
        self._origin_s: float | None = None
        self._last_s = 0.0

    def due_s(self, timestamp_s: float, now_s: float) -> float:
        """Return the time at which a frame is due. At once, if timestamps step back or too far forward."""
        if self._origin_s is None or not self._last_s <= timestamp_s <= self._last_s + GAP_LIMIT_S:
            self._origin_s = now_s - timestamp_s
        self._last_s = timestamp_s
        return self._origin_s + timestamp_s


class RateLimit:
    """Upper limit of a rate in frames per second; None: no limit."""

    def __init__(self, per_s: float | None) -> None:
        self._period_s = 1.0 / per_s if per_s else 0.0
        self._due_s: float | None = None

    def admits(self, at_s: float) -> bool:
        """Return True if a frame at this time is within the rate, and count it.

        A frame that comes late does not delay the following ones, so that a camera whose frames come unevenly reaches
        the rate.
        """
        if self._due_s is None or at_s >= self._due_s + self._period_s:
            self._due_s = at_s
        if at_s < self._due_s - EARLY_SHARE * self._period_s:
            return False
        self._due_s += self._period_s
        return True
