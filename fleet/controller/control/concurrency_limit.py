"""Concurrency limit for costly work: a caller that does not get a place soon is refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class ConcurrencyLimit:
    """Concurrency limit. Any thread may use it.

    As many callers as there are places may wait, so that waiting callers do not occupy all threads. Each `who` has one
    place at most: one device cannot take all places.
    """

    def __init__(self, places: int, wait_s: float) -> None:
        self._free, self._places, self._wait_s = threading.BoundedSemaphore(places), places, wait_s
        self._lock = threading.Lock()
        self._inside: set[str] = set()

    @contextmanager
    def entered(self, who: str) -> Iterator[bool]:
        """Yield whether the caller got a place; it holds the place until the block ends."""
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
