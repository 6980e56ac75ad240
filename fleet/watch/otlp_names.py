"""Names that devices bring themselves: models, versions, zones, rails. Each is a time series that a collector keeps.
A device of ours has a few; one that lies would make it keep millions."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime


class Names:
    """Used by one thread. `limit`: of a device in a day (UTC); `left`: how many data points were left out so far."""

    def __init__(self, limit: int) -> None:
        self._limit, self.left = limit, 0
        self._day: date | None = None
        self._known: dict[str, set[str]] = {}

    def of(self, device: str, at: datetime) -> Callable[[str], bool]:
        """Whether the device may say this name. `at`: when it was heard."""
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
