"""`/v1/enrolments`: tokens that let one device in, once. The text is shown when one is made, and never again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

from litestar import delete, get, post
from litestar.params import JSONBody
from msgspec import Meta, Struct

from fleet.access import Action, Identity
from fleet.api.conditions import STATE, check_state
from fleet.api.fields import Id, NumberInPath, Tags, Words, plain_fields
from fleet.api.identity import ACTION, Call, actor, allow, control_of
from fleet.api.pages import PAGE_ROWS, Limit, Number, Page, page
from fleet.api.scope import allow_tags, caller_of, scope_of, unseen
from fleet.audit import Deed
from fleet.database import audit, devices, enrolment
from fleet.database.credentials import new_credential
from fleet.database.engine import Connection
from fleet.database.enrolment import EnrolmentToken
from fleet.database.errors import AbsentError, RefusedError
from fleet.database.settings import DatabaseSettings
from fleet.times import moment
from gateway.domain.manifest_toml import NAME_PATTERN

KIND = "efe_"
VALIDITY_LIMIT_H = 8784.0
"""A year."""


class EnrolmentWanted(Struct, forbid_unknown_fields=True, frozen=True):
    """`device` "": any new id may be taken with it. `tags`, `site`: given to the device. `validity_h` null: as
    `[director] enrolment_token_h` says."""

    device: Id = ""
    tags: Tags = []
    site: Words = ""
    validity_h: Annotated[float, Meta(gt=0, le=VALIDITY_LIMIT_H)] | None = None


@dataclass(frozen=True, kw_only=True)
class EnrolmentEntry:
    """`used` null: nobody came with it yet."""

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
    """`token`: what the device is given, shown this once. `url`: where it asks."""

    token: str
    url: str


@get("/v1/enrolments", opt={ACTION: Action.DEVICES_ENROL}, sync_to_thread=True, summary="Enrolment tokens")
def list_enrolments(request: Call, after: Number = 0, limit: Limit = PAGE_ROWS) -> Page[EnrolmentEntry]:
    """In the order in which they were made; with a scope, those that give one of its tags."""
    scope, control = scope_of(caller_of(request)), control_of(request)
    with control.database.read() as connection:
        found = enrolment.page(connection, control.database.settings, scope=scope, after=after, limit_rows=limit)
    return page(control, found, limit, lambda one: EnrolmentEntry(**_fields(one)), lambda one: one.id)


@get(
    "/v1/enrolments/{enrolment_id:int}",
    opt={ACTION: Action.DEVICES_ENROL},
    sync_to_thread=True,
    summary="Show an enrolment token",
)
def show_enrolment(request: Call, enrolment_id: NumberInPath) -> EnrolmentEntry:
    """Without its text."""
    identity = caller_of(request)
    with control_of(request).database.read() as connection:
        return EnrolmentEntry(**_fields(_known(request, connection, identity, enrolment_id)))


@post("/v1/enrolments", opt={ACTION: Action.DEVICES_ENROL}, sync_to_thread=True, summary="Make an enrolment token")
def create_enrolment(request: Call, data: JSONBody[EnrolmentWanted]) -> NewEnrolment:
    """Good for one device, once. With a scope it may only give tags of it, and be for a device within it."""
    identity, control, now = caller_of(request), control_of(request), control_of(request).clock()
    allow_tags(request, identity, data.tags)
    if data.device and not NAME_PATTERN.fullmatch(data.device):
        raise RefusedError(f"{data.device!r:.140} is no device's id: letters, digits, '.', '_' and '-'")
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


@delete(
    "/v1/enrolments/{enrolment_id:int}",
    opt={ACTION: Action.DEVICES_ENROL, STATE: "/v1/enrolments/{enrolment_id}"},
    sync_to_thread=True,
    summary="Revoke an enrolment token",
)
def delete_enrolment(request: Call, enrolment_id: NumberInPath) -> None:
    """Nobody comes in with it any more. 404 for one that is not there, or was used."""
    identity, control, now = caller_of(request), control_of(request), control_of(request).clock()
    with control.database.write() as connection:
        enrolment.hold(connection)
        found = _known(request, connection, identity, enrolment_id)
        check_state(request, lambda: EnrolmentEntry(**_fields(found)))
        enrolment.revoke(connection, enrolment_id)
        audit.append(connection, Deed(actor(identity), "enrolments.revoke", str(enrolment_id)), now)


def _allow_again(request: Call, connection: Connection, identity: Identity, device: str) -> None:
    """A device that is there may come again where it is within the scope: whoever gets its token becomes it."""
    try:
        before = devices.get(connection, device)
    except AbsentError:
        return
    allow(request, before.tags, identity=identity)


def _known(request: Call, connection: Connection, identity: Identity, number: int) -> EnrolmentToken:
    """The token, where it is within the caller's scope. Raises RequestError DENIED, AbsentError."""
    with unseen(request, identity):
        found = _find(connection, control_of(request).database.settings, number)
    allow(request, found.tags, identity=identity)
    return found


def _find(connection: Connection, settings: DatabaseSettings, number: int) -> EnrolmentToken:
    """Raises AbsentError."""
    found = enrolment.page(connection, settings, after=number - 1, limit_rows=1)
    if not found or found[0].id != number:
        raise AbsentError(f"no enrolment token has the id {number}")
    return found[0]


def _fields(token: EnrolmentToken) -> dict[str, Any]:
    return plain_fields(token, EnrolmentEntry.__dataclass_fields__)


HANDLERS = (list_enrolments, show_enrolment, create_enrolment, delete_enrolment)
