"""How many work at something costly at one time: who does not get in soon is told to come later."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Door:
    """For any thread. As many as there are places may wait, so that who waits does not take the threads of all others.
    Each `who` is there once at most: one device does not take all places."""

    def __init__(self, places: int, wait_s: float) -> None:
        self._free, self._places, self._wait_s = threading.BoundedSemaphore(places), places, wait_s
        self._lock = threading.Lock()
        self._inside: set[str] = set()

    @contextmanager
    def entered(self, who: str) -> Iterator[bool]:
        """Whether there was a place, until the block ends."""
        if not self._take(who):
            yield False
            return
        try:
            yield True
        finally:
            self._free.release()
            with self._lock:
                self._inside.discard(who)

    def _take(self, who: str) -> bool:
        with self._lock:
            if who in self._inside or len(self._inside) >= 2 * self._places:
                return False
            self._inside.add(who)
        if self._free.acquire(timeout=self._wait_s):
            return True
        with self._lock:
            self._inside.discard(who)
        return False
