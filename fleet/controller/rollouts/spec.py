"""Specification of a rollout, as values. Immutable once approved; JSON form in `spec_form`, windows in `schedule`."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from gateway.common.domain.assignment import Target
from gateway.common.domain.policy import Blackout

CANARY = 0
"""Number of the canary wave. The waves of the specification count from 1."""


def wave_name(wave: int) -> str:
    """Return the name of a wave for people."""
    return "the canary" if wave == CANARY else f"wave {wave}"


class Rollback(enum.Enum):
    """Policy after a halt: an operator decides, or all devices return to their previous release."""

    OFFERED = "offered"
    FORCED = "forced"


@dataclass(frozen=True, slots=True)
class Canary:
    """The first wave: `per_accelerator` devices of each set of accelerators, watched for `soak_s` after they passed."""

    per_accelerator: int
    soak_s: float


@dataclass(frozen=True, slots=True)
class Wave:
    """One wave: `percent` of all devices (cumulative) once it has passed, or `count` more devices.

    Exactly one of the two is set. `needs_approval`: an operator must approve it before it opens.
    """

    percent: float | None = None
    count: int | None = None
    needs_approval: bool = False


@dataclass(frozen=True, slots=True)
class Success:
    """A wave passes once `min_percent` of its devices committed, and at least `min_sample` (all, if it has fewer)."""

    min_sample: int
    min_percent: float


@dataclass(frozen=True, slots=True)
class AbortLimit:
    """Limit of failures: halt once the share of failed devices is significantly above `max_failed_percent`.

    Significantly: the lower bound of the two-sided Wilson score interval at `confidence` is above the limit. It is
    evaluated from `min_sample` verdicts on.
    """

    min_sample: int
    max_failed_percent: float
    confidence: float


@dataclass(frozen=True, slots=True)
class Retries:
    """Retries of a failed device: it gets `limit` more offers. The back-off doubles, starting at `backoff_s`."""

    limit: int = 0
    backoff_s: float = 3600.0
    backoff_limit_s: float = 86_400.0


@dataclass(frozen=True, slots=True)
class OfferWindow:
    """Weekly time in which devices may be offered something, in wall-clock time of `zone`.

    It is open on `days` (0: Monday), from `start_min` to before `end_min`, in minutes after midnight. `zone`: an IANA
    name, or "site": the device's own. An `end_min` at or before `start_min` is on the next day. An hour that the clock
    repeats counts twice; one that it skips does not count.
    """

    days: tuple[int, ...]
    start_min: int
    end_min: int
    zone: str = "UTC"


@dataclass(frozen=True, slots=True)
class Spec:
    """Rollout of one release (`target`) into one `slot` of the devices that `query` matches.

    `silence_s`: a device with an offer that does not report for this long counts as failed. `deadline_s`: a device that
    reports and is not done this long after its offer counts as failed, too. `dynamic`: devices that match later join;
    the share of the newest wave grows with them. `standing`: after its last wave it stays the target of its query, and
    goes through its waves again for devices that match later.
    """

    name: str
    slot: str
    target: Target
    query: str
    canary: Canary | None
    waves: tuple[Wave, ...]
    soak_s: float
    success: Success
    abort: AbortLimit
    silence_s: float
    deadline_s: float
    windows: tuple[OfferWindow, ...] = ()
    blackouts: tuple[Blackout, ...] = ()
    retries: Retries = Retries()
    dynamic: bool = True
    rollback: Rollback = Rollback.OFFERED
    standing: bool = False

    @property
    def first_wave(self) -> int:
        """The number of the wave that opens first."""
        return CANARY if self.canary else 1

    @property
    def last_wave(self) -> int:
        """The number of the last wave."""
        return len(self.waves)

    def soak_of(self, wave: int) -> float:
        """Return for how many seconds a wave is observed after it passed."""
        return self.canary.soak_s if wave == CANARY and self.canary else self.soak_s

    def needs_approval(self, wave: int) -> bool:
        """Return whether an operator must approve this wave before it opens."""
        return wave != CANARY and self.waves[wave - 1].needs_approval
