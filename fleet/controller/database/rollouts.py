"""Rollouts and their facts. Facts are only ever added; their documents belong to `fleet.controller.rollouts`.

Lock order within one transaction: leadership, rollout, device's desired state, assignment, audit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy import Connection

from fleet.controller.database import changes
from fleet.controller.database.changes import ChangeKind, NewChange
from fleet.controller.database.errors import AbsentError, ConflictError
from fleet.controller.database.rows import Json, bounded, chunks, page_limit
from fleet.controller.database.settings import DatabaseSettings
from fleet.controller.database.tables import facts, rollouts

DRAFT = "draft"
OVER = ("finished", "aborted")
"""Stored states in which nothing is left to do."""
ARCHIVE_LIMIT = 1_000
"""Rollouts archived in one transaction."""


@dataclass(frozen=True, slots=True)
class StoredRollout:
    """A rollout.

    `state`: as its facts say, stored for lists. `sequence`: of the last fact. `spec` is fixed once approved.
    `revised_by`: who revised the draft last ("": not revised since it was created). `archived`: since when lists leave
    it out.
    """

    id: str
    name: str
    slot: str
    target: str
    state: str
    spec: Json
    created: datetime
    created_by: str
    sequence: int = 0
    revised_by: str = ""
    archived: datetime | None = None


@dataclass(frozen=True, slots=True)
class NewFact:
    """Fact that is not recorded yet. `device` "": it concerns the rollout as a whole."""

    at: datetime
    kind: str
    device: str = ""
    document: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredFact:
    """Recorded fact, number `sequence` of its rollout, from 1 without gaps."""

    sequence: int
    at: datetime
    kind: str
    device: str
    document: Json


_FACTS = sa.select(*(facts.c[name] for name in StoredFact.__slots__))


def create(connection: Connection, rollout: StoredRollout) -> None:
    """Store a new rollout. Raise ConflictError if the id is taken."""
    values = {name: getattr(rollout, name) for name in StoredRollout.__slots__} | {"sequence": 0}
    connection.execute(sa.insert(rollouts).values(**values))


def revise(connection: Connection, rollout: str, *, name: str, slot: str, target: str, spec: Json, by: str) -> None:
    """Replace the specification of a draft. Raise ConflictError if it is no longer a draft, AbsentError."""
    change = sa.update(rollouts).where(rollouts.c.id == rollout, rollouts.c.state == DRAFT)
    changed = change.values(name=name, slot=slot, target=target, spec=spec, revised_by=by)
    if connection.execute(changed).rowcount == 0:
        found = get(connection, rollout)
        raise ConflictError(f"the rollout {rollout!r:.80} is {found.state}; its spec is fixed: make a new one")


def get(connection: Connection, rollout: str, *, lock: bool = False) -> StoredRollout:
    """Return a rollout. Raise AbsentError.

    `lock`: no other transaction adds a fact before this one ends, so that decisions on these facts are recorded
    directly after them.
    """
    statement = sa.select(rollouts).where(rollouts.c.id == rollout)
    row = connection.execute(statement.with_for_update() if lock else statement).one_or_none()
    if row is None:
        raise AbsentError(f"no rollout {rollout!r:.140} is known")
    return StoredRollout(*row)


def record(
    connection: Connection,
    rollout: str,
    happened: Iterable[NewFact],
    settings: DatabaseSettings,
    *,
    state: str = "",
    expected: int | None = None,
) -> int:
    """Add facts in this order, all or none. Return the number of the last one.

    `state`: of the rollout after them. `expected`: the last number that the caller knows. Raise ConflictError if other
    facts were added since, AbsentError.
    """
    new = bounded(happened, settings.facts_limit_rows, "facts")
    known = get(connection, rollout, lock=True)
    if expected not in {None, known.sequence}:
        raise ConflictError(f"the rollout {rollout!r:.80} has {known.sequence} facts, not {expected}; read them first")
    last = known.sequence + len(new)
    change = sa.update(rollouts).where(rollouts.c.id == rollout)
    connection.execute(change.values(sequence=last, state=state or known.state))
    if new:
        rows = (
            {"rollout": rollout, "sequence": number, **{name: getattr(fact, name) for name in NewFact.__slots__}}
            for number, fact in enumerate(new, known.sequence + 1)
        )
        connection.execute(sa.insert(facts), [*rows])
        changes.add(connection, [NewChange(new[-1].at, ChangeKind.ROLLOUT_FACT, rollout, known.sequence + 1, last)])
    return last


def facts_of(
    connection: Connection, rollout: str, limit: int, *, after: int = 0, device: str = ""
) -> tuple[StoredFact, ...]:
    """Return a page of facts in order, from the one that follows number `after`; at most `limit`."""
    wanted = [facts.c.rollout == rollout, facts.c.sequence > after, *([facts.c.device == device] if device else [])]
    statement = _FACTS.where(*wanted).order_by(facts.c.sequence).limit(limit)
    return tuple(StoredFact(*row) for row in connection.execute(statement))


def facts_between(connection: Connection, rollout: str, first: int, last: int) -> tuple[StoredFact, ...]:
    """Return facts `first` to `last` of a rollout."""
    wanted = (facts.c.rollout == rollout, facts.c.sequence >= first, facts.c.sequence <= last)
    return tuple(StoredFact(*row) for row in connection.execute(_FACTS.where(*wanted).order_by(facts.c.sequence)))


def of_device(
    connection: Connection, device: str, slots: Iterable[str], states: Iterable[str]
) -> tuple[StoredRollout, ...]:
    """Return the rollouts of these slots, in these states, that have facts on the device."""
    named = sa.select(facts.c.rollout).where(facts.c.device == device).distinct()
    wanted = (rollouts.c.id.in_(named), rollouts.c.slot.in_(list(slots)), rollouts.c.state.in_(list(states)))
    return tuple(
        StoredRollout(*row) for row in connection.execute(sa.select(rollouts).where(*wanted).order_by(rollouts.c.id))
    )


def younger(connection: Connection, rollout: str, slot: str, states: Iterable[str]) -> dict[str, str]:
    """Return state by id of the rollouts of a slot that were created after this one, those in `states` only."""
    wanted = (rollouts.c.slot == slot, rollouts.c.id > rollout, rollouts.c.state.in_(list(states)))
    rows = connection.execute(sa.select(rollouts.c.id, rollouts.c.state).where(*wanted).order_by(rollouts.c.id))
    return {row.id: row.state for row in rows}


def of_devices(
    connection: Connection, devices: Iterable[str], kind: str, *, slot: str, target: str, but: str
) -> Iterator[tuple[str, Json]]:
    """Yield device and document of each fact of a kind on these devices, in no particular order.

    Facts come from rollouts of this target in this slot, except the rollout `but`.
    """
    same = sa.select(rollouts.c.id).where(rollouts.c.slot == slot, rollouts.c.target == target, rollouts.c.id != but)
    if connection.execute(same.limit(1)).first() is None:
        return  # the usual case
    for ids in chunks(devices):
        wanted = (facts.c.device.in_(ids), facts.c.kind == kind, facts.c.rollout.in_(same))
        found = connection.execute(sa.select(facts.c.device, facts.c.document).where(*wanted))
        yield from ((device, document) for device, document in found)


def page(
    connection: Connection,
    settings: DatabaseSettings,
    *,
    states: Iterable[str] = (),
    archived: bool = True,
    after: str = "",
    limit_rows: int = 100,
) -> tuple[StoredRollout, ...]:
    """Return rollouts in the order of their ids, from the one that follows `after`.

    `states` empty: all. `archived`: include archived ones.
    """
    chosen = list(states)
    wanted = [rollouts.c.id > after, *([rollouts.c.state.in_(chosen)] if chosen else [])]
    wanted += [] if archived else [rollouts.c.archived.is_(None)]
    limit = page_limit(limit_rows, settings.page_limit_rows)
    statement = sa.select(rollouts).where(*wanted).order_by(rollouts.c.id).limit(limit)
    return tuple(StoredRollout(*row) for row in connection.execute(statement))


def every(
    connection: Connection,
    settings: DatabaseSettings,
    *,
    states: Iterable[str] = (),
    archived: bool = True,
    after: str = "",
    page_rows: int,
) -> Iterator[StoredRollout]:
    """Yield all rollouts as `page` selects them, `page_rows` in a statement."""
    chosen = list(states)
    while found := page(connection, settings, states=chosen, archived=archived, after=after, limit_rows=page_rows):
        yield from found
        after = found[-1].id


def archive(connection: Connection, rollout: str, now: datetime) -> bool:
    """Archive a rollout. Return False if it was archived. Raise ConflictError unless it is over, AbsentError."""
    found = get(connection, rollout, lock=True)
    if found.state not in OVER:
        problem = f"the rollout {rollout!r:.80} is {found.state}; only a finished or aborted one can be archived"
        raise ConflictError(problem)
    if found.archived is None:
        _set_archived(connection, [rollout], now)
    return found.archived is None


def restore(connection: Connection, rollout: str) -> bool:
    """Show an archived rollout in lists again. Return False if it was not archived. Raise AbsentError."""
    found = get(connection, rollout, lock=True)
    if found.archived is not None:
        _set_archived(connection, [rollout], None)
    return found.archived is not None


def archive_all(connection: Connection, names: Iterable[str], now: datetime) -> None:
    """Archive rollouts that `over_before` found. Raise RefusedError for more than `ARCHIVE_LIMIT`."""
    _set_archived(connection, bounded(names, ARCHIVE_LIMIT, "rollouts"), now)


def over_before(connection: Connection, before: datetime, *, after: str = "") -> tuple[StoredRollout, ...]:
    """Return at most `ARCHIVE_LIMIT` rollouts that are over, not archived, and ended before `before`.

    They come by id, from the one that follows `after`, and are locked until the transaction ends.
    """
    last = (facts.c.rollout == rollouts.c.id, facts.c.sequence == rollouts.c.sequence, facts.c.at < before)
    wanted = (rollouts.c.state.in_(OVER), rollouts.c.archived.is_(None), rollouts.c.id > after)
    found = sa.select(rollouts).where(*wanted, sa.select(facts.c.rollout).where(*last).exists())
    page = found.order_by(rollouts.c.id).limit(ARCHIVE_LIMIT).with_for_update(of=rollouts)
    return tuple(StoredRollout(*row) for row in connection.execute(page))


def _set_archived(connection: Connection, names: list[str], at: datetime | None) -> None:
    mine = sa.update(rollouts).where(rollouts.c.id.in_(names), rollouts.c.state.in_(OVER))
    connection.execute(mine.values(archived=at))
