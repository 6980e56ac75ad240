"""Archive of rollouts that are over: lists leave them out, and their facts stay as they are."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy import Connection

from fleet.controller.database.errors import ConflictError
from fleet.controller.database.rollouts import StoredRollout, get
from fleet.controller.database.rows import bounded
from fleet.controller.database.tables import facts, rollouts

OVER = ("finished", "aborted")
"""Stored states in which nothing is left to do."""
ARCHIVE_LIMIT = 1_000
"""Rollouts archived in one transaction."""


def archive(connection: Connection, rollout: str, now: datetime) -> bool:
    """Archive a rollout. Return False if it was archived. Raise ConflictError unless it is over, AbsentError."""
    found = get(connection, rollout, lock=True)
    if found.state not in OVER:
        problem = f"the rollout {rollout!r:.80} is {found.state}; only a finished or aborted one can be archived"
        raise ConflictError(problem)
    if found.archived is None:
        _set(connection, [rollout], now)
    return found.archived is None


def restore(connection: Connection, rollout: str) -> bool:
    """Show an archived rollout in lists again. Return False if it was not archived. Raise AbsentError."""
    found = get(connection, rollout, lock=True)
    if found.archived is not None:
        _set(connection, [rollout], None)
    return found.archived is not None


def archive_all(connection: Connection, names: Iterable[str], now: datetime) -> None:
    """Archive rollouts that `over_before` found. Raise RefusedError for more than `ARCHIVE_LIMIT`."""
    _set(connection, bounded(names, ARCHIVE_LIMIT, "rollouts"), now)


def over_before(connection: Connection, before: datetime, *, after: str = "") -> tuple[StoredRollout, ...]:
    """Return at most `ARCHIVE_LIMIT` rollouts that are over, not archived, and ended before `before`.

    They come by id, from the one that follows `after`, and are locked until the transaction ends.
    """
    last = (facts.c.rollout == rollouts.c.id, facts.c.sequence == rollouts.c.sequence, facts.c.at < before)
    wanted = (rollouts.c.state.in_(OVER), rollouts.c.archived.is_(None), rollouts.c.id > after)
    found = sa.select(rollouts).where(*wanted, sa.select(facts.c.rollout).where(*last).exists())
    page = found.order_by(rollouts.c.id).limit(ARCHIVE_LIMIT).with_for_update(of=rollouts)
    return tuple(StoredRollout(*row) for row in connection.execute(page))


def _set(connection: Connection, names: list[str], at: datetime | None) -> None:
    mine = sa.update(rollouts).where(rollouts.c.id.in_(names), rollouts.c.state.in_(OVER))
    connection.execute(mine.values(archived=at))
