"""Record of the fleet's device CA: a replica would refuse the devices of a replica with another CA."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy import Connection

from fleet.controller.database.engine import adding, alone
from fleet.controller.database.tables import authority

_NAME = "device CA"


@dataclass(frozen=True, slots=True)
class KnownAuthority:
    """Record of the CA. `certificate`: of the CA that signs (PEM). `by`: machine that wrote it, `since` when."""

    certificate: str
    since: datetime
    by: str


def known(connection: Connection) -> KnownAuthority | None:
    """Return the record, or None if there is none yet. Call it within a `write`.

    No other replica reads it before that transaction ends.
    """
    alone(connection, _NAME)
    columns = [authority.c[name] for name in KnownAuthority.__slots__]
    row = connection.execute(sa.select(*columns).where(authority.c.name == _NAME)).one_or_none()
    return KnownAuthority(*row) if row else None


def put(connection: Connection, now_known: KnownAuthority) -> None:
    """Replace the record."""
    values = {name: getattr(now_known, name) for name in KnownAuthority.__slots__}
    add = adding(connection, authority).values(name=_NAME, **values)
    connection.execute(add.on_conflict_do_update(index_elements=[authority.c.name], set_=values))
