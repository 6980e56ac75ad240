"""`/v1/events`: events on devices, such as roll-backs with their evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from litestar import get

from fleet.controller.access import Action
from fleet.controller.api.conditions import operation
from fleet.controller.api.fields import DeviceQuery, NameInQuery
from fleet.controller.api.identity import Call, control_of
from fleet.controller.api.pages import PAGE_ROWS, Limit, Number, Page, page
from fleet.controller.api.scope import caller_of, scope_of
from fleet.controller.control.device_query import selected
from fleet.controller.database import events
from fleet.controller.database.events import StoredEvent
from fleet.times import moment


@dataclass(frozen=True, slots=True)
class EventEntry:
    """An event. `at`: by the device's clock. `slot`, `target`, `rollout`: what it is about ("": nothing)."""

    id: int
    device: str
    kind: str
    at: str
    received: str
    slot: str
    target: str
    rollout: str
    document: Mapping[str, object]


@operation(get, "/v1/events", Action.TELEMETRY_READ, "List events, newest first")
def list_events(
    request: Call,
    *,
    device: NameInQuery = "",
    kind: NameInQuery = "",
    rollout: NameInQuery = "",
    device_query: DeviceQuery = "",
    before: Number = 0,
    limit: Limit = PAGE_ROWS,
) -> Page[EventEntry]:
    """Return events on devices within the caller's scope that match `query`.

    `before`: the `next` of the page before this one.
    """
    scope, control = scope_of(caller_of(request)), control_of(request)
    asked = {"device": device, "kind": kind, "rollout": rollout}
    with control.database.read() as connection:
        found = events.page(
            connection,
            control.database.settings,
            **asked,
            scope=scope,
            matching=selected(connection, device_query),
            before=before or None,
            limit_rows=limit,
        )
    return page(found, limit, entry, lambda one: one.id)


def entry(one: StoredEvent) -> EventEntry:
    """Return an event as lists show it."""
    event = one.event
    about = (event.slot, event.target, event.rollout, event.document)
    return EventEntry(one.id, event.device, event.kind, moment(event.at), moment(one.received), *about)


HANDLERS = (list_events,)
