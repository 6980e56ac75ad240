"""The audit log, chained as in `fleet.controller.audit`.

An entry is written in the transaction of its action, as the last statement: writers of entries wait for each other
until their transactions end.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Row

from fleet.controller.audit import Break, Deed, Head, LogEntry, chained, follow, head_of
from fleet.controller.database.columns import document_text
from fleet.controller.database.engine import alone
from fleet.controller.database.rows import page_limit
from fleet.controller.database.settings import DatabaseSettings
from fleet.controller.database.tables import FACT_BYTES, audit, events


def append(connection: Connection, deed: Deed, now: datetime) -> LogEntry:
    """Append an entry. Raise RefusedError if its details are too long or not JSON."""
    alone(connection, "audit")
    plain = replace(deed, details=json.loads(document_text(deed.details, FACT_BYTES)))  # as it will be read again
    entry = chained(head(connection), plain, now)
    fields = {"actor": plain.actor, "action": plain.action, "subject": plain.subject, "details": plain.details}
    chain = {"sequence": entry.sequence, "at": entry.at, "previous": entry.previous, "digest": entry.digest}
    connection.execute(sa.insert(audit).values(**chain, **fields))
    return entry


def head(connection: Connection) -> Head:
    """Return the end of the log."""
    row = connection.execute(sa.select(audit).order_by(audit.c.sequence.desc()).limit(1)).one_or_none()
    return head_of(_entry(row)) if row else Head()


def page(
    connection: Connection,
    settings: DatabaseSettings,
    *,
    actor: str = "",
    action: str = "",
    subject: str = "",
    before: int | None = None,
    limit_rows: int = 100,
) -> tuple[LogEntry, ...]:
    """Return entries, newest first, from the one before number `before`; "" matches all."""
    exact = {"actor": actor, "action": action, "subject": subject}
    wanted = [audit.c[name] == value for name, value in exact.items() if value]
    wanted += [audit.c.sequence < before] if before is not None else []
    limit = page_limit(limit_rows, settings.page_limit_rows)
    statement = sa.select(audit).where(*wanted).order_by(audit.c.sequence.desc()).limit(limit)
    return tuple(_entry(row) for row in connection.execute(statement))


def verify(connection: Connection, settings: DatabaseSettings) -> Head | Break:
    """Check the whole log against its digests, page by page.

    Return its end, or the first entry that is not as it was written. Entries cut off at the end are detected only
    against a head that was noted elsewhere.
    """
    found: Head | Break = Head()
    while isinstance(found, Head):
        following = sa.select(audit).where(audit.c.sequence > found.sequence).order_by(audit.c.sequence)
        rows = connection.execute(following.limit(settings.page_limit_rows)).all()
        if not rows:
            break
        found = follow(found, (_entry(row) for row in rows))
    return found


def _entry(row: Row[Any]) -> LogEntry:
    deed = Deed(row.actor, row.action, row.subject, row.details)
    return LogEntry(row.sequence, row.at, deed, row.previous, row.digest)


def latest(connection: Connection) -> datetime | None:
    """Return the time of the last audit entry or the last received event, whichever is later, or None.

    A clock that is far beyond it may be wrong. The last ones count, not the latest: records written by a wrong clock
    are followed by later ones.
    """
    found = (
        connection.execute(sa.select(audit.c.at).order_by(audit.c.sequence.desc()).limit(1)).scalar(),
        connection.execute(sa.select(events.c.received).order_by(events.c.id.desc()).limit(1)).scalar(),
    )
    return max((at for at in found if at is not None), default=None)
