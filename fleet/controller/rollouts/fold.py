"""Fold of recorded facts into the state of a rollout, from the beginning or from any later state.

Each fact costs the same, however many came before. Reports may arrive twice, late and in any order: within one attempt
a device's state only moves forward, so their order does not affect the verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from fleet.controller.rollouts import timeouts
from fleet.controller.rollouts.decisions import (
    Abort,
    Decision,
    Finish,
    MarkSilent,
    Offer,
    OpenWave,
    Pause,
    Retry,
    RollBack,
)
from fleet.controller.rollouts.facts import (
    Aborted,
    Approved,
    ClockSetBack,
    Created,
    Decided,
    Event,
    Fact,
    Joined,
    Left,
    Paused,
    Reported,
    Resumed,
    RollbackRequested,
    Started,
    Superseded,
    Unattended,
    WaveApproved,
)
from fleet.controller.rollouts.roster import Changes
from fleet.controller.rollouts.spec import Spec, wave_name
from fleet.controller.rollouts.spec_form import spec_digest
from fleet.controller.rollouts.state import (
    BEGINNING,
    ENDED,
    GAVE_UP,
    IN_FLIGHT,
    NO_WAVE,
    DeviceState,
    Member,
    RolloutState,
    Status,
    rank_of,
    stratum_of,
)

CLOCK_STEP = timedelta(seconds=60)
"""Age difference at which a fact shows that the clock was set back. Replicas' clocks may differ by less."""
_PROGRESS: Mapping[DeviceState, int] = {
    DeviceState.PENDING: 1,
    DeviceState.OFFERED: 1,
    DeviceState.DOWNLOADING: 2,
    DeviceState.PROBATION: 3,
    DeviceState.SILENT: 4,
    DeviceState.COMMITTED: 5,
    DeviceState.ROLLED_BACK: 6,
    DeviceState.FAILED: 6,
}
_MOVES: Mapping[type[Any], tuple[frozenset[Status], Status]] = {
    Approved: (frozenset({Status.DRAFT}), Status.APPROVED),
    Started: (frozenset({Status.APPROVED}), Status.RUNNING),
    Paused: (frozenset({Status.RUNNING, Status.STANDING}), Status.PAUSED),
    Resumed: (frozenset({Status.PAUSED}), Status.RUNNING),
    Aborted: (frozenset({Status.APPROVED, Status.RUNNING, Status.PAUSED, Status.STANDING}), Status.ABORTED),
    RollbackRequested: (frozenset({Status.ABORTED}), Status.ABORTED),
    Pause: (frozenset({Status.RUNNING}), Status.PAUSED),
    Abort: (frozenset({Status.RUNNING}), Status.ABORTED),
    Finish: (frozenset({Status.RUNNING}), Status.FINISHED),
    Superseded: (frozenset({Status.RUNNING, Status.PAUSED, Status.STANDING}), Status.FINISHED),
}
"""Permitted statuses before, and the status after, an event or decision.

draft → approved → running ⇄ paused → finished | aborted. A standing rollout: running ⇄ standing ⇄ paused → finished;
`OpenWave` begins its next round.
"""
_BETWEEN_ROUNDS: Mapping[Status, Status] = {Status.RUNNING: Status.STANDING, Status.ABORTED: Status.FINISHED}
"""Status instead of that in `_MOVES` between two rounds: there is no wave to resume, and nothing to withdraw."""


def fold(spec: Spec, facts: Iterable[Fact], state: RolloutState | None = None) -> RolloutState:
    """Return the state after `facts`, which follow `state` (None: the beginning). Facts in `state` are skipped."""
    folding = _Folding(spec, state or RolloutState())
    for fact in facts:
        folding.take(fact)
    return folding.state()


def set_back(state: RolloutState, now: datetime) -> bool:
    """Return whether the clock was set back since the last fact.

    The caller then records a `ClockSetBack`. Otherwise waits that began at a wrong later time would last too long.
    """
    return state.latest_at - now > CLOCK_STEP


def apply(spec: Spec, state: RolloutState, decisions: Iterable[Decision], at: datetime) -> RolloutState:
    """Return the state that results once `decisions` are recorded as the next facts."""
    return fold(spec, (Fact(n, at, Decided(d)) for n, d in enumerate(decisions, state.seq + 1)), state)


def refusal(spec: Spec, state: RolloutState, event: Event) -> str:
    """Return why an operator's event would have no effect now, or "" if it would have one."""
    if isinstance(event, Created):
        return "it exists already" if state.rollout else ""
    if isinstance(event, Approved) and event.spec != spec_digest(spec):
        return "another specification was approved than the one that is stored"
    if isinstance(event, WaveApproved):
        if state.status in ENDED:
            return f"the rollout is {state.status.value}"
        if not (spec.first_wave <= event.wave <= spec.last_wave and spec.needs_approval(event.wave)):
            return f"{wave_name(event.wave)} needs no approval"
        return f"{wave_name(event.wave)} was approved already" if event.wave in state.approved_waves else ""
    move = _MOVES.get(type(event))
    if not move or state.status in move[0]:
        return ""
    wanted = " or ".join(sorted(status.value for status in move[0]))
    return f"the rollout is {state.status.value}; for that it has to be {wanted}"


