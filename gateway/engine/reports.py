"""Events of a servable's runs, with the names of its model, version and variant."""

from __future__ import annotations

from gateway.domain.events import (
    BreakerRetried,
    JoiningStopped,
    LoopLeft,
    PriorityRefused,
    Publish,
    RunFailed,
    RunHung,
    RunOverlong,
)
from gateway.domain.manifest import ModelManifest


class Reports:
    """Publisher of one servable's events. `failed` is called by any code that finds a problem of a run."""

    def __init__(self, manifest: ModelManifest, variant: str, publish: Publish) -> None:
        self._version, self._variant, self._publish = (manifest.name, manifest.version), variant, publish

    def failed(self, problem: str) -> None:
        """Report a run that failed, or another problem of the model."""
        self._publish(RunFailed(*self._version, self._variant, problem))

    def loop_left(self, used_us: int, limit_us: int, overruns: int, retry_s: float) -> None:
        """Report that the model leaves the event loop after `overruns` runs, the last of which took `used_us`."""
        self._publish(LoopLeft(*self._version, self._variant, used_us, limit_us, overruns, retry_s))

    def retried(self, what: str) -> None:
        """Report that something is tried again that was left after faults."""
        self._publish(BreakerRetried(*self._version, self._variant, what))

    def overlong(self, rows: int, limit_s: float) -> None:
        """Report a run that exceeds its time limit."""
        self._publish(RunOverlong(*self._version, self._variant, rows, limit_s))

    def hung(self, rows: int) -> None:
        """Report a run that does not end."""
        self._publish(RunHung(*self._version, self._variant, rows))

    def joining_stopped(self, reason: str, retry_s: float) -> None:
        """Report that requests are not joined for `retry_s`."""
        self._publish(JoiningStopped(*self._version, self._variant, reason, retry_s))

    def priority_refused(self, reason: str) -> None:
        """Report that the kernel refused a thread's priority."""
        self._publish(PriorityRefused(*self._version, reason))
