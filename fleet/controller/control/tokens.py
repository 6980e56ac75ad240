"""API tokens: created and revoked with an entry in the audit log, over the API or directly in the database."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from fleet.controller.access import Role
from fleet.controller.audit import Deed
from fleet.controller.database import audit, tokens
from fleet.controller.database.credentials import Credential, new_credential
from fleet.controller.database.engine import Connection, Database, alone
from fleet.controller.database.errors import AbsentError, ConflictError, RefusedError
from fleet.controller.database.settings import DatabaseSettings
from fleet.controller.database.tokens import ApiToken
from fleet.times import moment

KIND = "eft_"
NAME_CHARACTERS = 80
NAME_PATTERN = re.compile(rf"[A-Za-z0-9][A-Za-z0-9 ._@+-]{{0,{NAME_CHARACTERS - 1}}}")
"""Pattern of names. No colon: the audit log names devices as "device:NAME"."""
VALIDITY_D = 90.0
"""Default validity of a new token, in days."""
VALIDITY_LIMIT_D = 3660.0
ALONE = "tokens are named and revoked"
"""Lock: two admins who revoke each other at the same time do so one after the other."""


@dataclass(frozen=True, slots=True)
class WantedToken:
    """Token to create. `tags`: the devices it is for; empty: all."""

    name: str
    role: Role
    tags: frozenset[str] = frozenset()
    validity_d: float = VALIDITY_D


def make_token(database: Database, wanted: WantedToken, by: str, now: datetime) -> tuple[Credential, ApiToken]:
    """Create a token. Return its secret, which is stored nowhere, and its record.

    Raise RefusedError for an invalid name or validity, ConflictError if a valid token has this name, AwayError.
    """
    if not NAME_PATTERN.fullmatch(wanted.name):
        problem = f"{wanted.name!r:.100} is no token's name: up to 80 letters, digits, spaces and ._@+-, a letter first"
        raise RefusedError(problem)
    if not 0 < wanted.validity_d <= VALIDITY_LIMIT_D:
        raise RefusedError(f"a token is valid for up to {VALIDITY_LIMIT_D:g} days, not {wanted.validity_d:g}")
    credential, expires = new_credential(KIND), now + timedelta(days=wanted.validity_d)
    with database.write() as connection:
        alone(connection, ALONE)
        if any(token.name == wanted.name for token in holding(connection, database.settings, now)):
            raise ConflictError(f"a valid token named {wanted.name!r} exists: the audit log tells tokens apart by name")
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
    """Revoke a token: it is refused from now on. `check` is called with the token before.

    Raise AbsentError; ConflictError for the last token that can create others, unless `last`; and what `check` raises.
    """
    with database.write() as connection:
        alone(connection, ALONE)
        found = find_token(connection, database.settings, number)
        if check:
            check(found)
        left = [token for token in holding(connection, database.settings, now) if _governs(token)]
        if not last and [token.id for token in left] == [number]:
            raise ConflictError(
                f"{found.name!r:.80} is the last token of an admin for all devices: after that no token could create "
                "others over the API; create one first (or use --last, and create the next directly in the database: "
                "edge-fleet tokens create --dir DIR)"
            )
        if found.revoked is None:
            tokens.revoke(connection, number, now)
            audit.append(connection, Deed(by, "tokens.revoke", str(number), {"name": found.name}), now)
        return find_token(connection, database.settings, number)


def holding(connection: Connection, settings: DatabaseSettings, now: datetime) -> list[ApiToken]:
    """Return all tokens that are valid now."""
    return [token for token in _all(connection, settings) if token.revoked is None and token.expires > now]


def find_token(connection: Connection, settings: DatabaseSettings, number: int) -> ApiToken:
    """Return the token with this id. Raise AbsentError."""
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
