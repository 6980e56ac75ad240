"""Bounded resources of the frontends, divided among callers; refusals are counted and logged."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.statistics import MetricSample
from gateway.serving.domain.shares import RefusalReason, ResourceUse, ShareBounds, caller_class
from gateway.serving.frontends.settings import ShareSettings

OTHERS = "other callers"
"""Name in the log for callers beyond `log_callers`."""
_WHY = {
    RefusalReason.CALLER: "the share of one caller is {share} of {total}",
    RefusalReason.NETWORK: "the share of the caller's network is {network} of {total}",
    RefusalReason.CONNECTION: "this connection has its share",
    RefusalReason.RESERVE: "of {total}, {reserve} are for callers on this device, and {reserve} for identified ones",
    RefusalReason.TOTAL: "all {total} are in use",
}

log = logging.getLogger(__name__)


class RefusalCounters:
    """Counters of refusals by resource, class of caller and reason. The log names a caller once in a period."""

    def __init__(self, settings: ShareSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings, self._clock = settings, clock
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._more: dict[str, int] = {}
        self._ends_s = clock()

    def count(self, resource: str, key: str, reason: str) -> None:
        """Count one refusal, and log it if the caller was not logged in this period."""
        self._counts[resource, caller_class(key), reason] += 1
        now_s = self._clock()
        if now_s >= self._ends_s:
            for each, more in self._more.items():
                if more:
                    log.warning("caller refused: %s, %d more times in the last period", each, more)
            self._more.clear()
            self._ends_s = now_s + self._settings.log_period_s
        name = key if key in self._more or len(self._more) < self._settings.log_callers else OTHERS
        if name in self._more:
            self._more[name] += 1
        else:
            self._more[name] = 0
            log.warning("caller refused: %s, resource %s, reason %s", name, resource, reason)

    def samples(self) -> Iterator[MetricSample]:
        """Yield counters for the metrics page (METRICS.md)."""
        for (resource, caller, reason), count in sorted(self._counts.items()):
            labels = {"resource": resource, "caller_class": caller, "reason": reason}
            yield MetricSample("edge_gateway_refusals_total", "Refusals for the bounds of callers.", count, labels)


class Pool(ResourceUse):
    """Shares of one named resource, such as "grpc calls"; its refusals are counted."""

    __slots__ = ("_refusals", "_setting", "make_room", "resource")

    def __init__(self, resource: str, setting: str, bounds: ShareBounds, refusals: RefusalCounters) -> None:
        """Set up the pool. `setting` names the total in refusal messages, such as "[grpc] max_concurrent_calls"."""
        super().__init__(bounds)
        self.resource, self._setting, self._refusals = resource, setting, refusals
        self.make_room: Callable[[str, bool, RefusalReason], bool] = lambda _key, _local, _reason: False
        """Callback that ends what gives way to a refused caller, given with `local` and reason. False: nothing does."""

    def count(self, key: str, reason: RefusalReason) -> None:
        """Count a refusal that the caller does not receive."""
        self._refusals.count(self.resource, key, reason)

    def refuse(self, key: str, reason: RefusalReason, retry_after_s: float | None = None) -> RequestError:
        """Count a refusal. Return the error for the caller, OVERLOADED."""
        self.count(key, reason)
        bounds = self.bounds
        why = _WHY[reason].format(**asdict(bounds))
        return RequestError(
            Fault.OVERLOADED,
            f"too many {self.resource} by {key:.100}: {why} ({self._setting}, [shares]); try again later",
            retry_after_s=retry_after_s,
        )

    def require(
        self, key: str, *, local: bool, amount: int = 1, held: int = 0, retry_after_s: float | None = None
    ) -> None:
        """Take `amount` units for a request that holds `held`.

        Raises RequestError OVERLOADED if they are not free, TOO_LARGE if the request needs more than they can be.
        """
        if held + amount > self.bounds.share:
            self.count(key, RefusalReason.CALLER)
            raise RequestError(
                Fault.TOO_LARGE,
                f"the request needs {held + amount} {self.resource}; one caller may have {self.bounds.share} of "
                f"{self.bounds.total} ({self._setting}, [shares])",
            )
        reason = self.take(key, local=local, amount=amount)
        if reason is not None and self.make_room(key, local, reason):
            reason = self.take(key, local=local, amount=amount)
        if reason is not None:
            raise self.refuse(key, reason, retry_after_s)


class Pools:
    """Factory of one process's pools, all divided by the same settings, with their refusals."""

    def __init__(self, settings: ShareSettings | None = None, refusals: RefusalCounters | None = None) -> None:
        self._settings = settings or ShareSettings()
        self.refusals = refusals or RefusalCounters(self._settings)

    def undivided(self) -> Pools:
        """Return a factory with the same refusals whose pools allow one caller each total."""
        return Pools(ShareSettings(caller_percent=100, local_percent=0), self.refusals)

    def make(self, resource: str, setting: str, total: int) -> Pool:
        """Return a pool of `total` units."""
        return self._make(resource, setting, total, self._settings.caller_percent)

    def make_bytes(self, resource: str, setting: str, total: int) -> Pool:
        """Return a pool of `total` bytes."""
        return self._make(resource, setting, total, self._settings.caller_bytes_percent)

    def _make(self, resource: str, setting: str, total: int, caller_percent: int) -> Pool:
        local, network = self._settings.local_percent, self._settings.network_percent
        bounds = ShareBounds.of(total, caller_percent=caller_percent, local_percent=local, network_percent=network)
        return Pool(resource, setting, bounds, self.refusals)
