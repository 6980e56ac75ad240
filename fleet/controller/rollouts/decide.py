"""Next steps of a rollout: one pure function of the recorded facts and the time.

The order is: silent devices, the abort limit, offers, retries, the next wave, the next round. Each answer is applied
before the next step, until a step answers nothing. So the same question asked again answers nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from fleet.controller.rollouts.abort_rules import common_reasons, excess
from fleet.controller.rollouts.decisions import Abort, Decision, Finish, Offer, OpenWave, Pause, Retry, RollBack
from fleet.controller.rollouts.fold import apply
from fleet.controller.rollouts.schedule import may_offer
from fleet.controller.rollouts.spec import Rollback, Spec, wave_name
from fleet.controller.rollouts.state import NO_WAVE, OPEN_OFFER, DeviceState, Member, RolloutState, Status
from fleet.controller.rollouts.survey import MemberSurvey
from fleet.controller.rollouts.timeouts import silences

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
