"""Next steps of a rollout: one pure function of the recorded facts and the time.

The order is: silent devices, the abort limit, offers, retries, the next wave, the next round. Each answer is applied
before the next step, until a step answers nothing. So the same question asked again answers nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from fleet.controller.rollouts.abort_rules import VerdictTally, common_reasons, excess, passed_at
from fleet.controller.rollouts.decisions import Abort, Decision, Finish, Offer, OpenWave, Pause, Retry, RollBack
from fleet.controller.rollouts.fold import apply
from fleet.controller.rollouts.schedule import may_offer
from fleet.controller.rollouts.spec import CANARY, Rollback, Spec, wave_name
from fleet.controller.rollouts.state import (
    GAVE_UP,
    IN_FLIGHT,
    NO_WAVE,
    OPEN_OFFER,
    DeviceState,
    Member,
    RolloutState,
    Status,
)
from fleet.controller.rollouts.timeouts import silences
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


STEPS_LIMIT = 10
"""Most steps of one answer, plus one for each wave: silence, a halt, offers, retries, the end. More is a defect."""


def decide(spec: Spec, state: RolloutState, now: datetime, limit: int | None = None) -> tuple[Decision, ...]:
    """Return the decisions that are due at `now`, in order, at most the first `limit`.

    `limit` keeps the transaction that records them short, whatever the size of a wave. Once they are recorded, the same
    call at the same time returns the rest, and finally ().

    `state` is what `fold` made of the rollout's facts. Record the answer in the transaction that read them, each
    decision as a `Decided` with the time `now` and no other fact between them.
    """
    found: list[Decision] = []
    for _ in range(spec.last_wave + STEPS_LIMIT):
        step = _step(spec, state, now)
        if not step:
            return tuple(found)
        found += step
        if limit is not None and len(found) >= limit:
            return tuple(found[:limit])
        state = apply(spec, state, step, now)
    raise RuntimeError(f"decisions of {spec.name} have no effect, the last: {step[0]!r:.200}; this is a defect")


def _step(spec: Spec, state: RolloutState, now: datetime) -> Sequence[Decision]:
    if state.status is Status.ABORTED:
        return tuple(_returns(spec, state))
    if state.status is Status.STANDING:
        return tuple(silences(spec, state, now)) or _next_round(spec, state)
    if state.status not in {Status.RUNNING, Status.PAUSED}:
        return ()
    if state.halted:
        # No device goes on with a release that fails.
        mine = (member for member in state.members.values() if member.round == state.round and member.belongs)
        return tuple(RollBack(member.device) for member in mine if member.state in OPEN_OFFER)
    if silent := tuple(silences(spec, state, now)):
        return silent
    if state.status is Status.RUNNING:
        survey = MemberSurvey(spec, state)
        return (
            _halt(spec, state, survey)
            or _offers(spec, state, survey, now)
            or _retries(spec, survey, now)
            or _advance(spec, state, survey, now)
        )
    return ()


def _next_round(spec: Spec, state: RolloutState) -> Sequence[OpenWave]:
    """Return the first wave again if devices joined a standing rollout since its last round began."""
    joined = any(member.waiting and member.round == state.round for member in state.members.values())
    return _open(spec, state, spec.first_wave) if joined else ()


def _returns(spec: Spec, state: RolloutState) -> Iterator[RollBack]:
    """Yield roll-backs after an abort: of offers, and of committed devices where that is forced or was requested.

    Devices of earlier rounds keep the release.
    """
    all_of_them = spec.rollback is Rollback.FORCED or state.rollback_requested
    for member in state.members.values():
        concerned = member.round == state.round and member.attempt and member.belongs and not member.returned
        if concerned and (all_of_them or member.state is not DeviceState.COMMITTED):
            yield RollBack(member.device)


def _halt(spec: Spec, state: RolloutState, survey: MemberSurvey) -> Sequence[Decision]:
    found = excess(survey.tallies(), spec.abort)
    if found is None:
        return ()
    reason, evidence = found
    evidence = {**evidence, **common_reasons(survey.taken)}
    if spec.rollback is Rollback.FORCED:
        return (Abort(reason, evidence),)
    return (Pause(reason, halt=True, evidence=evidence),)


def _advance(spec: Spec, state: RolloutState, survey: MemberSurvey, now: datetime) -> Sequence[Decision]:
    """Return the next wave, the end, or a pause if the newest wave is over and did not pass."""
    if not survey.devices and not state.round:
        return ()
    if state.wave == NO_WAVE:
        return _open(spec, state, spec.first_wave)
    if survey.next_devices():
        return ()
    passed = survey.wave_passed_at()
    if passed is None:
        return () if survey.undecided(survey.wave) else (_unsuccessful(spec, state, survey),)
    if now - passed < timedelta(seconds=spec.soak_of(state.wave)):
        return ()
    if state.wave < spec.last_wave:
        return _open(spec, state, state.wave + 1)
    return () if survey.undecided(survey.taken) else (Finish(),)


def _open(spec: Spec, state: RolloutState, wave: int) -> Sequence[OpenWave]:
    approved = wave in state.approved_waves or not spec.needs_approval(wave)
    return (OpenWave(wave),) if approved else ()


def _unsuccessful(spec: Spec, state: RolloutState, survey: MemberSurvey) -> Pause:
    committed = sum(member.state is DeviceState.COMMITTED for member in survey.wave)
    reason = f"{wave_name(state.wave)} is over, and {committed} of its {len(survey.wave)} devices committed"
    evidence = {
        "wave": state.wave,
        "committed": committed,
        "devices": len(survey.wave),
        "min_percent": spec.success.min_percent,
        "min_sample": spec.success.min_sample,
    }
    return Pause(f"{reason}: too few", halt=False, evidence={**evidence, **common_reasons(survey.wave)})


def _offers(spec: Spec, state: RolloutState, survey: MemberSurvey, now: datetime) -> Sequence[Offer]:
    chosen = _allowed(spec, survey.next_devices(), now)
    return tuple(Offer(member.device, state.wave, member.attempt + 1) for member in chosen)


def _retries(spec: Spec, survey: MemberSurvey, now: datetime) -> Sequence[Retry]:
    due = [m for m in survey.taken if survey.may_retry(m) and now - m.verdict_at >= _back_off(spec, m)]
    return tuple(Retry(member.device, member.wave, member.attempt + 1) for member in _allowed(spec, due, now))


def _back_off(spec: Spec, member: Member) -> timedelta:
    retries = spec.retries
    return timedelta(seconds=min(retries.backoff_s * 2.0 ** (member.failures - 1), retries.backoff_limit_s))


def _allowed(spec: Spec, members: Sequence[Member], now: datetime) -> Sequence[Member]:
    """Return the members whose site's windows are open. The windows are evaluated once per zone."""
    zones = {zone: may_offer(spec, zone, now) for zone in {member.zone for member in members}}
    return [member for member in members if zones[member.zone]]
