"""Which device CA the fleet has: devices that one replica lets in would be strangers to a replica with another."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy import Connection

from fleet.database.engine import adding, alone
from fleet.database.tables import authority

_NAME = "device CA"


@dataclass(frozen=True, slots=True)
class KnownAuthority:
    """`certificate`: of the CA that signs (PEM); `by`: which machine said so, `since` when."""

    certificate: str
    since: datetime
    by: str


def known(connection: Connection) -> KnownAuthority | None:
    """None: nobody said yet. Until the transaction, a `write`, ends, no other replica looks."""
    alone(connection, _NAME)
    columns = [authority.c[name] for name in KnownAuthority.__slots__]
    row = connection.execute(sa.select(*columns).where(authority.c.name == _NAME)).one_or_none()
    return KnownAuthority(*row) if row else None


def put(connection: Connection, now_known: KnownAuthority) -> None:
    """From now on it is this one."""
    values = {name: getattr(now_known, name) for name in KnownAuthority.__slots__}
    add = adding(connection, authority).values(name=_NAME, **values)
    connection.execute(add.on_conflict_do_update(index_elements=[authority.c.name], set_=values))
