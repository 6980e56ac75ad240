"""What `decide` may answer. Each becomes a recorded fact; its JSON form is in `facts_form`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Evidence = Mapping[str, float | int | str]
"""Measurements that say why, flat and bounded."""


@dataclass(frozen=True, slots=True)
class OpenWave:
    """From now on devices are taken into this wave (0: the canary)."""

    wave: int


@dataclass(frozen=True, slots=True)
class Offer:
    """Assign the release to the device. `attempt` counts the offers that this device ever got in this rollout."""

    device: str
    wave: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Retry:
    """Assign it once more to a device that failed, in its wave; the device must be told that it is a new attempt."""

    device: str
    wave: int
    attempt: int


@dataclass(frozen=True, slots=True)
class MarkSilent:
    """The device was waited for long enough: it counts as failed until it says that it committed."""

    device: str
    reason: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop, and let an operator decide. `halt`: the limit of failures was exceeded; else a wave did not pass."""

    reason: str
    halt: bool
    evidence: Evidence = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RollBack:
    """Assign the device again what it had in this slot before: an offer withdrawn, or a roll-back of what committed.

    Which of the two it is, is for the device to know; the assignment is the same.
    """

    device: str


@dataclass(frozen=True, slots=True)
class Finish:
    """All waves are through."""


@dataclass(frozen=True, slots=True)
class Abort:
    """Stop for good. Every device is then rolled back that the specification wants to be."""

    reason: str
    evidence: Evidence = field(default_factory=dict)


PART_LOW = 100
"""Fewest decisions of one answer that are recorded while the rest of it is left to another time."""

Decision = OpenWave | Offer | Retry | MarkSilent | Pause | RollBack | Finish | Abort
