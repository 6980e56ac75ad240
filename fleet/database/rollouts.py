"""Rollouts and what happened in them. Facts are only ever added; their documents belong to `fleet.rollouts`.

Lock order, where one transaction needs several: leadership, rollout, device's desired state, assignment, audit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy import Connection

from fleet.database import changes
from fleet.database.changes import Kind, NewChange
from fleet.database.errors import AbsentError, ConflictError
from fleet.database.rows import Json, bounded, chunks, page_limit
from fleet.database.settings import DatabaseSettings
from fleet.database.tables import facts, rollouts

DRAFT = "draft"


@dataclass(frozen=True, slots=True)
class StoredRollout:
    """`state` is what its facts say, kept for lists; `sequence`: of the last fact; `spec` is fixed once approved;
    `revised_by`: whose it is ("": the creator's); `archived`: since when lists leave it out."""

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
    """Something that happened, not yet in the record. `device` "": to the rollout as a whole."""

    at: datetime
    kind: str
    device: str = ""
    document: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredFact:
    """In the record of its rollout as number `sequence`, from 1 without gaps."""

    sequence: int
    at: datetime
    kind: str
    device: str
    document: Json


def create(connection: Connection, rollout: StoredRollout) -> None:
    """Raises ConflictError where the id is taken."""
    values = {name: getattr(rollout, name) for name in StoredRollout.__slots__} | {"sequence": 0}
    connection.execute(sa.insert(rollouts).values(**values))


def revise(connection: Connection, rollout: str, *, name: str, slot: str, target: str, spec: Json, by: str) -> None:
    """Another spec for a draft. Raises ConflictError once it is more than a draft, AbsentError."""
    change = sa.update(rollouts).where(rollouts.c.id == rollout, rollouts.c.state == DRAFT)
    changed = change.values(name=name, slot=slot, target=target, spec=spec, revised_by=by)
    if connection.execute(changed).rowcount == 0:
        found = get(connection, rollout)
        raise ConflictError(f"the rollout {rollout!r:.80} is {found.state}; its spec is fixed: make a new one")


def get(connection: Connection, rollout: str, *, lock: bool = False) -> StoredRollout:
    """Raises AbsentError. `lock`: nobody adds a fact before this transaction ends, so that what is decided on these
    facts is recorded behind them."""
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
    """Add facts in this order, all or none; the last one's number. `state`: what the rollout is in after them.

    `expected`: the last number the caller knows. Raises ConflictError where others came since, AbsentError.
    """
    new = bounded(happened, settings.facts_limit_rows, "facts")
    known = get(connection, rollout, lock=True)
    if expected not in {None, known.sequence}:
        raise ConflictError(f"the rollout {rollout!r:.80} has {known.sequence} facts, not {expected}; read them first")
    last = known.sequence + len(new)
    change = sa.update(rollouts).where(rollouts.c.id == rollout)
    connection.execute(change.values(sequence=last, state=state or known.state))
    if new:
        connection.execute(sa.insert(facts), [_row(rollout, number, fact) for number, fact in _numbered(known, new)])
        changes.add(connection, [NewChange(new[-1].at, Kind.ROLLOUT_FACT, rollout, known.sequence + 1, last)])
    return last


def facts_of(
    connection: Connection, rollout: str, settings: DatabaseSettings, *, after: int = 0, device: str = ""
) -> tuple[StoredFact, ...]:
    """A page in their order, from the one that follows number `after`; at most `facts_limit_rows`."""
    wanted = [facts.c.rollout == rollout, facts.c.sequence > after, *([facts.c.device == device] if device else [])]
    columns = [facts.c.sequence, facts.c.at, facts.c.kind, facts.c.device, facts.c.document]
    statement = sa.select(*columns).where(*wanted).order_by(facts.c.sequence).limit(settings.facts_limit_rows)
    return tuple(StoredFact(*row) for row in connection.execute(statement))


def facts_between(connection: Connection, rollout: str, first: int, last: int) -> tuple[StoredFact, ...]:
    """Return facts `first` to `last` of a rollout."""
    columns = [facts.c.sequence, facts.c.at, facts.c.kind, facts.c.device, facts.c.document]
    wanted = (facts.c.rollout == rollout, facts.c.sequence >= first, facts.c.sequence <= last)
    found = connection.execute(sa.select(*columns).where(*wanted).order_by(facts.c.sequence))
    return tuple(StoredFact(*row) for row in found)


def of_device(
    connection: Connection, device: str, slots: Iterable[str], states: Iterable[str]
) -> tuple[StoredRollout, ...]:
    """Rollouts of these slots, in these states, that know something of the device."""
    named = sa.select(facts.c.rollout).where(facts.c.device == device).distinct()
    wanted = (rollouts.c.id.in_(named), rollouts.c.slot.in_(list(slots)), rollouts.c.state.in_(list(states)))
    return tuple(
        StoredRollout(*row) for row in connection.execute(sa.select(rollouts).where(*wanted).order_by(rollouts.c.id))
    )


def of_devices(
    connection: Connection, devices: Iterable[str], kind: str, *, slot: str, target: str, but: str
) -> Iterator[tuple[str, Json]]:
    """Device and document of each fact of a kind, in whatever order, that rollouts of this target in this slot, all but
    one, know of these devices."""
    same = sa.select(rollouts.c.id).where(rollouts.c.slot == slot, rollouts.c.target == target, rollouts.c.id != but)
    if connection.execute(same.limit(1)).first() is None:
        return  # as it mostly is
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
    """In the order of their ids, from the one that follows `after`; `states` empty: all. `archived`: those, too."""
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
    """All of them as `page` has them, `page_rows` in a statement."""
    chosen = list(states)
    while found := page(connection, settings, states=chosen, archived=archived, after=after, limit_rows=page_rows):
        yield from found
        after = found[-1].id


def _numbered(known: StoredRollout, new: list[NewFact]) -> Iterable[tuple[int, NewFact]]:
    return enumerate(new, known.sequence + 1)


def _row(rollout: str, number: int, fact: NewFact) -> dict[str, object]:
    return {"rollout": rollout, "sequence": number, **{name: getattr(fact, name) for name in NewFact.__slots__}}