class _Folding:
    """Mutable state during a fold. Only the result is visible outside."""

    def __init__(self, spec: Spec, state: RolloutState) -> None:
        self._spec = spec
        self._state = state
        self._members = Changes(state.members)
        self._ignored = dict(state.ignored)
        self._seq, self._at, self._latest = state.seq, state.latest_at, state.latest_at

    def state(self) -> RolloutState:
        members = self._members.roster()
        return replace(self._state, members=members, ignored=self._ignored, seq=self._seq, latest_at=self._latest)

    def take(self, fact: Fact) -> None:
        if fact.seq <= self._seq:
            return
        self._seq, self._at = fact.seq, fact.at
        if self._latest - fact.at > CLOCK_STEP:
            ahead_at, attended_at = max(self._state.ahead_at, self._latest), min(self._state.attended_at, fact.at)
            self._latest = at = self._at
            self._change(attended_at=attended_at, ahead_at=ahead_at)
            for member in self._members.members():
                self._members.put(timeouts.set_back(member, at))
        elif self._state.right_again(fact.at):
            if not isinstance(fact.event, Unattended):  # which says itself since when
                self.unattended(Unattended(self._latest))
            self._latest = fact.at
            self._change(ahead_at=BEGINNING)
        else:
            self._latest = max(self._latest, fact.at)
        event: Any = fact.event.decision if isinstance(fact.event, Decided) else fact.event
        _TAKERS[type(event)](self, event)

    # ---- the rollout

    def created(self, event: Created) -> None:
        if self._permitted(event):
            self._change(rollout=event.rollout)

    def moved(self, event: Any) -> None:
        """Apply an operator's command or a decision that changes the status."""
        if not self._permitted(event):
            return
        status = _MOVES[type(event)][1]
        if self._state.between_rounds:
            status = _BETWEEN_ROUNDS.get(status, status)
        changes: dict[str, Any] = {"status": status, "reason": getattr(event, "reason", "")}
        changes["evidence"] = getattr(event, "evidence", {})
        changes["halted"] = isinstance(event, Pause) and event.halt
        if isinstance(event, Resumed):
            changes["resumed_seq"] = self._seq
        if isinstance(event, Finish) and self._spec.standing:
            changes |= {"status": Status.STANDING, "round": self._state.round + 1, "wave": NO_WAVE}
        self._change(**changes)

    def rollback_requested(self, event: RollbackRequested) -> None:
        if self._permitted(event):
            self._change(rollback_requested=True)

    def wave_approved(self, event: WaveApproved) -> None:
        if self._permitted(event):
            self._change(approved_waves=self._state.approved_waves | {event.wave})

    def wave_opened(self, decision: OpenWave) -> None:
        if self._state.status in {Status.RUNNING, Status.STANDING} and decision.wave > self._state.wave:
            self._change(wave=decision.wave, status=Status.RUNNING)
        else:
            self._ignore("a wave out of turn")

    def clock_set_back(self, event: ClockSetBack) -> None:
        """Do nothing: `take` has already evaluated the time of the fact."""

    def unattended(self, event: Unattended) -> None:
        """Exclude the time in which no report could arrive and no decision was made."""
        if event.since >= self._at:
            return self._ignore("unattended for no time")
        for member in self._members.members():
            self._members.put(timeouts.given_back(member, event.since, self._at))
        return self._change(attended_at=self._at)

    # ---- its devices

    def joined(self, event: Joined) -> None:
        known = self._members.get(event.device)
        late = self._state.wave != NO_WAVE and known is None and not self._spec.dynamic
        if late or self._state.status in ENDED:
            return self._ignore("joined after the end" if not late else "joined after the start")
        member = known or Member(event.device, rank_of(self._state.rollout, event.device))
        changes: dict[str, Any] = {"stratum": stratum_of(event.accelerators), "zone": event.zone}
        if not member.belongs or (member.state is DeviceState.PENDING and not member.present) or known is None:
            changes["round"] = self._state.round + (self._state.round > 0 and self._state.wave != NO_WAVE)
        if self._state.round and not member.belongs:  # another device of this name: served as a new one
            changes |= {"state": DeviceState.PENDING, "wave": NO_WAVE, "failures": 0}
        if member.suspended and not member.failing:
            changes["reason"] = ""
        if member.suspended and member.state in IN_FLIGHT:
            changes |= self._begun()
        return self._put(member, present=True, suspended=False, **changes)

    def left(self, event: Left) -> None:
        member = self._members.get(event.device)
        if member is None or not member.belongs:
            return self._ignore("left without being there")
        keeps_reason = not event.reason or (event.suspended and member.failing)
        reason = member.reason if keeps_reason else event.reason
        return self._put(member, present=False, suspended=event.suspended, reason=reason)

    def offered(self, decision: Offer) -> None:
        member = self._members.get(decision.device)
        open_wave = self._state.status is Status.RUNNING and decision.wave == self._state.wave
        if member is None or not (open_wave and member.waiting and decision.attempt == member.attempt + 1):
            return self._ignore("offered out of turn")
        return self._offer(member, decision)

    def retried(self, decision: Retry) -> None:
        member = self._members.get(decision.device)
        if member is None or self._state.status is not Status.RUNNING or not member.present:
            return self._ignore("offered out of turn")
        if member.state not in GAVE_UP or decision.attempt != member.attempt + 1:
            return self._ignore("offered out of turn")
        return self._offer(member, decision)

    def fell_silent(self, decision: MarkSilent) -> None:
        member = self._members.get(decision.device)
        if member is None or member.state not in IN_FLIGHT:
            return self._ignore("silent out of turn")
        return self._end(member, DeviceState.SILENT, decision.reason)

    def rolled_back(self, decision: RollBack) -> None:
        """Withdraw an offer, and mark the device as returned if the rollout was aborted.

        While the rollout is paused, the device becomes pending again and waits for the next offer.
        """
        member = self._members.get(decision.device)
        if member is None or member.attempt == 0 or self._state.status not in {Status.PAUSED, Status.ABORTED}:
            return self._ignore("rolled back out of turn")
        ended = self._state.status is Status.ABORTED
        if member.state in IN_FLIGHT or member.state is DeviceState.SILENT:
            return self._put(member, state=DeviceState.PENDING, wave=NO_WAVE, returned=ended)
        return self._put(member, returned=ended)

    def reported(self, event: Reported) -> None:
        member = self._members.get(event.device)
        if member is None or member.state is DeviceState.PENDING:
            return self._ignore("a report without an offer")
        if event.attempt not in {0, member.attempt}:
            return self._ignore("a report of another attempt")
        if event.release != self._spec.target.sha256:
            return self._other_release(member, event)
        return self._advance(member, DeviceState(event.state), event.reason)

    def _other_release(self, member: Member, event: Reported) -> None:
        """Judge a report on another release.

        A device fails if it reports this attempt as done, or had committed, and runs another release. A device that was
        rolled back after an abort has then completed that.
        """
        done = event.state == DeviceState.COMMITTED.value
        if done and member.returned:
            return self._advance(member, DeviceState.ROLLED_BACK, event.reason)
        if done and (member.state is DeviceState.COMMITTED or event.attempt == member.attempt):
            reason = f"it says that it is done, and runs another release ({event.release[:12]}…)"
            return self._advance(member, DeviceState.FAILED, reason)
        return self._ignore("a report of another release")

    def _advance(self, member: Member, state: DeviceState, reason: str) -> None:
        if _PROGRESS[state] > _PROGRESS[member.state]:
            if state in IN_FLIGHT:
                return self._members.put(timeouts.reported(member, self._at, state))
            return self._end(member, state, reason)
        if member.state in IN_FLIGHT:
            held = state is DeviceState.PENDING and member.state is DeviceState.OFFERED
            return self._members.put(timeouts.reported(member, self._at, member.state, held=held))
        return self._ignore("a report that is known or late")

    def _end(self, member: Member, state: DeviceState, reason: str) -> None:
        failures = member.failures + (state in GAVE_UP)
        self._put(member, state=state, failures=failures, verdict_at=self._at, verdict_seq=self._seq, reason=reason)

    def _offer(self, member: Member, decision: Offer | Retry) -> None:
        self._put(member, state=DeviceState.OFFERED, wave=decision.wave, attempt=decision.attempt, **self._begun())

    def _begun(self) -> dict[str, Any]:
        """Return the times of a device that begins, or goes on, to work on its offer now."""
        return {"offered_at": self._at, "heard_at": self._at, "held": False, "held_for": timedelta()}

    # ---- bookkeeping

    def _permitted(self, event: Any) -> bool:
        why = refusal(self._spec, self._state, event)
        if why:
            self._ignore(f"{type(event).__name__}: {why}")
        return not why

    def _put(self, member: Member, **changes: Any) -> None:
        self._members.put(replace(member, **changes))

    def _change(self, **changes: Any) -> None:
        self._state = replace(self._state, **changes)

    def _ignore(self, reason: str) -> None:
        self._ignored[reason] = self._ignored.get(reason, 0) + 1


_TAKERS: Mapping[type[Any], Callable[[_Folding, Any], None]] = {
    Created: _Folding.created,
    Approved: _Folding.moved,
    Started: _Folding.moved,
    Paused: _Folding.moved,
    Resumed: _Folding.moved,
    Aborted: _Folding.moved,
    WaveApproved: _Folding.wave_approved,
    RollbackRequested: _Folding.rollback_requested,
    Joined: _Folding.joined,
    Left: _Folding.left,
    Reported: _Folding.reported,
    Superseded: _Folding.moved,
    ClockSetBack: _Folding.clock_set_back,
    Unattended: _Folding.unattended,
    OpenWave: _Folding.wave_opened,
    Offer: _Folding.offered,
    Retry: _Folding.retried,
    MarkSilent: _Folding.fell_silent,
    Pause: _Folding.moved,
    Finish: _Folding.moved,
    Abort: _Folding.moved,
    RollBack: _Folding.rolled_back,
}
