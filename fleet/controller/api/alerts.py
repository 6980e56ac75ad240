"""`/v1/alerts`: open and past alerts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from litestar import get
from litestar.params import QueryParameter

from fleet.controller.access import Action
from fleet.controller.api.conditions import operation
from fleet.controller.api.fields import DeviceQuery, NameInQuery
from fleet.controller.api.identity import Call, control_of
from fleet.controller.api.pages import PAGE_ROWS, Limit, Page, page
from fleet.controller.api.scope import caller_of, scope_of
from fleet.controller.control.device_query import selected
from fleet.controller.database import alerts
from fleet.controller.database.alerts import Alert, AlertState
from fleet.times import moment


@dataclass(frozen=True, slots=True)
class AlertEntry:
    """An alert. `device` "": it is not about one device.

    `subject`: what it is about, such as a slot. `since`: when the condition began.
    """

    id: str
    rule: str
    device: str
    subject: str
    state: str
    since: str
    opened: str | None
    closed: str | None
    summary: str
    evidence: Mapping[str, object]


@operation(get, "/v1/alerts", Action.TELEMETRY_READ, "List alerts, newest first")
def list_alerts(
    request: Call,
    *,
    in_state: Annotated[AlertState | None, QueryParameter(name="state")] = None,
    rule: NameInQuery = "",
    device: NameInQuery = "",
    device_query: DeviceQuery = "",
    before: NameInQuery = "",
    limit: Limit = PAGE_ROWS,
) -> Page[AlertEntry]:
    """Return alerts on devices within the caller's scope; without a scope also those on the fleet.

    `query`: only alerts on devices that match it. `before`: the `next` of the page before this one.
    """
    scope, control = scope_of(caller_of(request)), control_of(request)
    asked = {"rule": rule, "device": device, "before": before}
    with control.database.read() as connection:
        found = alerts.page(
            connection,
            control.database.settings,
            state=in_state,
            **asked,
            scope=scope,
            matching=selected(connection, device_query),
            limit_rows=limit,
        )
    return page(found, limit, entry, lambda one: one.key)


def entry(alert: Alert) -> AlertEntry:
    """Return an alert as lists show it."""
    times = (moment(alert.since), moment(alert.opened), moment(alert.closed))
    about = (alert.rule, alert.device, alert.subject, str(alert.state))
    return AlertEntry(alert.key, *about, *times, alert.summary, alert.evidence)


HANDLERS = (list_alerts,)
