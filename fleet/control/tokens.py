"""API tokens: made and revoked with their line in the audit log, over the API or beside the database."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from fleet.access import Role
from fleet.audit import Deed
from fleet.database import audit, tokens
from fleet.database.credentials import Credential, new_credential
from fleet.database.engine import Connection, Database, alone
from fleet.database.errors import AbsentError, ConflictError, RefusedError
from fleet.database.settings import DatabaseSettings
from fleet.database.tokens import ApiToken
from fleet.times import moment

KIND = "eft_"
NAME_CHARACTERS = 80
NAME_PATTERN = re.compile(rf"[A-Za-z0-9][A-Za-z0-9 ._@+-]{{0,{NAME_CHARACTERS - 1}}}")
"""No colon: the audit log knows devices as "device:NAME"."""
VALIDITY_D = 90.0
"""Of a new token, where nothing else is said."""
VALIDITY_LIMIT_D = 3660.0
ALONE = "tokens are named and revoked"
"""Two admins who revoke each other at the same time do so one after the other."""


@dataclass(frozen=True, slots=True)
class WantedToken:
    """`tags`: the devices it is for; empty: all."""

    name: str
    role: Role
    tags: frozenset[str] = frozenset()
    validity_d: float = VALIDITY_D


def make_token(database: Database, wanted: WantedToken, by: str, now: datetime) -> tuple[Credential, ApiToken]:
    """A new token: its secret, which is kept nowhere, and what is known of it. Raises RefusedError for a name that is
    none, ConflictError where a token of this name holds already, AwayError."""
    if not NAME_PATTERN.fullmatch(wanted.name):
        problem = f"{wanted.name!r:.100} is no token's name: up to 80 letters, digits, spaces and ._@+-, a letter first"
        raise RefusedError(problem)
    if not 0 < wanted.validity_d <= VALIDITY_LIMIT_D:
        raise RefusedError(f"a token holds for up to {VALIDITY_LIMIT_D:g} days, not {wanted.validity_d:g}")
    credential, expires = new_credential(KIND), now + timedelta(days=wanted.validity_d)
    with database.write() as connection:
        alone(connection, ALONE)
        if any(token.name == wanted.name for token in holding(connection, database.settings, now)):
            raise ConflictError(f"a token named {wanted.name!r} holds already: the audit log tells them apart by name")
        given = {"name": wanted.name, "role": wanted.role, "tags": wanted.tags, "expires": expires}
        number = tokens.create(connection, credential, database.settings, **given, now=now, by=by)  # type: ignore[arg-type]
        details = {
            "name": wanted.name,
            "role": wanted.role,
            "tags": sorted(wanted.tags),
            "expires": moment(expires),
        }
        audit.append(connection, Deed(by, "tokens.create", str(number), details), now)
        return credential, find_token(connection, database.settings, number)


def revoke_token(
    database: Database,
    number: int,
    by: str,
    now: datetime,
    *,
    last: bool = False,
    check: Callable[[ApiToken], object] | None = None,
) -> ApiToken:
    """It opens nothing any more. `check` sees the token before. Raises AbsentError; ConflictError for the last token
    that can make others, which goes only where `last` says so; what `check` raises."""
    with database.write() as connection:
        alone(connection, ALONE)
        found = find_token(connection, database.settings, number)
        if check:
            check(found)
        left = [token for token in holding(connection, database.settings, now) if _governs(token)]
        if not last and [token.id for token in left] == [number]:
            raise ConflictError(
                f"{found.name!r:.80} is the last token of an admin for all devices: nobody could make another over the "
                "API; make one first (or say --last, and make the next beside the database: edge-fleet tokens create "
                "--dir DIR)"
            )
        if found.revoked is None:
            tokens.revoke(connection, number, now)
            audit.append(connection, Deed(by, "tokens.revoke", str(number), {"name": found.name}), now)
        return find_token(connection, database.settings, number)


def holding(connection: Connection, settings: DatabaseSettings, now: datetime) -> list[ApiToken]:
    """All tokens that open something now."""
    return [token for token in _all(connection, settings) if token.revoked is None and token.expires > now]


def find_token(connection: Connection, settings: DatabaseSettings, number: int) -> ApiToken:
    """The token with this id. Raises AbsentError."""
    found = tokens.page(connection, settings, after=number - 1, limit_rows=1)
    if not found or found[0].id != number:
        raise AbsentError(f"no token has the id {number}")
    return found[0]


def _all(connection: Connection, settings: DatabaseSettings) -> Iterable[ApiToken]:
    after = 0
    while found := tokens.page(connection, settings, after=after, limit_rows=settings.page_limit_rows):
        yield from found
        after = found[-1].id


def _governs(token: ApiToken) -> bool:
    return token.role is Role.ADMIN and not token.tags
