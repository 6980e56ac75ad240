"""Memory of this process: objects left out of garbage collection, and unused memory that goes back to the system."""

from __future__ import annotations

import asyncio
import gc
import resource
import sys
from collections.abc import Callable
from pathlib import Path

from gateway.common.memory import trim

GROWN_BYTES = 8 * 1024 * 1024
"""Growth of the resident memory from which returning memory is worth its time."""
QUIET_S = 0.5
"""Time without a change of models, images and MQTT jobs after which memory is returned to the system."""


def settle() -> None:
    """Exclude the objects of the start from garbage collection: they stay until the end."""
    # A full collection takes 15 ms with those 64,000, 0.01 ms without (last line of `tests.performance.start`).
    gc.freeze()
    gc.enable()


class Trimming:
    """Returns memory QUIET_S after the last change of models, image or MQTT job: malloc keeps memory.

    Once the process `ends`, none is returned any more.
    """

    def __init__(self, ends: Callable[[], bool]) -> None:
        self._ends = ends
        self._timer: asyncio.TimerHandle | None = None
        self._least_bytes = 0

    def soon(self, *, changed: bool = False) -> None:
        """Return memory QUIET_S from now, on a thread; the time begins again with each call.

        `changed`: other models are loaded, so that what an earlier time left is no measure any more.
        """
        if self._timer is not None:
            self._timer.cancel()
        if self._ends():
            return
        if changed:
            self._least_bytes = 0
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(QUIET_S, loop.run_in_executor, None, self._trim)

    def _trim(self) -> None:
        """Return memory if the process has GROWN_BYTES more than after the time that left it the least."""
        if _resident_bytes() >= self._least_bytes + GROWN_BYTES:
            trim()
            self._least_bytes = min(self._least_bytes or sys.maxsize, _resident_bytes())


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
