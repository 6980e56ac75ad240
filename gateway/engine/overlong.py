"""Time limit of the runs of one worker: an overlong run is cancelled; a run that does not end is reported."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from gateway.engine.queue import RunPlan
from gateway.engine.worker import SessionWorker


@dataclass(frozen=True, slots=True)
class RunLimits:
    """Time limits. `run_ns`: function from rows to the time that a run may take. `end_ns`: time to end after that."""

    run_ns: Callable[[int], int]
    end_ns: int


class RunWatch:
    """Timer of the event loop while a worker is busy; no timer while it is idle.

    `cancel` is called with the plan when the run's time is over. `hung` is called when the run did not end after that.
    Each is called at most once per run.
    """

    def __init__(
        self,
        worker: SessionWorker,
        limits: RunLimits,
        *,
        busy: Callable[[], bool],
        cancel: Callable[[RunPlan], None],
        hung: Callable[[RunPlan], None],
    ) -> None:
        self._worker, self._limits, self._busy = worker, limits, busy
        self._cancel, self._hung = cancel, hung
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._overlong: RunPlan | None = None

    def arm(self) -> None:
        """Watch the worker until it is idle."""
        if self._timer is None:
            self._check_in(self._limits.run_ns(1))

    def close(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()

    def _check_in(self, wait_ns: int) -> None:
        self._timer = self._loop.call_later(wait_ns / 1e9, self._check)

    def _check(self) -> None:
        self._timer, running = None, self._worker.running
        if running is None:
            if self._busy():
                self.arm()
            return
        plan, began_ns = running
        left_ns = began_ns + self._limits.run_ns(plan.rows) - time.monotonic_ns()
        if left_ns > 0:
            self._check_in(left_ns)
        elif plan is not self._overlong:
            self._overlong = plan
            self._check_in(self._limits.end_ns)
            self._cancel(plan)
        else:
            self._hung(plan)
