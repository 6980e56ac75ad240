"""State of a rollout and of its devices: the result of `fold`, and the input of `decide` together with the time."""

from __future__ import annotations

import enum
import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

from fleet.controller.rollouts.decisions import Evidence

NO_WAVE = -1
"""Wave of a device that is in none, and of a rollout that has opened none."""
EARLIER = -2
"""Key of devices of earlier rounds in `device_counts`."""
CPU_ONLY = "cpu"
BEGINNING = datetime.min.replace(tzinfo=timezone.utc)
"""Time of an event that never happened."""
_RANK_BYTES = 8


class Status(enum.Enum):
    """Status of a rollout."""

    DRAFT = "draft"
    APPROVED = "approved"
    RUNNING = "running"
    PAUSED = "paused"
    STANDING = "standing"
    FINISHED = "finished"
    ABORTED = "aborted"


ENDED = frozenset({Status.FINISHED, Status.ABORTED})


class DeviceState(enum.Enum):
    """State of a device in a rollout."""

    PENDING = "pending"
    OFFERED = "offered"
    DOWNLOADING = "downloading"
    PROBATION = "probation"
    SILENT = "silent"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    FAILED = "failed"


IN_FLIGHT = frozenset({DeviceState.OFFERED, DeviceState.DOWNLOADING, DeviceState.PROBATION})
"""States of a device with an offer that has neither reported its end nor been silent for too long."""
OPEN_OFFER = IN_FLIGHT | {DeviceState.SILENT}
"""States of a device that may still install what it was offered."""
GAVE_UP = frozenset({DeviceState.ROLLED_BACK, DeviceState.FAILED})


@dataclass(frozen=True, slots=True)
class Member:
    """A device in a rollout.

    `rank` is its place among all, by hash. `stratum`: its set of accelerators. `present` False: it left. `suspended`:
    it left until an operator resumes it. `round`: the one in which it is offered the release. `attempt` counts offers,
    `failures` those that failed. `verdict_seq`: the fact by which it committed or failed, 0 before. `returned`: it was
    rolled back after an abort. `held`: by its last report, its policy does not let it begin yet. `held_for`: how long
    that lasted up to `heard_at`. Times exclude what `timeouts` gives back.
    """

    device: str
    rank: int
    stratum: str = CPU_ONLY
    zone: str = ""
    present: bool = True
    suspended: bool = False
    round: int = 0
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
    def belongs(self) -> bool:
        """Return whether this rollout decides what it runs: it is in the rollout, or suspended."""
        return self.present or self.suspended

    @property
    def waiting(self) -> bool:
        """Return whether it can be taken into a wave."""
        return self.present and self.state is DeviceState.PENDING

    @property
    def failing(self) -> bool:
        """Return whether it counts as failed: it failed (even if it tries again) or was silent for too long."""
        if self.state is DeviceState.PENDING:
            return False
        return self.state is DeviceState.SILENT or (self.failures > 0 and self.state is not DeviceState.COMMITTED)

    @property
    def counts(self) -> bool:
        """Return whether it takes a place of its wave. A device that left takes one only if it had a verdict."""
        return self.wave != NO_WAVE and (self.present or self.failing or self.state is DeviceState.COMMITTED)


@dataclass(frozen=True, slots=True)
class RolloutState:
    """State of a rollout after the fact number `seq`.

    `wave`: the last that was opened in this `round`. The round 0 is the rollout itself; a standing rollout begins
    another for the devices that joined since. `resumed_seq`: an operator saw the failures up to this fact. `ignored`:
    facts without effect, by reason. `latest_at`: the latest time of a fact. `attended_at`: no time before it is given
    back any more. `ahead_at`: the latest time before the clock was set back, until it is reached again.
    """

    rollout: str = ""
    status: Status = Status.DRAFT
    seq: int = 0
    latest_at: datetime = BEGINNING
    attended_at: datetime = BEGINNING
    ahead_at: datetime = BEGINNING
    round: int = 0
    wave: int = NO_WAVE
    approved_waves: frozenset[int] = frozenset()
    halted: bool = False
    reason: str = ""
    evidence: Evidence = field(default_factory=dict)
    resumed_seq: int = 0
    rollback_requested: bool = False
    members: Mapping[str, Member] = field(default_factory=dict)
    ignored: Mapping[str, int] = field(default_factory=dict)

    @property
    def between_rounds(self) -> bool:
        """Return whether a standing rollout has ended a round and opened no wave of the next."""
        return self.round > 0 and self.wave == NO_WAVE

    def right_again(self, now: datetime) -> bool:
        """Return whether a clock that was set back shows a time that it showed before.

        If it was wrong in between, the time since the last fact is not time in which a device was silent. If it was
        wrong before that, the same time is given back once too often, which delays a verdict and causes none.
        """
        return BEGINNING != self.ahead_at <= now

    def served(self, device: str) -> bool:
        """Return whether a standing rollout has offered the release to this device in an earlier round."""
        member = self.members.get(device)
        return member is not None and member.round < self.round and member.state is not DeviceState.PENDING


def rank_of(rollout: str, device: str) -> int:
    """Return a device's place in a rollout: a hash of both, so that each rollout begins with other devices."""
    return int.from_bytes(hashlib.sha256(f"{rollout}\0{device}".encode()).digest()[:_RANK_BYTES], "big")


def stratum_of(accelerators: Iterable[str]) -> str:
    """Return the name of a set of accelerators. Devices with the same set are equivalent for a release."""
    return "+".join(sorted(set(accelerators))) or CPU_ONLY


def open_offers(state: RolloutState) -> Mapping[int, int]:
    """Count by wave (as `device_counts`) the devices that may still install it, as nothing takes their offer back."""
    found = (member for member in state.members.values() if member.belongs and member.state in OPEN_OFFER)
    return Counter(EARLIER if member.round < state.round else member.wave for member in found)


def device_counts(state: RolloutState) -> Mapping[int, Mapping[str, int]]:
    """Count devices by wave (-1: none yet; -2: of an earlier round) and state, for people.

    Devices that left without a verdict do not count.
    """
    waves: dict[int, Counter[str]] = {}
    for member in state.members.values():
        if member.counts or member.waiting:
            wave = EARLIER if member.round < state.round else member.wave
            waves.setdefault(wave, Counter())[member.state.value] += 1
    return waves
