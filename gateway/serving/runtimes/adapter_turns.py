"""Turns of adapters: the runs that share a step of an engine all have the same one.

Engines join the steps of all requests. openvino-genai 2026.4 answers some with another's adapter. llama.cpp lets one
wait, without a sign of life, until the slots before it have answered (decision 0116).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

TURN_S = 1.0
"""Time that a run with another adapter has waited from which the present batch takes no more runs."""
LOOK_S = 0.1
"""Interval at which a run that waits looks whether it is still wanted."""


@dataclass(slots=True, eq=False)
class _Waiting:
    adapter: str
    since_s: float
    admitted: threading.Event = field(default_factory=threading.Event)


class AdapterTurns:
    """Batches of runs by adapter, in the order in which the first run of each arrived. Any thread may call it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock, self._clock = threading.Lock(), clock
        self._adapter, self._running = "", 0
        self._waiting: list[_Waiting] = []

    @contextmanager
    def turn(self, adapter: str, wanted: Callable[[], bool]) -> Iterator[bool]:
        """Wait until a run with `adapter` ("": none) may begin; the run is the block. Yield False once it is unwanted.

        Runs with the present adapter begin at once, unless another has waited for TURN_S. When the last one ends, all
        that wait for the adapter of the oldest one begin.
        """
        with self._lock:
            own, oldest_s = _Waiting(adapter, self._clock()), self._waiting[0].since_s if self._waiting else None
            if self._running == 0 or (
                adapter == self._adapter and (oldest_s is None or own.since_s - oldest_s < TURN_S)
            ):
                self._adapter = adapter
                self._running += 1
                own.admitted.set()
            else:
                self._waiting.append(own)
        try:
            while not own.admitted.wait(LOOK_S) and wanted():
                pass
            yield own.admitted.is_set()
        finally:
            self._leave(own)

    def _leave(self, own: _Waiting) -> None:
        with self._lock:
            if own in self._waiting:
                self._waiting.remove(own)
                while self._waiting and self._waiting[0].adapter == self._adapter:  # none waits before them any more
                    self._running += 1
                    self._waiting.pop(0).admitted.set()
                return
            self._running -= 1
            if self._running or not self._waiting:
                return
            self._adapter = self._waiting[0].adapter
            admitted = [each for each in self._waiting if each.adapter == self._adapter]
            self._waiting = [each for each in self._waiting if each.adapter != self._adapter]
            self._running = len(admitted)
            for each in admitted:
                each.admitted.set()
