"""Time of the newest record: a clock that is far beyond it may be wrong."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy import Connection

from fleet.controller.database.tables import audit, events


def latest(connection: Connection) -> datetime | None:
    """Return the time of the last audit entry or the last received event, whichever is later, or None.

    It is the last ones that count, not the latest: records written by a wrong clock are followed by later ones.
    """
    found = (
        connection.execute(sa.select(audit.c.at).order_by(audit.c.sequence.desc()).limit(1)).scalar(),
        connection.execute(sa.select(events.c.received).order_by(events.c.id.desc()).limit(1)).scalar(),
    )
    return max((at for at in found if at is not None), default=None)
