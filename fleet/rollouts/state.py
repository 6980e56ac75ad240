"""Where a rollout and each of its devices stand: what `fold` makes of the facts, and all that `decide` looks at."""

from __future__ import annotations

import enum
import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from fleet.rollouts.decisions import Evidence

NO_WAVE = -1
"""Of a device that is in no wave, and of a rollout that opened none."""
CPU_ONLY = "cpu"
BEGINNING = datetime.min.replace(tzinfo=UTC)
"""Of what never happened."""
_RANK_BYTES = 8


class Status(enum.Enum):
    """Of a rollout."""

    DRAFT = "draft"
    APPROVED = "approved"
    RUNNING = "running"
    PAUSED = "paused"
    FINISHED = "finished"
    ABORTED = "aborted"


ENDED = frozenset({Status.FINISHED, Status.ABORTED})


class DeviceState(enum.Enum):
    """Of a device in a rollout."""

    PENDING = "pending"
    OFFERED = "offered"
    DOWNLOADING = "downloading"
    PROBATION = "probation"
    SILENT = "silent"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    FAILED = "failed"


IN_FLIGHT = frozenset({DeviceState.OFFERED, DeviceState.DOWNLOADING, DeviceState.PROBATION})
"""It was offered the release and has neither said how that ended nor been silent for too long."""
GAVE_UP = frozenset({DeviceState.ROLLED_BACK, DeviceState.FAILED})


@dataclass(frozen=True, slots=True)
class Member:
    """A device in a rollout.

    `rank` is its place among all, by hash. `stratum`: its set of accelerators. `present` False: it left. `attempt`
    counts offers, `failures` those that it gave up. `verdict_seq`: the fact by which it committed or failed, 0 before.
    `returned`: it was told to go back after an abort. `held`: as it said last, its policy lets it not begin yet;
    `held_for`: how long that lasted up to `heard_at`. Times leave out what `patience` gives back.
    """

    device: str
    rank: int
    stratum: str = CPU_ONLY
    zone: str = ""
    present: bool = True
    state: DeviceState = DeviceState.PENDING
    wave: int = NO_WAVE
    attempt: int = 0
    failures: int = 0
    offered_at: datetime = BEGINNING
    heard_at: datetime = BEGINNING
    verdict_at: datetime = BEGINNING
    verdict_seq: int = 0
    reason: str = ""
    returned: bool = False
    held: bool = False
    held_for: timedelta = timedelta()

    @property
    def waiting(self) -> bool:
        """It can be taken into a wave."""
        return self.present and self.state is DeviceState.PENDING

    @property
    def failing(self) -> bool:
        """It counts as failed: it gave up (also while it tries again) or was silent for too long."""
        if self.state is DeviceState.PENDING:
            return False
        return self.state is DeviceState.SILENT or (self.failures > 0 and self.state is not DeviceState.COMMITTED)

    @property
    def counts(self) -> bool:
        """It fills a place of its wave: a device that is gone does so only where it had a verdict."""
        return self.wave != NO_WAVE and (self.present or self.failing or self.state is DeviceState.COMMITTED)


@dataclass(frozen=True, slots=True)
class State:
    """`seq`: of the last fact that was read. `wave`: the last that was opened. `resumed_seq`: failures up to it were
    seen by an operator. `ignored`: facts without effect, by reason. `latest_at`: the latest time of a fact.
    `attended_at`: up to then no time is to be given back any more."""

    rollout: str = ""
    status: Status = Status.DRAFT
    seq: int = 0
    latest_at: datetime = BEGINNING
    attended_at: datetime = BEGINNING
    wave: int = NO_WAVE
    approved_waves: frozenset[int] = frozenset()
    halted: bool = False
    reason: str = ""
    evidence: Evidence = field(default_factory=dict)
    resumed_seq: int = 0
    rollback_requested: bool = False
    members: Mapping[str, Member] = field(default_factory=dict)
    ignored: Mapping[str, int] = field(default_factory=dict)


def rank_of(rollout: str, device: str) -> int:
    """A device's place in a rollout: by hash of both, so that not the same devices go first every time."""
    return int.from_bytes(hashlib.sha256(f"{rollout}\0{device}".encode()).digest()[:_RANK_BYTES], "big")


def stratum_of(accelerators: Iterable[str]) -> str:
    """Devices with the same kinds of accelerators are alike to a release."""
    return "+".join(sorted(set(accelerators))) or CPU_ONLY


def device_counts(state: State) -> Mapping[int, Mapping[str, int]]:
    """Devices by wave (-1: none yet) and state, for people; those that left without a verdict are not counted."""
    waves: dict[int, Counter[str]] = {}
    for member in state.members.values():
        if member.counts or member.waiting:
            waves.setdefault(member.wave, Counter())[member.state.value] += 1
    return waves
