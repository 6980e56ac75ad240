"""When something was recorded last: a clock that is far beyond that may be wrong."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy import Connection

from fleet.database.tables import audit, events


def latest(connection: Connection) -> datetime | None:
    """The last entry of the audit log, or the last event that was received, whichever is later; None: there is none.

    The last ones, not the latest: what was written while a clock was wrong is followed by what was written since.
    """
    found = (
        connection.execute(sa.select(audit.c.at).order_by(audit.c.sequence.desc()).limit(1)).scalar(),
        connection.execute(sa.select(events.c.received).order_by(events.c.id.desc()).limit(1)).scalar(),
    )
    return max((at for at in found if at is not None), default=None)
