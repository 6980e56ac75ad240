"""Facts of rollouts between the database and `fleet.rollouts`, and the states they add up to, kept in memory."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from fleet.database import rollouts
from fleet.database.engine import Connection
from fleet.database.rollouts import NewFact, StoredFact, StoredRollout
from fleet.database.rows import chunks
from fleet.database.settings import DatabaseSettings
from fleet.rollouts.facts import Aborted, Decided, Event, Fact, RollbackRequested
from fleet.rollouts.facts_form import event_document, kind_of, read_event
from fleet.rollouts.fold import fold
from fleet.rollouts.spec import Spec
from fleet.rollouts.spec_form import read_spec
from fleet.rollouts.state import State, Status

RETURNING = "returning"
"""How a rollout is stored that was aborted while devices are still to be told; for people it is aborted."""
LIVE = (Status.RUNNING.value, Status.PAUSED.value, RETURNING)
"""Stored states of rollouts in which something may be to be done."""
STATES_LIMIT = 64
"""Rollouts whose state is kept in memory; those that were not asked for longest go first."""
MEMBERS_LIMIT = 1_000_000
"""Devices of all these rollouts together, unless one alone has more; one takes some 500 bytes."""


@dataclass(frozen=True, slots=True)
class Known:
    """A rollout, and where its facts leave it."""

    stored: StoredRollout
    spec: Spec
    state: State


class States:
    """Of committed facts only, so that they hold whatever became of who read them. Any thread may ask."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[Spec, State]] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, connection: Connection, rollout: str, settings: DatabaseSettings, *, lock: bool = False) -> Known:
        """From the database, only what is new of it; `lock`: nobody adds a fact before the transaction ends.
        Raises AbsentError."""
        stored = rollouts.get(connection, rollout, lock=lock)
        spec, state = self._at_most(stored)
        while state.seq < stored.sequence:
            page = rollouts.facts_of(connection, rollout, settings, after=state.seq)
            state = fold(spec, map(fact_of, page), state)
        return Known(stored, spec, state)

    def keep(self, known: Known) -> None:
        """For the next time. Only what is committed."""
        if known.state.status is Status.DRAFT:
            return  # its specification may become another
        with self._lock:
            kept = self._kept.pop(known.stored.id, None)
            newer = kept if kept and kept[1].seq > known.state.seq else (known.spec, known.state)
            self._kept[known.stored.id] = newer
            while len(self._kept) > STATES_LIMIT or (len(self._kept) > 1 and self._members() > MEMBERS_LIMIT):
                self._kept.popitem(last=False)

    def forget(self) -> None:
        """All of them: what the database holds may be another one than before."""
        with self._lock:
            self._kept.clear()

    def _members(self) -> int:
        return sum(len(state.members) for _, state in self._kept.values())

    def _at_most(self, stored: StoredRollout) -> tuple[Spec, State]:
        """What is kept, unless the database was put back behind it."""
        with self._lock:
            kept = self._kept.get(stored.id)
        if kept is None or kept[1].seq > stored.sequence:
            return read_spec(stored.spec, f"the rollout {stored.id}"), State()
        return kept


def live_rollouts(connection: Connection, settings: DatabaseSettings) -> list[StoredRollout]:
    """All rollouts in which something may be to be done, the oldest first."""
    return [*rollouts.every(connection, settings, states=LIVE, page_rows=settings.page_limit_rows)]


def fact_of(stored: StoredFact) -> Fact:
    """As `fleet.rollouts` reads it. Raises ConfigurationError for one that no version of this program wrote."""
    return Fact(stored.sequence, stored.at, read_event(stored.document, f"fact {stored.sequence}"))


def new_fact(at: datetime, event: Event) -> NewFact:
    """As the database keeps it."""
    subject = event.decision if isinstance(event, Decided) else event
    return NewFact(at, kind_of(event), getattr(subject, "device", ""), event_document(event))


def facts_after(state: State, events: Iterable[Event], now: datetime) -> Iterable[Fact]:
    """Events as the facts that they become."""
    return (Fact(seq, now, event) for seq, event in enumerate(events, state.seq + 1))


def add(
    connection: Connection,
    known: Known,
    events: Sequence[Event],
    now: datetime,
    settings: DatabaseSettings,
    *,
    settled: bool = False,
) -> Known:
    """Record events as the next facts of a rollout that this transaction has locked; where they leave it. `settled`:
    all that follows from them is done in this transaction. Raises ConflictError where others came since it was read."""
    state = fold(known.spec, facts_after(known.state, events, now), known.state)
    stored, sequence = _stored_as(known.stored, state, events, settled=settled), known.state.seq
    for page in [*chunks(events, settings.facts_limit_rows)] or [[]]:
        facts = [new_fact(now, event) for event in page]
        sequence = rollouts.record(connection, known.stored.id, facts, settings, state=stored, expected=sequence)
    return Known(replace(known.stored, state=stored, sequence=sequence), known.spec, state)


def _stored_as(known: StoredRollout, state: State, events: Iterable[Event], *, settled: bool) -> str:
    """As lists show it. What ends is `RETURNING` until the scheduler has told all devices."""
    if state.status is not Status.ABORTED or settled:
        return state.status.value
    ended = any(isinstance(event, (Aborted, RollbackRequested, Decided)) for event in events)
    return RETURNING if ended else known.state


def shown(stored_state: str) -> str:
    """Return the state as the API names it."""
    return Status.ABORTED.value if stored_state == RETURNING else stored_state
