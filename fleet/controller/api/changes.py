"""`/v1/changes`: stream of events, alerts and rollouts, as Server-Sent Events (WHATWG HTML, section 9.2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from litestar import get
from litestar.concurrency import sync_to_thread
from litestar.params import HeaderParameter, QueryParameter
from litestar.response import Stream
from litestar.serialization import encode_json

from fleet.controller.access import Action, may
from fleet.controller.api import alerts, events
from fleet.controller.api.fields import DeviceQuery, NameInQuery
from fleet.controller.api.identity import ACTION, Call, control_of, known_token
from fleet.controller.api.scope import caller_of, scope_of
from fleet.controller.control.changes import (
    POSITION_CHARACTERS,
    POSITION_PATTERN,
    Change,
    ChangeFilter,
    ChangePage,
    Position,
    read_position,
)
from fleet.controller.control.rollouts_record import fact_of
from fleet.controller.control.subscriptions import ChangeStream, Subscriptions
from fleet.controller.database.alerts import Alert
from fleet.controller.database.changes import ChangeKind
from fleet.controller.database.errors import AwayError
from fleet.controller.database.events import StoredEvent
from fleet.controller.database.rollouts import StoredFact
from fleet.controller.rollouts.facts_form import fact_document
from gateway.common.domain.errors import Fault, RequestError
from gateway.common.wire.events import HEADERS, MEDIA_TYPE, event

POSITION = "position"
"""Event that only gives the position of the stream."""
HEARTBEAT = b": heartbeat\n\n"
READING: Mapping[ChangeKind, Action] = {
    ChangeKind.DEVICE_EVENT: Action.TELEMETRY_READ,
    ChangeKind.ALERT_OPENED: Action.TELEMETRY_READ,
    ChangeKind.ALERT_CLOSED: Action.TELEMETRY_READ,
    ChangeKind.ROLLOUT_FACT: Action.ROLLOUTS_READ,
    ChangeKind.ROLLOUT_DEVICE_FACT: Action.ROLLOUTS_READ,
}
"""Kinds that can be asked for, and the permission that each needs."""
LOST = "changes up to here are no longer known; read /v1/events, /v1/alerts and /v1/rollouts again"
_KINDS: dict[str, Any] = {"items": {"type": "string", "enum": sorted(READING)}}
_POSITION: dict[str, Any] = {"pattern": POSITION_PATTERN, "maxLength": POSITION_CHARACTERS}
_AFTER = "id of the last message: the stream continues after it; 0: from the oldest"
KindsInQuery = Annotated[
    list[ChangeKind] | None, QueryParameter(name="kind", max_items=len(READING), schema_extra=_KINDS)
]
AfterInQuery = Annotated[str, QueryParameter(schema_extra=_POSITION, description=_AFTER)]
LastEventId = Annotated[str, HeaderParameter(name="Last-Event-ID", schema_extra=_POSITION, description=_AFTER)]
Follow = Annotated[bool, QueryParameter(description="false: end after the changes that exist already")]


@dataclass(frozen=True, slots=True)
class _Reader:
    """An admitted stream."""

    subscriptions: Subscriptions
    subscription: ChangeStream
    wanted: ChangeFilter
    follow: bool

    async def read(self, after: Position) -> tuple[ChangePage, Sequence[Change]]:
        """Return the next page, and its changes to be sent; nothing while the database is unreachable."""
        feed = self.subscriptions.feed
        try:
            page = self.subscriptions.recent(after) if self.follow else None
            if page is None:
                page = await sync_to_thread(feed.read, after)
            if self.wanted.is_plain or not page.changes:
                return page, feed.visible(page.changes, self.wanted)
            return page, await sync_to_thread(feed.visible, page.changes, self.wanted)
        except AwayError:
            if not self.follow:
                raise
            return ChangePage((), after, more=False), ()


@get(
    "/v1/changes",
    opt={ACTION: Action.TELEMETRY_READ},
    media_type=MEDIA_TYPE,
    summary="Changes as they happen, as Server-Sent Events",
    response_description="Messages with id, event and data, until either side ends the stream",
)
async def follow_changes(
    request: Call,
    *,
    kinds: KindsInQuery = None,
    device: NameInQuery = "",
    rollout: NameInQuery = "",
    device_query: DeviceQuery = "",
    after: AfterInQuery = "",
    last_event_id: LastEventId = "",
    follow: Follow = True,
) -> Stream:
    """Stream changes within the caller's scope, from now on or after an `id`.

    The header takes precedence over `after`. `device`, `query`: only changes of such devices. `data` holds an item of
    `/v1/events`, `/v1/alerts` or `/v1/rollouts/{rollout}/facts`. `position` only moves the `id`; `gap` reports that
    changes are lost.
    """
    asked = ChangeFilter(frozenset(kinds or READING), device, rollout, device_query)
    wanted, token, begin = await sync_to_thread(_admitted, request, asked, last_event_id or after)
    subscriptions = control_of(request).subscriptions
    subscription = subscriptions.open(token)
    if task := asyncio.current_task():  # of this request: it ends with the stream, however that ends
        task.add_done_callback(lambda _: subscriptions.close(subscription))
    reader = _Reader(subscriptions, subscription, wanted, follow)
    return Stream(_blocks(reader, begin), media_type=MEDIA_TYPE, headers=HEADERS)


def _admitted(request: Call, asked: ChangeFilter, after: str) -> tuple[ChangeFilter, int, Position]:
    """Return what the caller may get, the id of its token, and its start. Raise RequestError, AwayError."""
    identity, feed = caller_of(request), control_of(request).subscriptions.feed
    scope = scope_of(identity)
    for kind in sorted(asked.kinds):
        if kind not in READING:
            problem = f"kind={kind} cannot be requested; leave it out, such messages come without it"
            raise RequestError(Fault.INVALID, problem)
        if not (answer := may(identity, READING[kind], scope or None)):
            raise RequestError(Fault.DENIED, f"{answer.reason}; leave out kind={kind}")
    if asked.query:
        feed.check(asked.query)
    begin = read_position(after) if after else feed.now()
    return replace(asked, scope=scope), known_token(request).id, begin


async def _blocks(reader: _Reader, position: Position) -> AsyncIterator[bytes]:
    """Yield the messages of the stream as bytes."""
    subscription, settings, sent = reader.subscription, reader.subscriptions.settings, position
    yield f"retry: {int(settings.reconnect_s * 1000)}\n".encode() + _position(position)
    clock = asyncio.get_running_loop().time
    sent_s, more = clock(), True
    while (more or reader.follow) and not subscription.has_ended():
        subscription.expect()
        page, next_position = await reader.read(position)
        for change in next_position:
            if subscription.has_ended():
                return
            yield _message(change, sent)
            sent, sent_s = change.position, clock()
        position, more = page.reached, page.more
        if reader.follow and not more:
            await subscription.wait(max(0.0, sent_s + settings.heartbeat_s - clock()))
        if clock() >= sent_s + settings.heartbeat_s or not (more or reader.follow):
            yield HEARTBEAT if sent == position else _position(position)
            sent, sent_s = position, clock()


def _message(change: Change, sent: Position) -> bytes:
    if isinstance(change.about, StoredEvent):
        return _block(change.kind, change.position, events.entry(change.about))
    if isinstance(change.about, Alert):
        return _block(change.kind, change.position, alerts.entry(change.about))
    if isinstance(change.about, StoredFact):
        fact = fact_document(fact_of(change.about))
        return _block(change.kind, change.position, {"rollout": change.rollout, **fact})
    return _block(ChangeKind.GAP, change.position, {"after": str(sent), "id": str(change.position), "detail": LOST})


def _position(position: Position) -> bytes:
    return _block(POSITION, position, {"id": str(position)})


def _block(name: str, position: Position, document: object) -> bytes:
    return event(encode_json(document), name=name, ident=str(position))


HANDLERS = (follow_changes,)
