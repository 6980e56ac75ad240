"""Enrolment tokens: each lets one device in, once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Row

from fleet.database.columns import document_text
from fleet.database.credentials import Credential, read_credential
from fleet.database.devices import TAGS_LIMIT
from fleet.database.engine import alone
from fleet.database.errors import AbsentError, RefusedError
from fleet.database.rows import bounded, chunks, page_limit
from fleet.database.settings import DatabaseSettings
from fleet.database.tables import TAGS_BYTES
from fleet.database.tables import enrolment_tokens as tokens
from gateway.domain.errors import Fault


@dataclass(frozen=True, slots=True)
class EnrolmentToken:
    """`device` "": any id may be taken with it. `tags` and `site` are given to the device."""

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
    """Unknown, used, expired, or made for another device: whoever presents it is not told which."""

    def __init__(self) -> None:
        super().__init__("this enrolment token does not let this device in; ask the operator for a new one")
        self.fault = Fault.UNAUTHENTICATED


def hold(connection: Connection) -> None:
    """Until the transaction ends nobody else makes, uses up or voids tokens, nor enrols. Whoever goes by the tags of a
    device, or changes them, calls it first: who may make a token for it is said by its tags. Whoever readmits one, too:
    what it was revoked for must not be overlooked by an enrolment under way."""
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
    """Keep a new token's digest; its id. Raises RefusedError where too many wait to be used."""
    wanted = sorted(set(bounded(tags, TAGS_LIMIT, "tags")))
    hold(connection)
    waiting = sa.select(sa.func.count()).where(tokens.c.used.is_(None), tokens.c.expires > now)
    if connection.execute(waiting).scalar_one() >= settings.enrolments_limit:
        raise RefusedError(f"{settings.enrolments_limit} enrolment tokens wait to be used; revoke some")
    given = {"device": device, "tags": wanted, "site": site}
    made = {"created": now, "created_by": by, "expires": expires, "used_by": ""}
    add = sa.insert(tokens).values(digest=credential.digest, prefix=credential.prefix, **given, **made)
    return int(connection.execute(add.returning(tokens.c.id)).scalar_one())


def find(connection: Connection, text: str) -> EnrolmentToken | None:
    """The token that somebody presents, used, expired or not."""
    row = connection.execute(sa.select(tokens).where(tokens.c.digest == read_credential(text).digest)).one_or_none()
    return _token(row) if row else None


def redeem(connection: Connection, text: str, device: str, now: datetime) -> EnrolmentToken:
    """Use it up for this device: of all who try at the same time, one succeeds. Raises TokenRefusedError."""
    fits = sa.or_(tokens.c.device == "", tokens.c.device == device)
    mine = tokens.c.digest == read_credential(text).digest
    change = sa.update(tokens).where(mine, tokens.c.used.is_(None), tokens.c.expires > now, fits)
    found = connection.execute(change.values(used=now, used_by=device).returning(*tokens.c)).one_or_none()
    if found is None:
        raise TokenRefusedError
    return _token(found)


def revoke(connection: Connection, token: int) -> None:
    """An unused token lets nobody in any more. Raises AbsentError for one that is not there, or was used."""
    unused = sa.delete(tokens).where(tokens.c.id == token, tokens.c.used.is_(None))
    if connection.execute(unused).rowcount == 0:
        raise AbsentError(f"no unused enrolment token has the id {token}")


def void(connection: Connection, device: str) -> int:
    """Unused tokens made for this device alone let nobody in any more; how many. Those for anybody stay."""
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
    """In the order in which they were made, from the one that follows `after`. `scope`: that give one of these tags;
    empty: all."""
    limit = page_limit(limit_rows, settings.page_limit_rows)
    wanted = [tokens.c.id > after, *([_gives(scope)] if scope else [])]
    statement = sa.select(tokens).where(*wanted).order_by(tokens.c.id).limit(limit)
    return tuple(_token(row) for row in connection.execute(statement))


def _gives(scope: frozenset[str]) -> sa.ColumnElement[bool]:
    """Whether the list of tags, which is kept as text, holds one of these: within a JSON string a quotation mark has a
    backslash before it, so one after a bracket or a comma begins a tag. (`replace` is the one function by which SQLite
    and PostgreSQL alike look for a text and mind its case.)"""
    kept = sa.type_coerce(tokens.c.tags, sa.Text)
    begun = [f"{before}{document_text(tag, TAGS_BYTES)}" for tag in sorted(scope) for before in "[,"]
    return sa.or_(*(sa.func.replace(kept, tag, "") != kept for tag in begun))


def forget(connection: Connection, before: datetime) -> int:
    """Remove those that expired before that time, used or not; how many (the audit log remembers them)."""
    return connection.execute(sa.delete(tokens).where(tokens.c.expires < before)).rowcount


def _token(row: Row[Any]) -> EnrolmentToken:
    fields = {name: getattr(row, name) for name in EnrolmentToken.__slots__}
    return EnrolmentToken(**fields | {"tags": frozenset(row.tags)})
