"""`/v1/tokens`: API tokens of operators and programs. A secret is shown once, when the token is created."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from litestar import delete, get, post
from litestar.params import FromQuery, JSONBody
from msgspec import Meta, Struct

from fleet.controller.access import Action, Role
from fleet.controller.api.conditions import check_state, operation
from fleet.controller.api.fields import NumberInPath, Tags, documented, plain_fields
from fleet.controller.api.identity import Call, actor, allow, control_of
from fleet.controller.api.pages import PAGE_ROWS, Limit, Number, Page, page
from fleet.controller.control.tokens import (
    NAME_CHARACTERS,
    NAME_PATTERN,
    VALIDITY_D,
    VALIDITY_LIMIT_D,
    WantedToken,
    find_token,
    make_token,
    revoke_token,
)
from fleet.controller.database import tokens
from fleet.controller.database.tokens import ApiToken

Days = Annotated[float, Meta(gt=0, le=VALIDITY_LIMIT_D)]


class TokenWanted(Struct, forbid_unknown_fields=True, frozen=True):
    """API token to create. `tags`: of the devices it is for; none: all devices."""

    name: Annotated[str, documented(pattern=f"^{NAME_PATTERN.pattern}$", minLength=1, maxLength=NAME_CHARACTERS)]
    role: Role
    tags: Tags = []
    validity_d: Days = VALIDITY_D


@dataclass(frozen=True, kw_only=True)
class TokenEntry:
    """API token. `prefix`: first characters of its secret."""

    id: int
    prefix: str
    name: str
    role: Role
    tags: list[str]
    created: str
    created_by: str
    expires: str
    revoked: str | None


@dataclass(frozen=True, kw_only=True)
class NewToken(TokenEntry):
    """New API token. `token`: the secret, shown only now."""

    token: str


@operation(get, "/v1/tokens", Action.TOKENS_READ, "List API tokens, without secrets")
def list_tokens(request: Call, after: Number = 0, limit: Limit = PAGE_ROWS) -> Page[TokenEntry]:
    """Return API tokens in the order of creation, also revoked and expired ones until they are deleted."""
    allow(request)
    control = control_of(request)
    with control.database.read() as connection:
        found = tokens.page(connection, control.database.settings, after=after, limit_rows=limit)
    return page(found, limit, lambda one: TokenEntry(**_fields(one)), lambda one: one.id)


@operation(get, "/v1/tokens/{token:int}", Action.TOKENS_READ, "Show an API token")
def show_token(request: Call, token: NumberInPath) -> TokenEntry:
    """Return an API token without its secret."""
    allow(request)
    control = control_of(request)
    with control.database.read() as connection:
        return TokenEntry(**_fields(find_token(connection, control.database.settings, token)))


@operation(post, "/v1/tokens", Action.TOKENS_CHANGE, "Create an API token")
def create_token(request: Call, data: JSONBody[TokenWanted]) -> NewToken:
    """Create an API token. Its secret is in the answer and nowhere else.

    409 if a valid token has this name.
    """
    identity, control = allow(request), control_of(request)
    wanted = WantedToken(data.name, data.role, frozenset(data.tags), data.validity_d)
    credential, made = make_token(control.database, wanted, actor(identity), now := control.clock())
    control.database.after_commit(lambda: control.revocations.refresh(now))
    return NewToken(**_fields(made), token=credential.text)


@operation(
    delete,
    "/v1/tokens/{token:int}",
    Action.TOKENS_CHANGE,
    "Revoke an API token",
    state="/v1/tokens/{token}",
    status_code=200,
)
def delete_token(request: Call, token: NumberInPath, last: FromQuery[bool] = False) -> TokenEntry:
    """Revoke an API token; it is refused from now on.

    409 for the last token that can create others, unless `last` is true.
    """
    identity, control = allow(request), control_of(request)

    def check(found: ApiToken) -> None:
        check_state(request, lambda: TokenEntry(**_fields(found)))

    revoked = revoke_token(control.database, token, actor(identity), control.clock(), last=last, check=check)
    return TokenEntry(**_fields(revoked))


def _fields(token: ApiToken) -> dict[str, Any]:
    return plain_fields(token, TokenEntry.__dataclass_fields__)


HANDLERS = (list_tokens, show_token, create_token, delete_token)
