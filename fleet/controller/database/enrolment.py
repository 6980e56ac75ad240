"""Enrolment tokens: each enrols one device, once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Row

from fleet.controller.database import numbers
from fleet.controller.database.columns import document_text
from fleet.controller.database.credentials import Credential, read_credential
from fleet.controller.database.devices import TAGS_LIMIT
from fleet.controller.database.engine import alone
from fleet.controller.database.errors import AbsentError, RefusedError
from fleet.controller.database.rows import bounded, chunks, page_limit
from fleet.controller.database.settings import DatabaseSettings
from fleet.controller.database.tables import TAGS_BYTES
from fleet.controller.database.tables import enrolment_tokens as tokens
from gateway.common.domain.errors import Fault


@dataclass(frozen=True, slots=True)
class EnrolmentToken:
    """Enrolment token. `device` "": for any id. `tags` and `site` are given to the device."""

    id: int
    prefix: str
    device: str
    tags: frozenset[str]
    site: str
    created: datetime
    created_by: str
    expires: datetime
    used: datetime | None
    used_by: str


class TokenRefusedError(RefusedError):
    """Token that is unknown, used, expired, or for another device; the caller is not told which."""

    def __init__(self) -> None:
        super().__init__("this enrolment token is not valid for this device; ask the operator for a new one")
        self.fault = Fault.UNAUTHENTICATED


def hold(connection: Connection) -> None:
    """Lock enrolment until the transaction ends: no token is made, redeemed or voided, and no device is enrolled.

    Call it first in a transaction that depends on the tags of a device, or changes them: tags decide who may make a
    token for the device. Call it also to readmit a device, so that an enrolment in progress respects why it was
    revoked.
    """
    alone(connection, "enrolment")


def create(
    connection: Connection,
    credential: Credential,
    settings: DatabaseSettings,
    *,
    expires: datetime,
    now: datetime,
    by: str,
    device: str = "",
    tags: Iterable[str] = (),
    site: str = "",
) -> int:
    """Store a new token's digest. Return its id. Raise RefusedError if too many tokens are unused."""
    wanted = sorted(set(bounded(tags, TAGS_LIMIT, "tags")))
    hold(connection)
    waiting = sa.select(sa.func.count()).where(tokens.c.used.is_(None), tokens.c.expires > now)
    if connection.execute(waiting).scalar_one() >= settings.enrolments_limit:
        raise RefusedError(f"{settings.enrolments_limit} enrolment tokens wait to be used; revoke some")
    given = {"device": device, "tags": wanted, "site": site}
    made = {"created": now, "created_by": by, "expires": expires, "used_by": ""}
    kept = {"digest": credential.digest, "prefix": credential.prefix}
    (row,) = numbers.identified(connection, tokens, [{**kept, **given, **made}])
    return int(connection.execute(sa.insert(tokens).values(row).returning(tokens.c.id)).scalar_one())


def find(connection: Connection, text: str) -> EnrolmentToken | None:
    """Return the token that a caller presents, even if used or expired."""
    row = connection.execute(sa.select(tokens).where(tokens.c.digest == read_credential(text).digest)).one_or_none()
    return _token(row) if row else None


def redeem(connection: Connection, text: str, device: str, now: datetime) -> EnrolmentToken:
    """Use the token up for this device. Of concurrent attempts one succeeds. Raise TokenRefusedError."""
    fits = sa.or_(tokens.c.device == "", tokens.c.device == device)
    mine = tokens.c.digest == read_credential(text).digest
    change = sa.update(tokens).where(mine, tokens.c.used.is_(None), tokens.c.expires > now, fits)
    found = connection.execute(change.values(used=now, used_by=device).returning(*tokens.c)).one_or_none()
    if found is None:
        raise TokenRefusedError
    return _token(found)


def revoke(connection: Connection, token: int) -> None:
    """Delete an unused token. Raise AbsentError if there is none with this id, or it was used."""
    unused = sa.delete(tokens).where(tokens.c.id == token, tokens.c.used.is_(None))
    if connection.execute(unused).rowcount == 0:
        raise AbsentError(f"no unused enrolment token has the id {token}")


def void(connection: Connection, device: str) -> int:
    """Delete unused tokens made for this device alone. Return how many."""
    return void_all(connection, [device])


def void_all(connection: Connection, devices: Iterable[str]) -> int:
    """Delete unused tokens made for one of these devices alone. Return how many."""
    hold(connection)
    count = 0
    for names in chunks(device for device in devices if device):
        unused = sa.delete(tokens).where(tokens.c.device.in_(names), tokens.c.used.is_(None))
        count += connection.execute(unused).rowcount
    return count


def page(
    connection: Connection,
    settings: DatabaseSettings,
    *,
    scope: frozenset[str] = frozenset(),
    after: int = 0,
    limit_rows: int = 100,
) -> tuple[EnrolmentToken, ...]:
    """Return tokens in the order of their creation, from the one that follows `after`.

    `scope`: only tokens that give one of these tags; empty: all.
    """
    limit = page_limit(limit_rows, settings.page_limit_rows)
    wanted = [tokens.c.id > after, *([_gives(scope)] if scope else [])]
    statement = sa.select(tokens).where(*wanted).order_by(tokens.c.id).limit(limit)
    return tuple(_token(row) for row in connection.execute(statement))


def _gives(scope: frozenset[str]) -> sa.ColumnElement[bool]:
    """Return whether a token's list of tags, stored as JSON text, contains one of these.

    Within a JSON string a quotation mark has a backslash before it, so one after a bracket or a comma begins a tag.
    (`replace` is the one function by which both SQLite and PostgreSQL search a text and respect case.)
    """
    kept = sa.type_coerce(tokens.c.tags, sa.Text)
    begun = [f"{before}{document_text(tag, TAGS_BYTES)}" for tag in sorted(scope) for before in "[,"]
    return sa.or_(*(sa.func.replace(kept, tag, "") != kept for tag in begun))


def forget(connection: Connection, before: datetime) -> int:
    """Delete tokens that expired before `before`, used or not. Return how many. The audit log still names them."""
    return connection.execute(sa.delete(tokens).where(tokens.c.expires < before)).rowcount


def _token(row: Row[Any]) -> EnrolmentToken:
    fields = {name: getattr(row, name) for name in EnrolmentToken.__slots__}
    return EnrolmentToken(**fields | {"tags": frozenset(row.tags)})
