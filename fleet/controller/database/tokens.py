"""API tokens of operators and programs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Row

from fleet.controller.access import Role, TokenCaller
from fleet.controller.database import numbers
from fleet.controller.database.credentials import Credential, read_credential
from fleet.controller.database.devices import TAGS_LIMIT
from fleet.controller.database.engine import alone
from fleet.controller.database.errors import AbsentError, RefusedError
from fleet.controller.database.rows import bounded, chunks, page_limit
from fleet.controller.database.settings import DatabaseSettings
from fleet.controller.database.tables import api_tokens as tokens


@dataclass(frozen=True, slots=True)
class ApiToken:
    """API token. `prefix`: first characters of its secret. `tags`: of the devices it is for; empty: all."""

    id: int
    prefix: str
    name: str
    role: Role
    tags: frozenset[str]
    created: datetime
    created_by: str
    expires: datetime
    revoked: datetime | None

    @property
    def caller(self) -> TokenCaller:
        """Return the caller as `fleet.controller.access` knows it."""
        return TokenCaller(self.name, self.role, self.tags)


def create(
    connection: Connection,
    credential: Credential,
    settings: DatabaseSettings,
    *,
    name: str,
    role: Role,
    expires: datetime,
    now: datetime,
    by: str,
    tags: Iterable[str] = (),
) -> int:
    """Store a new token's digest. Return its id. Raise RefusedError if too many tokens are valid."""
    wanted = sorted(set(bounded(tags, TAGS_LIMIT, "tags")))
    alone(connection, "tokens are counted")
    held = sa.select(sa.func.count()).where(tokens.c.revoked.is_(None), tokens.c.expires > now)
    if connection.execute(held).scalar_one() >= settings.tokens_limit:
        raise RefusedError(f"{settings.tokens_limit} tokens are valid already; revoke some")
    given = {"name": name, "role": role, "tags": wanted, "expires": expires}
    kept = {"digest": credential.digest, "prefix": credential.prefix, "created": now, "created_by": by}
    (row,) = numbers.identified(connection, tokens, [{**kept, **given}])
    return int(connection.execute(sa.insert(tokens).values(row).returning(tokens.c.id)).scalar_one())


def identify(connection: Connection, text: str, now: datetime) -> ApiToken | None:
    """Return the token, or None if it is unknown, revoked or expired. Its digest is looked up, so timing is no leak."""
    held = (tokens.c.revoked.is_(None), tokens.c.expires > now)
    mine = sa.select(tokens).where(tokens.c.digest == read_credential(text).digest, *held)
    row = connection.execute(mine).one_or_none()
    return _token(row) if row else None


def names(connection: Connection, now: datetime) -> dict[str, str]:
    """Return the names of all valid tokens by digest; `tokens_limit` bounds them."""
    held = (tokens.c.revoked.is_(None), tokens.c.expires > now)
    return {row.digest: row.name for row in connection.execute(sa.select(tokens.c.digest, tokens.c.name).where(*held))}


def valid(connection: Connection, ids: Iterable[int], now: datetime) -> frozenset[int]:
    """Return those of these tokens that are neither revoked nor expired."""
    held = sa.select(tokens.c.id).where(tokens.c.revoked.is_(None), tokens.c.expires > now)
    found = (held.where(tokens.c.id.in_(some)) for some in chunks(ids))
    return frozenset(number for statement in found for number in connection.execute(statement).scalars())


def revoke(connection: Connection, token: int, now: datetime) -> None:
    """Revoke a token. Raise AbsentError. A second call changes nothing."""
    mine = sa.update(tokens).where(tokens.c.id == token)
    first = sa.func.coalesce(tokens.c.revoked, sa.bindparam("at", now, type_=tokens.c.revoked.type))
    if connection.execute(mine.values(revoked=first)).rowcount == 0:
        raise AbsentError(f"no token has the id {token}")


def page(
    connection: Connection, settings: DatabaseSettings, *, after: int = 0, limit_rows: int = 100
) -> tuple[ApiToken, ...]:
    """Return tokens in the order of their creation, from the one that follows `after`."""
    limit = page_limit(limit_rows, settings.page_limit_rows)
    statement = sa.select(tokens).where(tokens.c.id > after).order_by(tokens.c.id).limit(limit)
    return tuple(_token(row) for row in connection.execute(statement))


def forget(connection: Connection, before: datetime) -> int:
    """Delete tokens that expired before `before`. Return how many. The audit log still names them."""
    return connection.execute(sa.delete(tokens).where(tokens.c.expires < before)).rowcount


def _token(row: Row[Any]) -> ApiToken:
    fields = {name: getattr(row, name) for name in ApiToken.__slots__}
    return ApiToken(**fields | {"role": Role(row.role), "tags": frozenset(row.tags)})
