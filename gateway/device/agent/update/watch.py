"""Probation of a version: renewal of its share of requests, and observation of its results."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from gateway.common.domain.activation import Activation
from gateway.common.domain.errors import UnreachableError
from gateway.common.domain.probation import (
    Counts,
    DaemonSnapshot,
    Judgement,
    Pace,
    ProbationSettings,
    evaluate_probation,
    pace,
)
from gateway.device.agent.control import DaemonClient, DaemonRefusedError

LEASE_SNAPSHOTS = 6
"""Duration of the share, in periods of `snapshot_every_s`. If the agent stops, committed releases get all requests."""
ALONE = "it passed its golden set, and no other version serves this slot: there is nothing to compare it with"
PACES_LIMIT = 1000
"""Looks whose run times are remembered."""


class ProbationWatch:
    """Probation of one version, from the start of its share. The version that serves now is its reference, if any."""

    def __init__(
        self, control: DaemonClient, activation: Activation, settings: ProbationSettings, monotonic: Callable[[], float]
    ) -> None:
        """Find the version to compare with. Raise UnreachableError."""
        self._control, self._settings, self._monotonic = control, settings, monotonic
        self._slot, self._new = activation.slot, activation.version
        self._old = _serving(control.status(), self._slot, self._new)
        self._first: DaemonSnapshot | None = None
        self._last: DaemonSnapshot | None = None
        self._paces: deque[Pace] = deque(maxlen=PACES_LIMIT)
        self._progress_s = monotonic()
        self._silent_since_s: float | None = None
        self._replayed_rows = 0

    def renew(self) -> None:
        """Renew the share. Raise UnreachableError, RefusedError if a version is no longer loaded."""
        share = self._settings.share_percent
        weights = {self._old: 100 - share, self._new: share} if self._old else {self._new: 100}
        lease_s = LEASE_SNAPSHOTS * self._settings.snapshot_every_s
        self._control.route(self._slot, weights, shadow=self._new if self._old else "", lease_s=lease_s)

    def evaluate(self) -> Judgement:
        """Renew the share, read counters and judge. A daemon without an answer for `hang_s` fails the version."""
        now_s = self._monotonic()
        try:
            self.renew()
            snapshot = self._snapshot(now_s)
            fault = self._replayed(snapshot)
        except DaemonRefusedError as error:
            return Judgement(False, f"the daemon does not keep it up: {error}")
        except UnreachableError as error:
            if self._silent_since_s is None:
                self._silent_since_s = now_s
            silent_s = now_s - self._silent_since_s
            if silent_s < self._settings.hang_s:
                return Judgement(None, "the daemon does not answer")
            return Judgement(False, f"the daemon has not answered for {silent_s:.0f} s: {error}")
        self._silent_since_s = None
        return fault or self._compared(snapshot)

    def _replayed(self, snapshot: DaemonSnapshot) -> Judgement | None:
        """Replay the golden set if no request came since the last snapshot. Return why the version fails, or None."""
        if self._last is None or snapshot.new.busy or snapshot.new.requests > self._last.new.requests:
            return None
        found = self._control.replay(self._slot, self._new)
        self._replayed_rows += found["rows"]
        return None if found["passed"] else Judgement(False, str(found["reason"]), {"replayed_rows": found["rows"]})

    def _compared(self, snapshot: DaemonSnapshot) -> Judgement:
        first, last = self._first or snapshot, self._last or snapshot
        if not snapshot.new.busy or _ended(snapshot.new) != _ended(last.new):
            self._progress_s = snapshot.at_s
        if (found := pace(last, snapshot)) is not None:
            self._paces.append(found)
        self._first, self._last = first, snapshot
        judged = evaluate_probation(first, snapshot, self._paces, self._progress_s, self._settings, self._replayed_rows)
        if judged.passed is None and not self._old:
            return Judgement(True, ALONE, judged.evidence)
        return judged

    def _snapshot(self, now_s: float) -> DaemonSnapshot:
        status, vitals = self._control.status(), self._control.vitals()
        counters = self._control.statistics(self._slot)
        old = counters.get(self._old)
        return DaemonSnapshot(
            at_s=now_s,
            instance=status["instance"],
            new=_counts(counters.get(self._new, {})),
            old=None if old is None else _counts(old),
            rss_bytes=status["rss_bytes"],
            hottest_c=max(vitals["temperatures_c"].values(), default=None),
            throttled=vitals["throttled"],
        )


def _ended(counts: Counts) -> tuple[int, ...]:
    """Return counters that change with every run that ends."""
    return counts.executions, counts.failed_runs, counts.rejected_runs, counts.compared


def _counts(counters: Mapping[str, Any]) -> Counts:
    """Return a version's counters."""
    return Counts(
        requests=counters.get("requests", 0),
        executions=counters.get("executions", 0),
        failed_runs=counters.get("failed_runs", 0),
        rejected_runs=counters.get("rejected_runs", 0),
        infer_ns=counters.get("infer_ns", 0),
        compared=counters.get("compared", 0),
        disagreed=counters.get("disagreed", 0),
        busy=counters.get("busy", False),
    )


def _serving(status: Mapping[str, Any], slot: str, new: str) -> str:
    """Return the version, other than `new`, that answers most requests without a version; "" if there is none."""
    others = [one for one in status["models"] if one["model"] == slot and one["version"] != new and one["weight"]]
    return str(max(others, key=lambda one: one["weight"])["version"]) if others else ""
