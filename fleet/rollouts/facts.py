"""What happened in a rollout: recorded facts, in the order of their sequence numbers. Values; `fold.fold` reads them.

The JSON form is in `facts_form`. A fact that may not happen (a start before the approval) can be recorded all the
same: it then has no effect and is counted. `fold.refusal` tells before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from fleet.rollouts.decisions import Decision, Evidence


@dataclass(frozen=True, slots=True)
class Created:
    """`rollout` is its identity, which with a device's decides the device's place."""

    rollout: str
    by: str


@dataclass(frozen=True, slots=True)
class Approved:
    """`spec`: digest of the specification that was approved (`spec_form.spec_digest`); it cannot change any more."""

    by: str
    spec: str


@dataclass(frozen=True, slots=True)
class Started:
    """An operator, or a plan, started it."""

    by: str


@dataclass(frozen=True, slots=True)
class Paused:
    """No device is offered anything until it is resumed; those under way go on."""

    by: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Resumed:
    """What failed before was seen by an operator: it is not held against the rollout any more."""

    by: str


@dataclass(frozen=True, slots=True)
class Aborted:
    """An operator ends it for good; offers are withdrawn."""

    by: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class WaveApproved:
    """A wave that needs approval may open."""

    wave: int
    by: str


@dataclass(frozen=True, slots=True)
class RollbackRequested:
    """After the end by an abort: devices that committed go back, too."""

    by: str


@dataclass(frozen=True, slots=True)
class Joined:
    """The query matched a device. `zone`: the time zone of its site ("": UTC)."""

    device: str
    accelerators: tuple[str, ...] = ()
    zone: str = ""


@dataclass(frozen=True, slots=True)
class Left:
    """The device is not in the rollout any more: the query ceased to match before its turn, or it is gone."""

    device: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Reported:
    """What a device says of the slot: `state` as reported, `release` the digest that it speaks of.

    "pending": it has the offer, and its signed policy holds it back. `attempt`: of the offer that it answers, as its
    assignment said; 0 where it cannot say. Reports may come twice and in any order.
    """

    device: str
    state: str
    release: str
    attempt: int = 0
    reason: str = ""
    evidence: Evidence = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClockSetBack:
    """The recorder's clock is behind the time of an earlier fact, though nothing else happened that would show it."""


@dataclass(frozen=True, slots=True)
class Unattended:
    """From `since` to the time of this fact nobody looked at the rollout: no leader was there, or its clock leapt."""

    since: datetime


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision that was carried out. All of one answer carry one time, and no other fact stands between them."""

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
    | ClockSetBack
    | Unattended
    | Decided
)


@dataclass(frozen=True, slots=True)
class Fact:
    """`seq` grows from fact to fact of one rollout; `at` is the recorder's clock (UTC), which may jump."""

    seq: int
    at: datetime
    event: Event
