"""What a rollout shall do: values. Immutable once approved; the JSON form is in `spec_form`, windows in `schedule`."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from gateway.domain.assignment import Target
from gateway.domain.policy import Blackout

CANARY = 0
"""Number of the canary wave; the waves of the specification count from 1."""


def wave_name(wave: int) -> str:
    """For people."""
    return "the canary" if wave == CANARY else f"wave {wave}"


class Rollback(enum.Enum):
    """What follows a halt: an operator decides, or all devices go back to their previous release by themselves."""

    OFFERED = "offered"
    FORCED = "forced"


@dataclass(frozen=True, slots=True)
class Canary:
    """The first wave: `per_accelerator` devices of each set of accelerators, watched for `soak_s` after they passed."""

    per_accelerator: int
    soak_s: float


@dataclass(frozen=True, slots=True)
class Wave:
    """`percent` of all devices are reached once this wave is through (cumulative), or it takes `count` more devices.

    One of the two is set. `needs_approval`: an operator must say so before it opens.
    """

    percent: float | None = None
    count: int | None = None
    needs_approval: bool = False


@dataclass(frozen=True, slots=True)
class Success:
    """A wave is through once `min_percent` of its devices committed, at least `min_sample` (or all, where fewer)."""

    min_sample: int
    min_percent: float


@dataclass(frozen=True, slots=True)
class AbortLimit:
    """Halt once the share of failed devices is above `max_failed_percent` for sure, judged from `min_sample` verdicts.

    For sure: the lower bound of the two-sided Wilson score interval at `confidence` lies above.
    """

    min_sample: int
    max_failed_percent: float
    confidence: float


@dataclass(frozen=True, slots=True)
class Retries:
    """A device that failed is offered the release again `limit` times; the pause doubles from `backoff_s` on."""

    limit: int = 0
    backoff_s: float = 3600.0
    backoff_limit_s: float = 86_400.0


@dataclass(frozen=True, slots=True)
class Window:
    """When devices may be offered something: on `days` (0 Monday), from `start_min` to before `end_min` after midnight.

    Wall clock of `zone` (an IANA name, or "site": each device's own). `end_min` at or before `start_min` is on the
    next day. An hour that the clock repeats counts twice, one that it leaves out not at all.
    """

    days: tuple[int, ...]
    start_min: int
    end_min: int
    zone: str = "UTC"


@dataclass(frozen=True, slots=True)
class Spec:
    """A rollout of one release (`target`) into one `slot` of the devices that `query` matches.

    `silence_s`: a device that was offered it and says nothing for so long counts as failed; `deadline_s`: so does one
    that says something and is not done so long after the offer. `dynamic`: devices that match later join the last
    opened wave as its share grows with them.
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
    windows: tuple[Window, ...] = ()
    blackouts: tuple[Blackout, ...] = ()
    retries: Retries = Retries()
    dynamic: bool = True
    rollback: Rollback = Rollback.OFFERED

    @property
    def first_wave(self) -> int:
        """The number of the wave that opens first."""
        return CANARY if self.canary else 1

    @property
    def last_wave(self) -> int:
        """The number of the wave after which nothing is left."""
        return len(self.waves)

    def soak_of(self, wave: int) -> float:
        """Seconds that a wave is watched after it passed."""
        return self.canary.soak_s if wave == CANARY and self.canary else self.soak_s

    def needs_approval(self, wave: int) -> bool:
        """Whether an operator opens this wave."""
        return wave != CANARY and self.waves[wave - 1].needs_approval
