"""Times at which devices were last seen, buffered in memory.

A poll must not cost a write. A kill loses the times of one interval.
"""

from __future__ import annotations

import threading
from datetime import datetime, timedelta

from fleet.controller.database.settings import DatabaseSettings


class LastSeenBuffer:
    """Buffer of last-seen times. One per process; any thread may call `note`.

    `devices.touch` writes what `due` returns.
    """

    def __init__(self, settings: DatabaseSettings) -> None:
        self._every = timedelta(seconds=settings.seen_every_s)
        self._limit = settings.seen_limit_devices
        self._lock = threading.Lock()
        self._waiting: dict[str, datetime] = {}
        self._written: dict[str, datetime] = {}

    def note(self, device: str, now: datetime) -> bool:
        """Note a poll. Return True if so many devices wait that `due` should be called at once."""
        with self._lock:
            self._waiting[device] = max(now, self._waiting.get(device, now))
            return len(self._waiting) > self._limit

    def waiting(self) -> int:
        """Return how many devices wait to be written."""
        return len(self._waiting)

    def due(self, now: datetime) -> dict[str, datetime]:
        """Return what to write now: devices last written `seen_every_s` ago, or all if too many wait."""
        with self._lock:
            # a time ahead of `now` is dropped: the clock was set back, and the time is written
            self._written = {device: at for device, at in self._written.items() if at <= now < at + self._every}
            hurried = len(self._waiting) > self._limit
            due = {d: at for d, at in self._waiting.items() if hurried or d not in self._written}
            self._written |= dict.fromkeys(due, now)
            for device in due:
                del self._waiting[device]
            return due
