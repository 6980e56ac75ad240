"""Cost of one servable's runs as it is used now: what was measured, without what is left for a while after faults."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone

from gateway.common.domain.events import BreakerRetried, JoiningStopped, LoopLeft
from gateway.common.domain.statistics import Placement, ServableStatistics
from gateway.serving.engine.breaker import Breaker
from gateway.serving.engine.context import EngineContext
from gateway.serving.engine.cost import Cost

LOOP_OVERRUNS = 3
"""Overruns within a breaker's window after which a model leaves the event loop. A stalled machine causes one."""


class CostInUse:
    """Cost and placement of one servable. Used on the event loop, whose thread's noise it reads.

    `cost` and `placement` are those of the trial, without the event loop or joined runs while their breakers are open.
    `retry_ns`: when `retry` has something to try again (monotonic). `overrun_ns`: CPU time above which a run on the
    event loop is an overrun.
    """

    def __init__(
        self, cost: Cost, placement: Placement, context: EngineContext, statistics: ServableStatistics
    ) -> None:
        self._settings, self._batch_pass, self._publish = context.settings, context.batch_pass, context.publish
        settings = context.settings
        self.overrun_ns = settings.inline_overruns * settings.inline_limit_us * 1000
        self._statistics, self._served = statistics, (statistics.model, statistics.version, placement.variant)
        first_ns = int(settings.loop_retry_s * 1e9)
        self._loop, self._joined = Breaker(LOOP_OVERRUNS, first_ns), Breaker(1, first_ns)
        self._loop_left = self._joining_stopped = self._degraded = ""
        self.measured(cost, placement)

    def measured(self, cost: Cost, placement: Placement) -> None:
        """Use another measurement from now on; what was left is left as long as before."""
        self._cost, self._placement = cost, placement
        self._settle()

    def degrade(self, reason: str) -> None:
        """Show in the placement why a better one is out ("": none is)."""
        self._degraded = reason
        self._settle()

    def run_limit_ns(self, rows: int) -> int:
        """Return the longest time of a run on a worker."""
        settings = self._settings
        return max(int(settings.run_limit_s * 1e9), settings.run_overruns * self._cost.expected_ns(rows))

    def overran(self) -> bool:
        """Note a long run on the event loop if it took the CPU time itself. Return True if the loop is left now."""
        used_ns, limit_ns = self._batch_pass.used_ns(), self.overrun_ns
        if used_ns <= limit_ns:
            return False
        self._statistics.overruns += 1
        self._loop = self._loop.fault(time.monotonic_ns(), used_ns, self._batch_pass.noise_ns())
        if self._loop.is_open:
            took_us, limit_us, retry_s = used_ns // 1000, limit_ns // 1000, self._loop.wait_ns / 1e9
            self._publish(LoopLeft(*self._served, took_us, limit_us, self._loop.faults, retry_s))
            runs = f"{self._loop.faults} runs within a short time" if self._loop.faults > 1 else "a run"
            self._loop_left = _until(f"{runs} took {took_us} µs of the event loop, more than {limit_us}", retry_s)
            self._settle()
        return self._loop.is_open

    def joined_run_failed(self, reason: str) -> None:
        """Join no requests for a while, because a joined run failed whose requests succeed alone."""
        if self._joined.is_open:  # a joined run that began before the end of joining
            return
        self._joined = self._joined.fault(time.monotonic_ns())
        retry_s = self._joined.wait_ns / 1e9
        self._publish(JoiningStopped(*self._served, reason, retry_s))
        self._joining_stopped = _until(f"a joined run failed: {reason}", retry_s)
        self._settle()

    def retry(self, now_ns: int) -> None:
        """Try again what was left for long enough."""
        if now_ns >= self._loop.retry_ns:
            self._loop = self._loop.attempt(now_ns, self._batch_pass.noise_ns())
            self._publish(BreakerRetried(*self._served, "runs on the event loop"))
        if now_ns >= self._joined.retry_ns:
            self._joined = self._joined.attempt(now_ns)
            self._publish(BreakerRetried(*self._served, "joined runs"))
        self._settle()

    def _settle(self) -> None:
        left, stopped = self._loop.is_open, self._joined.is_open
        cost = self._cost.off_loop() if left else self._cost
        self.cost = cost.apart() if stopped else cost
        joining = self._joining_stopped if stopped else self._placement.joining
        loop = self._loop_left if left else ""
        self.placement = replace(self._placement, joining=joining, loop=loop, degraded=self._degraded)
        self.retry_ns = min(self._loop.retry_ns, self._joined.retry_ns)


def _until(reason: str, retry_s: float) -> str:
    now = datetime.now(timezone.utc)
    at, until = (time.isoformat(timespec="seconds") for time in (now, now + timedelta(seconds=retry_s)))
    return f"{reason}, at {at}; tried again from {until} on"
