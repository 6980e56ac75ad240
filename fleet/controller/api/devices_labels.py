"""`/v1/devices/{device}/labels` and `/v1/devices/tags`: tags and site, which operators give one device or many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from litestar import get, post, put
from litestar.params import JSONBody
from msgspec import Meta, Struct

from fleet.controller.access import Action
from fleet.controller.api.conditions import check_state, operation
from fleet.controller.api.devices import DeviceEntry, device_entry
from fleet.controller.api.fields import KEPT, LARGEST, Name, NameInPath, Tags, Words
from fleet.controller.api.identity import Call, actor, allow, control_of
from fleet.controller.api.scope import caller_of, known_device
from fleet.controller.audit import Deed
from fleet.controller.control.labelling import Order, Outcome, preview, relabel
from fleet.controller.database import audit, devices, enrolment
from fleet.controller.database.devices import Device
from fleet.controller.database.labels import LabelChange
from fleet.controller.rollouts.query_parser import QUERY_LIMIT_CHARS


class Labels(Struct, forbid_unknown_fields=True, frozen=True):
    """New labels of a device: all tags, and the site."""

    tags: Tags
    site: Words = ""


@dataclass(frozen=True, slots=True)
class LabelsView:
    """Labels of a device: all tags, and the site.

    The ETag changes with these only, not with what the device reports.
    """

    tags: list[str]
    site: str


@operation(get, "/v1/devices/{device:str}/labels", Action.DEVICES_READ, "Show a device's tags and site")
def show_labels(request: Call, device: NameInPath) -> LabelsView:
    """Return a device's tags and site.

    Send the ETag as If-Match to replace them; then no change by another operator is lost.
    """
    identity = caller_of(request)
    with control_of(request).database.read() as connection:
        return _labels(known_device(request, connection, identity, device))


@operation(
    put,
    "/v1/devices/{device:str}/labels",
    Action.DEVICES_LABEL,
    "Replace a device's tags and site",
    state="/v1/devices/{device}/labels",
)
def label_device(request: Call, device: NameInPath, data: JSONBody[Labels]) -> DeviceEntry:
    """Replace a device's tags and site. Only for tokens without a scope, because scopes consist of tags.

    If the device loses a tag, unused enrolment tokens for this device alone are void: it may have left the scope of
    their makers.
    """
    identity, control, now = caller_of(request), control_of(request), control_of(request).clock()
    with control.database.write() as connection:
        enrolment.hold(connection)
        devices.lock(connection, device)
        before = known_device(request, connection, identity, device)
        check_state(request, lambda: _labels(before))
        devices.label(connection, device, data.tags, data.site)
        details: dict[str, object] = {"tags": sorted(set(data.tags)), "site": data.site}
        details |= {"tags_before": sorted(before.tags), "site_before": before.site}
        if before.tags - set(data.tags):
            details |= {"enrolments_void": enrolment.void(connection, device)}
        audit.append(connection, Deed(actor(identity), "devices.label", device, details), now)
        return device_entry(devices.get(connection, device))


def _labels(device: Device) -> LabelsView:
    return LabelsView(sorted(device.tags), device.site)


NAMES = 10_000
"""Ids in one request; a query can select more."""


class TagsForm(Struct, forbid_unknown_fields=True, frozen=True):
    """Change of labels of many devices.

    Which devices: `query`, in the query language of rollouts, or their ids as `devices`. What changes: tags to `add`
    and to `remove`, and `site` (null: unchanged). `expected`: 409 if another number of devices would change.
    """

    query: Annotated[str, Meta(max_length=QUERY_LIMIT_CHARS, pattern=KEPT)] = ""
    devices: Annotated[list[Name], Meta(max_length=NAMES)] = []
    add: Tags = []
    remove: Tags = []
    site: Words | None = None
    dry_run: bool = False
    expected: Annotated[int, Meta(ge=0, le=LARGEST)] | None = None


@dataclass(frozen=True, slots=True)
class TagsChanged:
    """Result of a change of labels.

    `selected` devices, of which `changed` change; `devices`: the first of these. `enrolments_void`: unused enrolment
    tokens of devices that lost a tag. `dry_run`: nothing was changed.
    """

    selected: int
    changed: int
    devices: Sequence[str]
    enrolments_void: int
    dry_run: bool


@operation(post, "/v1/devices/tags", Action.DEVICES_LABEL, "Change tags and site of many devices", status_code=200)
def tag_devices(request: Call, data: JSONBody[TagsForm]) -> TagsChanged:
    """Change all of the devices in one transaction, or none; one entry in the audit log.

    Only for tokens without a scope, because scopes consist of tags.
    """
    identity, control = allow(request), control_of(request)
    change = LabelChange(frozenset(data.add), frozenset(data.remove), data.site)
    order = Order(change, data.query, data.devices, data.expected)
    if data.dry_run:
        return _view(preview(control.database, order), dry_run=True)
    return _view(relabel(control.database, order, actor(identity), control.clock()), dry_run=False)


def _view(outcome: Outcome, *, dry_run: bool) -> TagsChanged:
    return TagsChanged(outcome.selected, outcome.changed, outcome.devices, outcome.enrolments_void, dry_run)


HANDLERS = (show_labels, label_device, tag_devices)
