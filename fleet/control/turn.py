"""One look at one rollout: what is new, who belongs to it, what follows, and its doing; all of it or nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from fleet.audit import Deed
from fleet.control.catalogue import usable
from fleet.control.claims import carry_out, claimed
from fleet.control.membership import changes, taken_away
from fleet.control.rollouts_record import RETURNING, Known, States, add, facts_after
from fleet.database import audit, leader
from fleet.database.devices import Device
from fleet.database.engine import Connection, Database
from fleet.rollouts.decide import decide
from fleet.rollouts.decisions import Abort, Decision, Finish, Offer, OpenWave, Pause, Retry, RollBack
from fleet.rollouts.facts import ClockSetBack, Decided, Event, Paused
from fleet.rollouts.fold import fold, set_back
from fleet.rollouts.state import Status

ACTOR = "the scheduler"
"""Who decided, in facts and in the audit log."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be recorded: what happened, and what was decided then."""

    events: Sequence[Event]
    decisions: Sequence[Decision]


@dataclass(frozen=True, slots=True)
class Turn:
    """What the leader looks at rollouts with. `live`: the rollouts of one slot in which something may be to be done;
    `zones`: time zone by site; `fence`: of its office."""

    database: Database
    states: States
    fence: int
    live: Sequence[str]
    zones: Mapping[str, str]
    now: datetime

    def look(self, rollout: str, devices: Sequence[Device], *, complete: bool) -> Known:
        """Take in what changed about `devices`; decide, where all devices were looked at since this replica leads
        (`complete`): a share of a part of the fleet would be wrong. Raises FencedError, AwayError, AbsentError."""
        settings = self.database.settings
        with self.database.read() as connection:  # most of the work, while nobody waits for it
            known = self.states.read(connection, rollout, settings)
            self.states.keep(known)
            plan = self._plan(connection, known, devices, complete=complete)
        if not (plan.events or plan.decisions or known.stored.state == RETURNING):
            return known
        with self.database.write() as connection:
            leader.guard(connection, self.fence)
            known = self.states.read(connection, rollout, settings, lock=True)
            known = self._act(connection, known, self._plan(connection, known, devices, complete=complete))
        self.states.keep(known)
        return known

    def _plan(self, connection: Connection, known: Known, devices: Sequence[Device], *, complete: bool) -> Plan:
        if known.state.status is Status.ABORTED:  # whoever joined or left: what was offered is taken back
            return Plan((), decide(known.spec, known.state, self.now))
        taken = claimed(connection, known.spec, [other for other in self.live if other != known.stored.id])
        looked_at = {device.id for device in devices}
        events: list[Event] = [
            *([ClockSetBack()] if set_back(known.state, self.now) else []),
            *_barred(connection, known),
            *taken_away(known.state, taken - looked_at),
            *changes(known.spec, known.state, devices, taken, self.zones),
        ]
        if not complete:
            return Plan(events, ())
        state = fold(known.spec, facts_after(known.state, events, self.now), known.state)
        return Plan(events, decide(known.spec, state, self.now))

    def _act(self, connection: Connection, known: Known, plan: Plan) -> Known:
        settings = self.database.settings
        events = [*plan.events, *map(Decided, plan.decisions)]
        known = add(connection, known, events, self.now, settings, settled=True)
        kept = carry_out(connection, known, plan.decisions, self.now, settings)
        for deed in _deeds(known, plan, kept):
            audit.append(connection, deed, self.now)
        return known


def _barred(connection: Connection, known: Known) -> Sequence[Paused]:
    """Nobody is offered what devices would refuse."""
    why = usable(connection, known.spec.target.path) if known.state.status is Status.RUNNING else ""
    return (Paused(ACTOR, why),) if why else ()


def _deeds(known: Known, plan: Plan, kept: int) -> Iterator[Deed]:
    """For the audit log: what an operator should know. Of devices only how many; the facts name them."""
    for event in plan.events:
        if isinstance(event, Paused):
            yield Deed(ACTOR, "rollouts.pause", known.stored.id, {"reason": event.reason})
    for decision in plan.decisions:
        if isinstance(decision, OpenWave):
            yield Deed(ACTOR, "rollouts.wave", known.stored.id, {"wave": decision.wave})
        elif isinstance(decision, (Pause, Abort)):
            name = "rollouts.pause" if isinstance(decision, Pause) else "rollouts.abort"
            details = {"reason": decision.reason, "evidence": decision.evidence}
            yield Deed(ACTOR, name, known.stored.id, details)
        elif isinstance(decision, Finish):
            yield Deed(ACTOR, "rollouts.finish", known.stored.id)
    offers = sum(isinstance(decision, (Offer, Retry)) for decision in plan.decisions)
    returns = sum(isinstance(decision, RollBack) for decision in plan.decisions)
    if offers:
        yield Deed(ACTOR, "rollouts.offer", known.stored.id, {"devices": offers, "wave": known.state.wave})
    if returns:
        yield Deed(ACTOR, "rollouts.return", known.stored.id, {"devices": returns, "not possible": kept})
