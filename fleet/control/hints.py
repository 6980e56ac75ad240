"""Devices whose next question would tell them something new. In memory alone: a hint has no authority, may be lost, and
spares a device only the rest of its pause."""

from __future__ import annotations

import threading
from collections.abc import Iterable

WAITING_LIMIT_DEVICES = 100_000
"""Further ones are asked for nothing sooner than they would ask by themselves."""


class Hints:
    """Any thread may note and take."""

    def __init__(self, limit_devices: int = WAITING_LIMIT_DEVICES) -> None:
        self._limit = limit_devices
        self._lock = threading.Lock()
        self._waiting: dict[str, None] = {}
        self.noted = threading.Event()

    def note(self, devices: Iterable[str]) -> None:
        """They should ask soon; each waits once, and the first comes first."""
        with self._lock:
            for device in devices:
                if len(self._waiting) < self._limit:
                    self._waiting.setdefault(device)
            if self._waiting:
                self.noted.set()

    def take(self, count: int) -> list[str]:
        """At most so many, which then wait no more."""
        with self._lock:
            taken = [*self._waiting][:count]
            for device in taken:
                del self._waiting[device]
            if not self._waiting:
                self.noted.clear()
            return taken

    def __len__(self) -> int:
        """How many wait."""
        with self._lock:
            return len(self._waiting)
