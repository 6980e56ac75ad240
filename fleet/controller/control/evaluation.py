"""Evaluation of one rollout: read new facts, recompute membership, decide, record and apply, in one transaction.

In later rounds, standing rollouts pass over some devices, and later rollouts supersede them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from fleet.controller.audit import Deed
from fleet.controller.control.catalogue import usable
from fleet.controller.control.membership import awaited, changes, device_of, taken_away
from fleet.controller.control.rollouts import Rollouts
from fleet.controller.control.rollouts_record import LIVE, RETURNING, RecordedRollout, add, facts_after
from fleet.controller.control.slot_ownership import carry_out, claimed
from fleet.controller.database import audit, desired, leader, removal, rollouts
from fleet.controller.database.devices import Device
from fleet.controller.database.engine import Connection
from fleet.controller.database.rollouts import StoredRollout
from fleet.controller.rollouts.decide import decide
from fleet.controller.rollouts.decisions import Abort, Decision, Finish, Offer, OpenWave, Pause, Retry, RollBack
from fleet.controller.rollouts.facts import ClockSetBack, Decided, Event, Paused, Superseded, Unattended
from fleet.controller.rollouts.facts_form import TEXT_LIMIT_CHARS
from fleet.controller.rollouts.fold import fold, set_back
from fleet.controller.rollouts.members import NO_NEWCOMERS, Newcomers
from fleet.controller.rollouts.query import Operator, compares, matches
from fleet.controller.rollouts.query_parser import parse
from fleet.controller.rollouts.spec import Spec
from fleet.controller.rollouts.state import ENDED, IN_FLIGHT, RolloutState, Status
from gateway.common.domain.release_paths import parse_path

REPLACED = (Status.FINISHED.value, Status.STANDING.value)
"""Stored states of later rollouts that keep the devices that they took."""


def newcomers(
    connection: Connection,
    known: RecordedRollout,
    devices: Sequence[Device],
    live: Sequence[StoredRollout],
    zones: Mapping[str, str],
) -> Newcomers:
    """Return which devices a later round passes over, and which took the name of one that was removed.

    Passed over is a device that runs or is to run a newer version of the same model, one that a younger rollout of
    `live` is for, and one that has not reported yet what it runs.
    """
    if not known.state.round:
        return NO_NEWCOMERS
    members, slot, query = known.state.members, known.spec.slot, parse(known.spec.query)
    younger = [parse(str(other.spec["query"])) for other in live if other.id > known.stored.id]
    open_to = [one for one in devices if not (known.state.served(one.id) and members[one.id].belongs)]
    matched = [(one, queried) for one in open_to if matches(query, queried := device_of(one, zones))]
    wanted = desired.of_devices(connection, [device.id for device, _ in matched], slot)
    passed_over, new = set[str](), set[str]()
    for device, queried in matched:
        paths = [running.target for running in device.running if running.slot == slot]
        paths += [wanted[device.id].target] if device.id in wanted else []
        newer = any(_is_newer(path, known.spec.target.path) for path in paths)
        if newer or not device.health or any(matches(other, queried) for other in younger):
            passed_over.add(device.id)
        if device.id in members and not members[device.id].belongs and device.id not in wanted:
            new.add(device.id)
    return Newcomers(passed_over, new)


def superseded(connection: Connection, known: RecordedRollout) -> Sequence[Superseded]:
    """Return that later rollouts took the last device of a standing one, or nothing.

    Later rollouts that are not over block it: aborted, they would give the devices back.
    """
    if not known.state.round or known.state.status in ENDED:
        return ()
    slot, states = known.spec.slot, {*LIVE, *REPLACED}
    younger = rollouts.younger(connection, known.stored.id, slot, states)
    if not younger or desired.serves(connection, slot, known.stored.id):
        return ()
    taken = {other: desired.held(connection, slot, [other]) & known.state.members.keys() for other in younger}
    by = [other for other, devices in taken.items() if devices]
    return (Superseded(by[-1]),) if by and all(younger[other] in REPLACED for other in by) else ()


def _is_newer(path: str, target: str) -> bool:
    """Return whether `path`, which a device reports, is a newer version of the model of `target`."""
    try:
        there, mine = parse_path(path), parse_path(target)
    except ValueError:
        return False
    same = (there.owner, there.model) == (mine.owner, mine.model)
    return same and compares(Operator.ABOVE, there.version, mine.version)


ACTOR = "the scheduler"
"""Name of the scheduler in facts and in the audit log."""
TICKS = 2
"""Number of ticks that may pass between two evaluations before that counts as a gap."""


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """Events to record, and the decisions that follow from them."""

    events: Sequence[Event]
    decisions: Sequence[Decision]

    @property
    def ends(self) -> bool:
        """Return whether the rollout would be over."""
        return Finish() in self.decisions

    def put_off(self) -> EvaluationPlan:
        """Return the plan without its decisions: the next tick decides."""
        return replace(self, decisions=())


@dataclass(frozen=True, slots=True)
class EvaluationContext:
    """Context of evaluations by the leader.

    `live`: the rollouts of one slot in which there may be something to do. `zones`: time zone by site. `fence`: fencing
    token of the leader. `evaluated_at`: time of the previous evaluation, by any leader. `clock` shows the time, which
    was `now` when the evaluation began.
    """

    rolling: Rollouts
    fence: int
    live: Sequence[StoredRollout]
    zones: Mapping[str, str]
    now: datetime
    evaluated_at: datetime
    clock: Callable[[], datetime]

    def evaluate(self, rollout: str, devices: Sequence[Device], *, complete: bool) -> RecordedRollout:
        """Record what changed about `devices`, then decide, if `complete`.

        `complete`: all devices were read since this replica leads; shares of a part of the fleet would be wrong. Of
        many decisions a part is recorded and applied, and the next tick is due at once. Raise FencedError, AwayError,
        AbsentError.
        """
        database, states, settings = self.rolling.database, self.rolling.states, self.rolling.database.settings
        with database.read() as connection:  # most of the work, without a lock
            known = states.read(connection, rollout, settings)
            states.keep(known)
            plan = self._plan(connection, known, devices, complete=complete)
            if plan.ends and self._awaited(connection, known, plan):
                plan = plan.put_off()
            over = plan.ends
        if not (plan.events or plan.decisions or known.stored.state == RETURNING):
            return known
        with database.write() as connection:
            leader.guard(connection, self.fence)
            if self.clock() < self.now:  # it was set back meanwhile, and reports may have earlier times: decide later
                return known
            known = states.read(connection, rollout, settings, lock=True)
            gone = removal.gone(connection, (device.id for device in devices))
            here = [device for device in devices if device.id not in gone]
            plan = self._plan(connection, known, here, complete=complete)
            if plan.ends and not over:
                plan = plan.put_off()  # whether devices are awaited is read without a lock, in the next tick
            known = self._act(connection, known, plan)
        states.keep(known)
        self.rolling.hints.note(one.device for one in plan.decisions if isinstance(one, (Offer, Retry, RollBack)))
        if self._is_part(plan):
            self.rolling.due.set()
        return known

    def _plan(
        self, connection: Connection, known: RecordedRollout, devices: Sequence[Device], *, complete: bool
    ) -> EvaluationPlan:
        if known.state.status is Status.ABORTED:  # offers are taken back, regardless of changes in membership
            return EvaluationPlan((), self._decided(known.spec, known.state))
        rolling, rollout = self.rolling, known.stored.id
        others = [other for other in self.live if other.id != rollout]
        taken = claimed(connection, rolling.states, known.spec, others, rolling.database.settings, rollout=rollout)
        new = newcomers(connection, known, devices, others, self.zones)
        looked_at = {device.id for device in devices}
        # No device is offered what it would refuse.
        offers = known.state.status in {Status.RUNNING, Status.STANDING}
        why = usable(connection, known.spec.target.path) if offers else ""
        events: list[Event] = [
            *([ClockSetBack()] if set_back(known.state, self.now) else []),
            *self._gap(known),
            *((Paused(ACTOR, why[:TEXT_LIMIT_CHARS]),) if why else ()),
            *taken_away(known.state, taken - looked_at),
            *changes(known.spec, known.state, devices, taken, self.zones, newcomers=new),
            *(superseded(connection, known) if complete else ()),
        ]
        if not complete:
            return EvaluationPlan(events, ())
        state = fold(known.spec, facts_after(known.state, events, self.now), known.state)
        return EvaluationPlan(events, self._decided(known.spec, state))

    def _gap(self, known: RecordedRollout) -> Sequence[Unattended]:
        """Return the gap since the last evaluation, once for each gap, and before anything is decided.

        Half of the time after which devices count as silent is already a gap. A standing rollout waits only for devices
        that were resumed after their round.
        """
        working = (member.present and member.state in IN_FLIGHT for member in known.state.members.values())
        if known.state.status is Status.STANDING and not any(working):
            return ()
        settings = self.rolling.settings
        longest_s = max(TICKS * settings.tick_s, min(settings.gap_s, known.spec.silence_s / 2))
        since = max(self.evaluated_at, known.state.attended_at)
        if known.state.right_again(self.now):
            since = min(since, known.state.latest_at)
        return (Unattended(since),) if self.now - since > timedelta(seconds=longest_s) else ()

    def _decided(self, spec: Spec, state: RolloutState) -> Sequence[Decision]:
        return decide(spec, state, self.now, self.rolling.settings.decisions_per_tick)

    def _is_part(self, plan: EvaluationPlan) -> bool:
        """Return whether there may be more to decide."""
        return len(plan.decisions) >= self.rolling.settings.decisions_per_tick

    def _awaited(self, connection: Connection, known: RecordedRollout, plan: EvaluationPlan) -> bool:
        """Return whether the rollout would end without devices that older rollouts have, or had until now.

        Only older ones count, so that no two rollouts wait for each other. A standing one takes them later.
        """
        if known.spec.standing:
            return False
        state = fold(known.spec, facts_after(known.state, plan.events, self.now), known.state)
        younger = [other.id for other in self.live if other.id > known.stored.id]
        held = desired.held(connection, known.spec.slot, younger)
        return awaited(connection, self.rolling.database.settings, replace(known, state=state), held, self.zones)

    def _act(self, connection: Connection, known: RecordedRollout, plan: EvaluationPlan) -> RecordedRollout:
        settings = self.rolling.database.settings
        events = [*plan.events, *map(Decided, plan.decisions)]
        known = add(connection, known, events, self.now, settings, settled=not self._is_part(plan))
        kept = carry_out(connection, known, plan.decisions, self.now, settings)
        for deed in _deeds(known, plan, kept):
            audit.append(connection, deed, self.now)
        return known


def _deeds(known: RecordedRollout, plan: EvaluationPlan, kept: int) -> Iterator[Deed]:
    """Yield entries for the audit log. Devices are only counted there; the facts name them."""
    for event in plan.events:
        if isinstance(event, Paused):
            yield Deed(ACTOR, "rollouts.pause", known.stored.id, {"reason": event.reason})
        elif isinstance(event, Superseded):
            yield Deed(ACTOR, "rollouts.supersede", known.stored.id, {"by": event.rollout})
    for decision in plan.decisions:
        if isinstance(decision, OpenWave):
            yield Deed(ACTOR, "rollouts.wave", known.stored.id, {"wave": decision.wave})
        elif isinstance(decision, (Pause, Abort)):
            name = "rollouts.pause" if isinstance(decision, Pause) else "rollouts.abort"
            details = {"reason": decision.reason, "evidence": decision.evidence}
            yield Deed(ACTOR, name, known.stored.id, details)
        elif isinstance(decision, Finish):
            yield Deed(ACTOR, "rollouts.stand" if known.spec.standing else "rollouts.finish", known.stored.id)
    offers = sum(isinstance(decision, (Offer, Retry)) for decision in plan.decisions)
    returns = sum(isinstance(decision, RollBack) for decision in plan.decisions)
    if offers:
        yield Deed(ACTOR, "rollouts.offer", known.stored.id, {"devices": offers, "wave": known.state.wave})
    if returns:
        yield Deed(ACTOR, "rollouts.return", known.stored.id, {"devices": returns, "not possible": kept})
