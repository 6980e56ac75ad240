"""Facts of rollouts between the database and `fleet.controller.rollouts`, with the folded states kept in memory."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from fleet.controller.database import rollouts
from fleet.controller.database.engine import Connection
from fleet.controller.database.rollouts import NewFact, StoredFact, StoredRollout
from fleet.controller.database.rows import chunks
from fleet.controller.database.settings import DatabaseSettings
from fleet.controller.rollouts.facts import Aborted, Decided, Event, Fact, RollbackRequested
from fleet.controller.rollouts.facts_form import event_document, kind_of, read_event
from fleet.controller.rollouts.fold import fold
from fleet.controller.rollouts.spec import Spec
from fleet.controller.rollouts.spec_form import read_spec
from fleet.controller.rollouts.state import RolloutState, Status

RETURNING = "returning"
"""Stored state of an aborted rollout while devices are still to be rolled back; shown to people as aborted."""
LIVE = (Status.RUNNING.value, Status.PAUSED.value, Status.STANDING.value, RETURNING)
"""Stored states of rollouts in which there may be something to do."""
STATES_LIMIT = 64
"""Rollouts whose state is kept in memory; the least recently used go first."""
MEMBERS_LIMIT = 1_000_000
"""Members of all these rollouts together, unless one alone has more; a member takes some 500 bytes."""


@dataclass(frozen=True, slots=True)
class RecordedRollout:
    """A rollout with the state that its facts fold to."""

    stored: StoredRollout
    spec: Spec
    state: RolloutState


class States:
    """Cache of folded states. Any thread may call it.

    It holds committed facts only, so its states are valid whatever became of the transaction that read them.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[Spec, RolloutState]] = OrderedDict()
        self._lock = threading.Lock()

    def read(
        self, connection: Connection, rollout: str, settings: DatabaseSettings, *, lock: bool = False
    ) -> RecordedRollout:
        """Read a rollout; only the facts that are new are read from the database.

        `lock`: no other transaction adds a fact before this one ends. Raise AbsentError.
        """
        stored = rollouts.get(connection, rollout, lock=lock)
        spec, state = self._at_most(stored)
        while state.seq < stored.sequence:
            page = rollouts.facts_of(connection, rollout, settings.facts_limit_rows, after=state.seq)
            state = fold(spec, map(fact_of, page), state)
        return RecordedRollout(stored, spec, state)

    def keep(self, known: RecordedRollout) -> None:
        """Keep a state for the next reading. Only for states whose facts are committed."""
        if known.state.status is Status.DRAFT:
            return  # its specification may become another
        with self._lock:
            kept = self._kept.pop(known.stored.id, None)
            newer = kept if kept and kept[1].seq > known.state.seq else (known.spec, known.state)
            self._kept[known.stored.id] = newer
            while len(self._kept) > STATES_LIMIT or (
                len(self._kept) > 1 and sum(len(state.members) for _, state in self._kept.values()) > MEMBERS_LIMIT
            ):
                self._kept.popitem(last=False)

    def forget(self) -> None:
        """Forget all states: the database may hold other facts than before."""
        with self._lock:
            self._kept.clear()

    def _at_most(self, stored: StoredRollout) -> tuple[Spec, RolloutState]:
        """Return the cached state, unless the database was restored to an earlier one."""
        with self._lock:
            kept = self._kept.get(stored.id)
        if kept is None or kept[1].seq > stored.sequence:
            return read_spec(stored.spec, f"the rollout {stored.id}"), RolloutState()
        return kept


def live_rollouts(connection: Connection, settings: DatabaseSettings) -> list[StoredRollout]:
    """Return all rollouts in which there may be something to do, the oldest first."""
    return [*rollouts.every(connection, settings, states=LIVE, page_rows=settings.page_limit_rows)]


def fact_of(stored: StoredFact) -> Fact:
    """Return the fact as `fleet.controller.rollouts` reads it.

    Raise ConfigurationError if no version of this program wrote it.
    """
    return Fact(stored.sequence, stored.at, read_event(stored.document, f"fact {stored.sequence}"))


def new_fact(at: datetime, event: Event) -> NewFact:
    """Return the fact as the database stores it."""
    subject = event.decision if isinstance(event, Decided) else event
    return NewFact(at, kind_of(event), getattr(subject, "device", ""), event_document(event))


def facts_after(state: RolloutState, events: Iterable[Event], now: datetime) -> Iterable[Fact]:
    """Return the events as the facts that follow `state`."""
    return (Fact(seq, now, event) for seq, event in enumerate(events, state.seq + 1))


def add(
    connection: Connection,
    known: RecordedRollout,
    events: Sequence[Event],
    now: datetime,
    settings: DatabaseSettings,
    *,
    settled: bool = False,
) -> RecordedRollout:
    """Record events as the next facts of a rollout that this transaction has locked. Return the rollout after them.

    `settled`: all that follows from them is done in this transaction. Raise ConflictError if other facts were added
    since the rollout was read.
    """
    state = fold(known.spec, facts_after(known.state, events, now), known.state)
    stored, sequence = _stored_as(known.stored, state, events, settled=settled), known.state.seq
    for page in [*chunks(events, settings.facts_limit_rows)] or [[]]:
        facts = [new_fact(now, event) for event in page]
        sequence = rollouts.record(connection, known.stored.id, facts, settings, state=stored, expected=sequence)
    return RecordedRollout(replace(known.stored, state=stored, sequence=sequence), known.spec, state)


def _stored_as(known: StoredRollout, state: RolloutState, events: Iterable[Event], *, settled: bool) -> str:
    """Return the state to store for lists. An ended rollout is `RETURNING` until all devices are told."""
    if state.status is not Status.ABORTED or settled:
        return state.status.value
    ended = any(isinstance(event, (Aborted, RollbackRequested, Decided)) for event in events)
    return RETURNING if ended else known.state


def state_name(stored_state: str) -> str:
    """Return the state as the API names it."""
    return Status.ABORTED.value if stored_state == RETURNING else stored_state
