"""Wake hints: devices whose next poll would bring them something new.

Hints are in memory only. A hint has no authority, may be lost, and spares a device only the rest of its poll interval.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

WAITING_LIMIT_DEVICES = 100_000
"""Devices that may wait for a hint. Further ones get no hint and poll at their usual time."""


class Hints:
    """Queue of devices to wake. Any thread may call it."""

    def __init__(self, limit_devices: int = WAITING_LIMIT_DEVICES) -> None:
        self._limit = limit_devices
        self._lock = threading.Lock()
        self._waiting: dict[str, None] = {}
        self.noted = threading.Event()

    def note(self, devices: Iterable[str]) -> None:
        """Queue devices that should poll soon. Each waits once, in order of arrival."""
        with self._lock:
            for device in devices:
                if len(self._waiting) < self._limit:
                    self._waiting.setdefault(device)
            if self._waiting:
                self.noted.set()

    def take(self, count: int) -> list[str]:
        """Remove and return at most `count` devices."""
        with self._lock:
            taken = [*self._waiting][:count]
            for device in taken:
                del self._waiting[device]
            if not self._waiting:
                self.noted.clear()
            return taken

    def __len__(self) -> int:
        """Return how many devices wait."""
        with self._lock:
            return len(self._waiting)
