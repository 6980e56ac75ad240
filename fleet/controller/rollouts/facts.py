"""Recorded facts of a rollout, in the order of their sequence numbers. Values; `fold.fold` reads them.

The JSON form is in `facts_form`. A fact that is not permitted (a start before the approval) can still be recorded: it
has no effect and is counted. `fold.refusal` tells in advance.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from fleet.controller.rollouts.decisions import Decision, Evidence


@dataclass(frozen=True, slots=True)
class Created:
    """The rollout was created. A device's rank is a hash of `rollout`, its identifier, and of the device's name."""

    rollout: str
    by: str


@dataclass(frozen=True, slots=True)
class Approved:
    """The specification with this digest (`spec_form.spec_digest`) was approved. It cannot change afterwards."""

    by: str
    spec: str


@dataclass(frozen=True, slots=True)
class Started:
    """An operator or a plan started the rollout."""

    by: str


@dataclass(frozen=True, slots=True)
class Paused:
    """The rollout was paused: no device is offered anything until it is resumed. Devices with an offer continue."""

    by: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Resumed:
    """An operator resumed the rollout. Earlier failures no longer count against it."""

    by: str


@dataclass(frozen=True, slots=True)
class Aborted:
    """An operator aborted the rollout. Offers are withdrawn."""

    by: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class WaveApproved:
    """A wave that needs approval was approved."""

    wave: int
    by: str


@dataclass(frozen=True, slots=True)
class RollbackRequested:
    """An operator requested after an abort that committed devices are rolled back, too."""

    by: str


@dataclass(frozen=True, slots=True)
class Joined:
    """The query matched a device. `zone`: the time zone of its site ("": UTC)."""

    device: str
    accelerators: tuple[str, ...] = ()
    zone: str = ""


@dataclass(frozen=True, slots=True)
class Left:
    """The device left the rollout: the query ceased to match before its first offer, or the device was removed.

    `suspended`: it returns once an operator resumes it.
    """

    device: str
    reason: str = ""
    suspended: bool = False


@dataclass(frozen=True, slots=True)
class Reported:
    """A device's report on the slot: `state` as reported, `release` the digest that it refers to.

    "pending": it has the offer, and its signed policy holds it back. `attempt`: number of the offer that it answers,
    from its assignment; 0 if the device cannot tell. Reports may arrive twice and in any order.
    """

    device: str
    state: str
    release: str
    attempt: int = 0
    reason: str = ""
    evidence: Evidence = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Superseded:
    """No device is to run what the standing rollout brought: later rollouts replaced it, `rollout` as the last."""

    rollout: str

    @property
    def reason(self) -> str:
        """The reason for operators."""
        return f"superseded by {self.rollout}"


@dataclass(frozen=True, slots=True)
class ClockSetBack:
    """The recorder's clock is behind the time of an earlier fact, and no other fact would show it."""


@dataclass(frozen=True, slots=True)
class Unattended:
    """No leader evaluated the rollout from `since` to the time of this fact, or its clock leapt."""

    since: datetime


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision that was carried out. The decisions of one answer share one time and follow each other directly."""

    decision: Decision


Event = (
    Created
    | Approved
    | Started
    | Paused
    | Resumed
    | Aborted
    | WaveApproved
    | RollbackRequested
    | Joined
    | Left
    | Reported
    | Superseded
    | ClockSetBack
    | Unattended
    | Decided
)


@dataclass(frozen=True, slots=True)
class Fact:
    """One recorded fact. `seq` grows within a rollout; `at` is the recorder's clock (UTC), which may jump."""

    seq: int
    at: datetime
    event: Event
