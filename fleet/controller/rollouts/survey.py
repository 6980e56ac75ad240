"""Summary of all devices of a rollout: which wait, which have a place, how each group does. One linear pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from fleet.controller.rollouts.abort_rules import VerdictTally, passed_at
from fleet.controller.rollouts.spec import CANARY, Spec, wave_name
from fleet.controller.rollouts.state import GAVE_UP, IN_FLIGHT, DeviceState, Member, RolloutState
from fleet.controller.rollouts.waves import canaries, next_in_line, places


class MemberSurvey:
    """Summary of the members of this round. `wave`: those with a place in the newest wave; `taken`: in any wave."""

    def __init__(self, spec: Spec, state: RolloutState) -> None:
        self._spec = spec
        self._state = state
        self.waiting: list[Member] = []
        self.taken: list[Member] = []
        for member in state.members.values():
            if member.round != state.round:
                continue
            if member.waiting:
                self.waiting.append(member)
            elif member.counts:
                self.taken.append(member)
        self.wave = [member for member in self.taken if member.wave == state.wave]

    @property
    def devices(self) -> int:
        """The number of devices in the rollout."""
        return len(self.waiting) + len(self.taken)

    def next_devices(self) -> Sequence[Member]:
        """Return the devices for the free places of the newest wave, in order. Windows and blackouts do not matter."""
        spec, wave = self._spec, self._state.wave
        if wave < spec.first_wave:
            return ()
        if wave == CANARY and spec.canary:
            return canaries(self.waiting, self.wave, spec.canary.per_accelerator)
        free = places(spec.waves[wave - 1], self.devices, len(self.taken), len(self.wave))
        return next_in_line(self.waiting, free)

    def tallies(self) -> Mapping[str, VerdictTally]:
        """Return the verdicts of all devices, of the newest wave, and of each set of accelerators.

        A release that breaks one kind of hardware must not hide among the others. Failures before the last resumption
        do not count.
        """
        groups: dict[str, list[Member]] = {"all devices": self.taken, wave_name(self._state.wave): self.wave}
        for stratum, members in sorted(_strata(self.taken).items()):
            groups[f"accelerators {stratum}"] = members
        return {name: self._tally(members) for name, members in groups.items()}

    def wave_passed_at(self) -> datetime | None:
        """Return the time at which the newest wave met its success rule, or None. A canary meets it in each stratum."""
        groups = list(_strata(self.wave).values()) if self._state.wave == CANARY else [self.wave]
        moments = [self._passed_at(members) for members in groups or [[]]]
        known = [moment for moment in moments if moment is not None]
        return max(known) if len(known) == len(moments) else None

    def undecided(self, members: Iterable[Member]) -> bool:
        """Return whether one of `members` is in progress or will try again."""
        return any(member.state in IN_FLIGHT or self.may_retry(member) for member in members)

    def may_retry(self, member: Member) -> bool:
        """Return whether the device gave up and has an attempt left."""
        return member.state in GAVE_UP and member.failures <= self._spec.retries.limit and member.present

    def _passed_at(self, members: Sequence[Member]) -> datetime | None:
        ended = sum(self._forgiven(m) and not self.undecided([m]) for m in members)
        commits = [m.verdict_at for m in members if m.state is DeviceState.COMMITTED]
        return passed_at(len(members) - ended, commits, self._spec.success)

    def _tally(self, members: Iterable[Member]) -> VerdictTally:
        passed = failed = 0
        for member in members:
            passed += member.state is DeviceState.COMMITTED
            failed += member.failing and not self._forgiven(member)
        return VerdictTally(passed, failed)

    def _forgiven(self, member: Member) -> bool:
        return member.failing and member.verdict_seq <= self._state.resumed_seq


def _strata(members: Iterable[Member]) -> dict[str, list[Member]]:
    strata: dict[str, list[Member]] = {}
    for member in members:
        strata.setdefault(member.stratum, []).append(member)
    return strata
