"""`/v1/devices/{device}/diagnostics`: requests for diagnostics. A device learns of them with its next poll."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Literal, cast

from litestar import get, post
from litestar.params import JSONBody
from msgspec import Meta, Struct

from fleet.controller.access import Action
from fleet.controller.api.conditions import operation
from fleet.controller.api.fields import NameInPath, NumberInPath, plain_fields
from fleet.controller.api.identity import Call, actor, control_of
from fleet.controller.api.pages import Page
from fleet.controller.api.scope import caller_of, known_device
from fleet.controller.audit import Deed
from fleet.controller.database import audit, diagnostics
from fleet.controller.database.diagnostics import Request
from fleet.controller.database.engine import Connection
from fleet.controller.database.errors import AbsentError

Part = Literal["doctor", "log", "status", "vitals"]
PARTS: tuple[Part, ...] = ("doctor", "log", "status", "vitals")
WANTED = "wanted"
"""Key of the requested parts in the stored request."""


class DiagnosticsWanted(Struct, forbid_unknown_fields=True, frozen=True):
    """Parts of diagnostics.

    `doctor`: findings of `edge-gateway doctor`. `log`: the last lines. `status`, `vitals`: at the time of the answer.
    """

    wanted: Annotated[tuple[Part, ...], Meta(min_length=1, max_length=len(PARTS))] = PARTS


@dataclass(frozen=True, kw_only=True)
class DiagnosticsEntry:
    """Request for diagnostics. `answered` null: not yet; after `expires` the device will not answer."""

    id: int
    device: str
    wanted: list[str]
    asked: str
    asked_by: str
    expires: str
    answered: str | None


@dataclass(frozen=True, kw_only=True)
class DiagnosticsAnswer(DiagnosticsEntry):
    """Request with its answer. `answer`: what the device reports on each part; null before."""

    answer: Mapping[str, object] | None


@operation(post, "/v1/devices/{device:str}/diagnostics", Action.DIAGNOSTICS_ASK, "Request diagnostics from a device")
def ask_device(request: Call, device: NameInPath, data: JSONBody[DiagnosticsWanted | None] = None) -> DiagnosticsEntry:
    """Request diagnostics from a device. It answers after one of its next polls, or never."""
    identity, control, now = caller_of(request), control_of(request), control_of(request).clock()
    wanted = sorted(set((data or DiagnosticsWanted()).wanted))
    expires = now + timedelta(hours=control.settings.ingestion.diagnostics_validity_h)
    with control.database.write() as connection:
        known_device(request, connection, identity, device)
        settings, by = control.database.settings, actor(identity)
        number = diagnostics.ask(connection, device, {WANTED: wanted}, settings, now=now, expires=expires, by=by)
        details = {"request": number, WANTED: wanted}
        audit.append(connection, Deed(by, "diagnostics.ask", device, details), now)
        made = _find(connection, device, number)
    control.database.after_commit(lambda: control.rollouts.hints.note([device]))
    return DiagnosticsEntry(**_fields(made))


@operation(
    get, "/v1/devices/{device:str}/diagnostics", Action.DIAGNOSTICS_READ, "List requests for diagnostics to a device"
)
def list_diagnostics(request: Call, device: NameInPath) -> Page[DiagnosticsEntry]:
    """Return all stored requests to a device, newest first, without the answers."""
    identity, control = caller_of(request), control_of(request)
    with control.database.read() as connection:
        known_device(request, connection, identity, device)
        found = diagnostics.of_device(connection, device)
    return Page([DiagnosticsEntry(**_fields(one)) for one in found], None)


@operation(get, "/v1/devices/{device:str}/diagnostics/{number:int}", Action.DIAGNOSTICS_READ, "Show a device's answer")
def show_diagnostics(request: Call, device: NameInPath, number: NumberInPath) -> DiagnosticsAnswer:
    """Return one request, with its answer if there is one."""
    identity, control = caller_of(request), control_of(request)
    with control.database.read() as connection:
        known_device(request, connection, identity, device)
        found = _find(connection, device, number)
    return DiagnosticsAnswer(**_fields(found), answer=found.answer)


def _find(connection: Connection, device: str, number: int) -> Request:
    """Return a request. Raise AbsentError."""
    for one in diagnostics.of_device(connection, device):
        if one.id == number:
            return one
    raise AbsentError(f"{device!r:.140} has no request {number}, or it was deleted since")


def _fields(one: Request) -> dict[str, Any]:
    names = DiagnosticsEntry.__dataclass_fields__.keys() - {"wanted"}
    return {**plain_fields(one, names), "wanted": list(cast("Any", one.wanted.get(WANTED, ())))}


HANDLERS = (ask_device, list_diagnostics, show_diagnostics)
