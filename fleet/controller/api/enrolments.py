"""`/v1/enrolments`: enrolment tokens, each for one device, once. The text is shown when one is created only."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

from litestar import delete, get, post
from litestar.params import JSONBody
from msgspec import Meta, Struct

from fleet.controller.access import Action, Identity
from fleet.controller.api.conditions import check_state, operation
from fleet.controller.api.fields import Id, NumberInPath, Tags, Words, plain_fields
from fleet.controller.api.identity import Call, actor, allow, control_of
from fleet.controller.api.pages import PAGE_ROWS, Limit, Number, Page, page
from fleet.controller.api.scope import allow_tags, caller_of, scope_of, unseen
from fleet.controller.audit import Deed
from fleet.controller.database import audit, devices, enrolment
from fleet.controller.database.credentials import new_credential
from fleet.controller.database.engine import Connection
from fleet.controller.database.enrolment import EnrolmentToken
from fleet.controller.database.errors import AbsentError, RefusedError
from fleet.controller.database.settings import DatabaseSettings
from fleet.times import moment
from gateway.common.domain.manifest_toml import NAME_PATTERN

KIND = "efe_"
VALIDITY_LIMIT_H = 8784.0
"""366 days."""


class EnrolmentWanted(Struct, forbid_unknown_fields=True, frozen=True):
    """Enrolment token to create.

    `device` "": for any new id. `tags`, `site`: given to the device. `validity_h` null: `[director] enrolment_token_h`.
    """

    device: Id = ""
    tags: Tags = []
    site: Words = ""
    validity_h: Annotated[float, Meta(gt=0, le=VALIDITY_LIMIT_H)] | None = None


@dataclass(frozen=True, kw_only=True)
class EnrolmentEntry:
    """Enrolment token. `used` null: unused."""

    id: int
    prefix: str
    device: str
    tags: list[str]
    site: str
    created: str
    created_by: str
    expires: str
    used: str | None
    used_by: str


@dataclass(frozen=True, kw_only=True)
class NewEnrolment(EnrolmentEntry):
    """New enrolment token. `token`: the text for the device, shown only now. `url`: of the controller."""

    token: str
    url: str


@operation(get, "/v1/enrolments", Action.DEVICES_ENROL, "List enrolment tokens")
def list_enrolments(request: Call, after: Number = 0, limit: Limit = PAGE_ROWS) -> Page[EnrolmentEntry]:
    """Return enrolment tokens in the order of creation; with a scope, those that give one of its tags."""
    scope, control = scope_of(caller_of(request)), control_of(request)
    with control.database.read() as connection:
        found = enrolment.page(connection, control.database.settings, scope=scope, after=after, limit_rows=limit)
    return page(found, limit, lambda one: EnrolmentEntry(**_fields(one)), lambda one: one.id)


@operation(get, "/v1/enrolments/{enrolment_id:int}", Action.DEVICES_ENROL, "Show an enrolment token")
def show_enrolment(request: Call, enrolment_id: NumberInPath) -> EnrolmentEntry:
    """Return an enrolment token without its text."""
    identity = caller_of(request)
    with control_of(request).database.read() as connection:
        return EnrolmentEntry(**_fields(_known(request, connection, identity, enrolment_id)))


@operation(post, "/v1/enrolments", Action.DEVICES_ENROL, "Create an enrolment token")
def create_enrolment(request: Call, data: JSONBody[EnrolmentWanted]) -> NewEnrolment:
    """Create an enrolment token for one device, once.

    A caller with a scope may only give tags of it, and name a device within it.
    """
    identity, control, now = caller_of(request), control_of(request), control_of(request).clock()
    allow_tags(request, identity, data.tags)
    if data.device and not NAME_PATTERN.fullmatch(data.device):
        raise RefusedError(f"{data.device!r:.140} is not a device's id: use letters, digits, '.', '_' and '-'")
    hours = control.settings.director.enrolment_token_h if data.validity_h is None else data.validity_h
    credential, expires, settings = new_credential(KIND), now + timedelta(hours=hours), control.database.settings
    with control.database.write() as connection:
        enrolment.hold(connection)
        if data.device:
            _allow_again(request, connection, identity, data.device)
        number = enrolment.create(
            connection,
            credential,
            settings,
            expires=expires,
            now=now,
            by=actor(identity),
            device=data.device,
            tags=data.tags,
            site=data.site,
        )
        details = {"device": data.device, "tags": sorted(set(data.tags)), "site": data.site, "expires": moment(expires)}
        audit.append(connection, Deed(actor(identity), "enrolments.create", str(number), details), now)
        made = _find(connection, settings, number)
    return NewEnrolment(**_fields(made), token=credential.text, url=control.url)


@operation(
    delete,
    "/v1/enrolments/{enrolment_id:int}",
    Action.DEVICES_ENROL,
    "Revoke an enrolment token",
    state="/v1/enrolments/{enrolment_id}",
)
def delete_enrolment(request: Call, enrolment_id: NumberInPath) -> None:
    """Revoke an enrolment token. 404 if there is none with this id, or it was used."""
    identity, control, now = caller_of(request), control_of(request), control_of(request).clock()
    with control.database.write() as connection:
        enrolment.hold(connection)
        found = _known(request, connection, identity, enrolment_id)
        check_state(request, lambda: EnrolmentEntry(**_fields(found)))
        enrolment.revoke(connection, enrolment_id)
        audit.append(connection, Deed(actor(identity), "enrolments.revoke", str(enrolment_id)), now)


def _allow_again(request: Call, connection: Connection, identity: Identity, device: str) -> None:
    """Check that an existing device is within the scope: who gets a token for it can take its identity."""
    try:
        before = devices.get(connection, device)
    except AbsentError:
        return
    allow(request, before.tags, identity=identity)


def _known(request: Call, connection: Connection, identity: Identity, number: int) -> EnrolmentToken:
    """Return the token, if it is within the caller's scope. Raise RequestError DENIED, AbsentError."""
    with unseen(request, identity):
        found = _find(connection, control_of(request).database.settings, number)
    allow(request, found.tags, identity=identity)
    return found


def _find(connection: Connection, settings: DatabaseSettings, number: int) -> EnrolmentToken:
    """Return the token. Raise AbsentError."""
    found = enrolment.page(connection, settings, after=number - 1, limit_rows=1)
    if not found or found[0].id != number:
        raise AbsentError(f"no enrolment token has the id {number}")
    return found[0]


def _fields(token: EnrolmentToken) -> dict[str, Any]:
    return plain_fields(token, EnrolmentEntry.__dataclass_fields__)


HANDLERS = (list_enrolments, show_enrolment, create_enrolment, delete_enrolment)
