"""`/v1/devices/{device}/labels`: tags and site, which operators give a device."""

from __future__ import annotations

from dataclasses import dataclass

from litestar import get, put
from litestar.params import JSONBody
from msgspec import Struct

from fleet.controller.access import Action
from fleet.controller.api.conditions import STATE, check_state
from fleet.controller.api.devices import DeviceEntry, device_entry
from fleet.controller.api.fields import NameInPath, Tags, Words
from fleet.controller.api.identity import ACTION, Call, actor, control_of
from fleet.controller.api.scope import caller_of, known_device
from fleet.controller.audit import Deed
from fleet.controller.database import audit, devices, enrolment
from fleet.controller.database.devices import Device


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


@get(
    "/v1/devices/{device:str}/labels",
    opt={ACTION: Action.DEVICES_READ},
    sync_to_thread=True,
    summary="Show a device's tags and site",
)
def show_labels(request: Call, device: NameInPath) -> LabelsView:
    """Return a device's tags and site.

    Send the ETag as If-Match to replace them; then no change by another operator is lost.
    """
    identity = caller_of(request)
    with control_of(request).database.read() as connection:
        return _labels(known_device(request, connection, identity, device))


@put(
    "/v1/devices/{device:str}/labels",
    opt={ACTION: Action.DEVICES_LABEL, STATE: "/v1/devices/{device}/labels"},
    sync_to_thread=True,
    summary="Replace a device's tags and site",
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


HANDLERS = (show_labels, label_device)
