"""Decisions that `decide` returns. Each becomes a recorded fact; the JSON form is in `facts_form`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Evidence = Mapping[str, float | int | str]
"""Measurements that explain a decision, flat and bounded."""


@dataclass(frozen=True, slots=True)
class OpenWave:
    """Start to take devices into this wave (0: the canary)."""

    wave: int


@dataclass(frozen=True, slots=True)
class Offer:
    """Assign the release to the device. `attempt` counts all offers to this device in this rollout."""

    device: str
    wave: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Retry:
    """Assign the release again, in the same wave, to a device that failed. The assignment states the new attempt."""

    device: str
    wave: int
    attempt: int


@dataclass(frozen=True, slots=True)
class MarkSilent:
    """Count the device as failed until it reports that it committed: it was silent or unfinished for too long."""

    device: str
    reason: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop until an operator decides. `halt`: the failure limit was exceeded; otherwise a wave did not pass."""

    reason: str
    halt: bool
    evidence: Evidence = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RollBack:
    """Assign the previous release of this slot again: withdraw an offer, or roll back a committed release.

    The assignment is the same in both cases; the device knows which one it is.
    """

    device: str


@dataclass(frozen=True, slots=True)
class Finish:
    """End the rollout, or a round of a standing one: all waves passed."""


@dataclass(frozen=True, slots=True)
class Abort:
    """End the rollout without success. Devices are then rolled back as the specification requires."""

    reason: str
    evidence: Evidence = field(default_factory=dict)


PART_LOW = 100
"""Fewest decisions of one answer that are recorded while the rest is left to a later tick."""

Decision = OpenWave | Offer | Retry | MarkSilent | Pause | RollBack | Finish | Abort
