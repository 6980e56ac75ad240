"""Limit on names that devices report: models, versions, zones, rails. Each is a time series in the collector.

A normal device has a few; a lying one could create millions.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime


class Names:
    """Names by device, used by one thread. `limit`: per device and day (UTC); `left`: data points left out so far."""

    def __init__(self, limit: int) -> None:
        self._limit, self.left = limit, 0
        self._day: date | None = None
        self._known: dict[str, set[str]] = {}

    def of(self, device: str, at: datetime) -> Callable[[str], bool]:
        """Return a predicate: whether the device may use a name. `at`: when its data were received."""
        if at.date() != self._day:
            self._day = at.date()
            self._known.clear()
        known = self._known.setdefault(device, set())

        def admitted(name: str) -> bool:
            if name not in known and len(known) >= self._limit:
                self.left += 1
                return False
            known.add(name)
            return True

        return admitted
