"""Decisions about the fleet's settings on a device: whether to try them, and whether a trial may be committed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from gateway.common.domain.assignment import Target
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.probation import Judgement
from gateway.common.domain.update import Tried

TRIAL_LIMIT_S = 86_400.0
"""Longest time within which a trial must be confirmed."""


@dataclass(frozen=True, slots=True)
class SettingsTrialSettings:
    """`[settings]`: the trial of settings that the fleet sends."""

    duration_s: float = 60.0  # time for which the gateway must do well with them, once it is ready
    ready_s: float = 120.0  # time in which it must be back after its restart, and serve the models as before

    snapshot_every_s: ClassVar[float] = 2.0  # period of the snapshots
    min_requests: ClassVar[int] = 20  # requests that it must answer before the share of failures is evaluated
    failed_percent: ClassVar[float] = 5.0  # % of the requests that may fail beyond the share that failed before
    spare_s: ClassVar[float] = 60.0  # time after both in which the trial must be confirmed, else it is taken back

    def __post_init__(self) -> None:
        """Refuse a trial that is too long. Raises ConfigurationError (table settings)."""
        if self.within_s > TRIAL_LIMIT_S:
            together_s, limit_s = self.duration_s + self.ready_s, TRIAL_LIMIT_S - self.spare_s
            problem = f"duration_s and ready_s are {together_s:g} together, at most {limit_s:g}"
            raise ConfigurationError(f"{problem}; shorten one", table="settings", key="duration_s")

    @property
    def within_s(self) -> float:
        """Return the time within which a trial must be confirmed."""
        return self.duration_s + self.ready_s + self.spare_s


@dataclass(frozen=True, slots=True)
class DaemonHealth:
    """Snapshot of the daemon. `ready`: "model/version" of signed and unsigned models that answer.

    `broker`: whether MQTT is connected (None: no MQTT). `requests` and `failed` are counted since its start.
    """

    instance: str = ""
    ready: frozenset[str] = field(default_factory=frozenset)
    broker: bool | None = None
    requests: int = 0
    failed: int = 0

    @property
    def failed_percent(self) -> float:
        """Return the share of requests that failed."""
        return 100.0 * self.failed / self.requests if self.requests else 0.0


def wants_trial(assigned: Target | None, attempt: int, committed: str, tried: Tried | None) -> bool:
    """Return whether assigned settings should be tried.

    `committed`: digest of the release in force; `tried`: the last one.
    """
    if assigned is None or assigned.sha256 == committed:
        return False
    return tried is None or not tried.excludes(assigned.sha256, attempt)


def evaluate_trial(
    before: DaemonHealth,
    now: DaemonHealth,
    ready_for_s: float | None,
    elapsed_s: float,
    settings: SettingsTrialSettings,
) -> Judgement:
    """Evaluate a snapshot of the trial against the one before it.

    `ready_for_s`: time since everything that was ready before has been ready again (None: it is not now);
    `elapsed_s`: time since the trial began.
    """
    evidence = {"requests": now.requests, "failed": now.failed, "ready_models": len(now.ready)}
    if ready_for_s is None:
        late = elapsed_s > settings.ready_s
        why = missing(before, now) or "the gateway did not restart"
        return Judgement(False if late else None, f"not ready with them: {why}", evidence)
    if fault := _failures(before, now, settings):
        return Judgement(False, fault, evidence)
    if ready_for_s < settings.duration_s:
        return Judgement(None, "on trial", evidence)
    return Judgement(True, f"{now.requests} requests, of which {now.failed} failed", evidence)


def missing(before: DaemonHealth, now: DaemonHealth) -> str:
    """Return what worked before and does not now ("": nothing)."""
    found = [f"{name} does not answer" for name in sorted(before.ready - now.ready)]
    if before.broker and not now.broker:
        found.append("the broker is not connected")
    return ", ".join(found)


def _failures(before: DaemonHealth, now: DaemonHealth, settings: SettingsTrialSettings) -> str:
    if now.requests < settings.min_requests:
        return ""
    limit = before.failed_percent + settings.failed_percent
    if now.failed_percent <= limit:
        return ""
    return f"{now.failed} of {now.requests} requests failed; before them {before.failed_percent:.1f} %"


def health_document(health: DaemonHealth) -> dict[str, Any]:
    """Return plain values for JSON."""
    return {
        "instance": health.instance,
        "ready": sorted(health.ready),
        "broker": health.broker,
        "requests": health.requests,
        "failed": health.failed,
    }


def read_health(document: Mapping[str, Any]) -> DaemonHealth:
    """Return the inverse of `health_document`. Raises KeyError, TypeError, ValueError."""
    broker = document["broker"]
    return DaemonHealth(
        str(document["instance"]),
        frozenset(map(str, document["ready"])),
        None if broker is None else bool(broker),
        int(document["requests"]),
        int(document["failed"]),
    )
