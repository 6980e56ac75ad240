"""Pauses of the event loop for model runs that wait for the core that it takes.

Threads that run models have a higher nice value than the event loop, so that it answers short requests at once. While
it has work without end, they would get almost nothing. So it pauses for as long as it worked, as soon as requests of
such a thread have waited for `worker_wait_ms` and the kernel lets the thread wait for a core. Both then get half of
it, in slices shorter than the kernel's. Measured by `tests/performance/nice.py`.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

SLICE_NS = 1_000_000
"""CPU time of the event loop from one pause to the next ..."""
LONGEST_NS = 2_000_000
"""... and the longest pause."""
CHECK_NS = 10_000_000
"""Time between two checks of the threads."""
CONTENDED = 0.2
"""Least part of that time that a thread waited for a core: a smaller part does no harm."""
THREADS_LIMIT = 64
"""Threads whose delays are remembered while they run nothing. At one more, those are forgotten."""
TASKS = Path("/proc/self/task")


def pause_ns(used_ns: int, passed_ns: int) -> int:
    """Return the pause after `used_ns` of CPU time within `passed_ns`: others get as much time as the event loop."""
    return max(0, min(2 * used_ns - passed_ns, LONGEST_NS))


class Pauses:
    """Pauses of one event loop.

    `waiting` holds each running thread's id, since when its oldest request waits, and its model. A model with several
    runs at a time has its share of the cores as long as one of them does not wait: the event loop pauses for all only.
    """

    def __init__(self, worker_wait_ms: int) -> None:
        self._wait_ns = worker_wait_ms * 1_000_000
        self.waiting: dict[int, tuple[int, object]] = {}
        self._delays_ns: dict[int, int] = {}
        self._contended = False
        self._checked_ns = self._began_ns = self._used_ns = 0

    def begin(self, since_ns: int, model: object) -> None:
        """Note that this thread begins a run of a model, and that its oldest request waits since then (monotonic)."""
        self.waiting[threading.get_native_id()] = since_ns, model

    def end(self) -> None:
        """Note that this thread's run is over."""
        self.forget(threading.get_native_id())

    def forget(self, thread: int) -> None:
        """Pause no longer for a thread: its run is over, or does not end."""
        self.waiting.pop(thread, None)

    def pause(self) -> None:
        """Pause if a run waits for the event loop's core. Called after each pass while `waiting` is not empty."""
        used_ns = time.thread_time_ns() - self._used_ns
        if used_ns < SLICE_NS:
            return
        now_ns = time.monotonic_ns()
        passed_ns = now_ns - self._checked_ns
        if passed_ns >= CHECK_NS:
            waiting, before = dict(self.waiting), self._delays_ns
            delays = {thread: delay_ns(thread) for thread in waiting}
            models: dict[object, bool] = {}
            for thread, delay in delays.items():
                since_ns, model = waiting[thread]
                contended = delay - before.get(thread, delay) >= CONTENDED * passed_ns
                models[model] = models.get(model, True) and contended and now_ns - since_ns >= self._wait_ns
            self._contended = any(models.values())
            kept = before if len(before) < THREADS_LIMIT else {}
            self._delays_ns, self._checked_ns = {**kept, **delays}, now_ns
        if self._contended and (wait_ns := pause_ns(used_ns, now_ns - self._began_ns)):
            time.sleep(wait_ns / 1e9)
        self._began_ns, self._used_ns = time.monotonic_ns(), time.thread_time_ns()


def delay_ns(thread: int) -> int:
    """Return the time for which a thread of this process has waited for a core since it began; 0 if unknown.

    Source: the second number of /proc/<pid>/task/<tid>/schedstat (Linux, Documentation/scheduler/sched-stats.rst).
    """
    try:
        return int((TASKS / str(thread) / "schedstat").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
