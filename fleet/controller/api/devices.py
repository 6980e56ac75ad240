"""`/v1/devices`: devices with their inventory, their slots and their certificates; registration; changes of state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from litestar import delete, get, post
from litestar.params import JSONBody, QueryParameter
from msgspec import Struct

from fleet.controller.access import Action, Identity
from fleet.controller.api.conditions import check_state, operation
from fleet.controller.api.document import BODY_SCHEMA
from fleet.controller.api.fields import (
    DeviceQuery,
    Id,
    Name,
    NameInPath,
    NameInQuery,
    PathInQuery,
    Reason,
    ReasonInQuery,
    Tags,
    TagsInQuery,
    Words,
    plain_fields,
)
from fleet.controller.api.identity import Call, actor, control_of
from fleet.controller.api.pages import PAGE_ROWS, Limit, Page, page
from fleet.controller.api.scope import allow_tags, caller_of, known_device, scope_of
from fleet.controller.audit import Deed
from fleet.controller.control import device_removal
from fleet.controller.control.device_query import selected
from fleet.controller.control.device_removal import Permit, RemovalReason
from fleet.controller.database import audit, certificates, desired, devices, enrolment
from fleet.controller.database.devices import Device, DeviceSelection, EnrolmentState
from fleet.controller.database.engine import Connection
from fleet.controller.database.settings import DatabaseSettings
from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest_toml import NAME_PATTERN

SHOWN = "/v1/devices/{device}"
"""Route that shows the state of a device."""


NAME = {"type": "string", "minLength": 1, "pattern": f"^{NAME_PATTERN.pattern}$"}
NAMED = {"anyOf": [{"required": ["id"], "properties": {"id": NAME}}, {"properties": {"serial": NAME}}]}
"""JSON Schema: a serial that is not a valid id needs an `id`, too."""


class Registration(Struct, forbid_unknown_fields=True, frozen=True):
    """Registration of a device that enrols by its serial, without a token. `id`: default is the serial."""

    serial: Name
    id: Id = ""
    tags: Tags = []
    site: Words = ""


class Because(Struct, forbid_unknown_fields=True, frozen=True):
    """Reason, for the audit log."""

    because: Reason = ""


@dataclass(frozen=True, slots=True)
class RunningEntry:
    """Release that the device reports to run in a slot. `digest`: of the signed document."""

    slot: str
    target: str
    digest: str
    variant: str
    accelerator: str
    state: str
    at: str


@dataclass(frozen=True, slots=True)
class DesiredEntry:
    """Release that the device is to run in a slot, and the rollout that set it."""

    slot: str
    target: str
    digest: str
    rollout: str
    at: str


@dataclass(frozen=True, slots=True)
class CertificateEntry:
    """A certificate of the device. `revoked` null: not revoked."""

    serial: str
    issued: str
    expires: str
    revoked: str | None
    revoked_because: str


@dataclass(frozen=True, kw_only=True)
class DeviceEntry:
    """A device. `seen`: time of its last poll, exact to a minute. `serial` "": none is known.

    `suspended`, `revoked`: since when it is, with the reason; null otherwise.
    """

    id: str
    state: EnrolmentState
    serial: str
    profile: str
    accelerators: tuple[str, ...]
    tags: list[str]
    site: str
    health: str
    registered: str
    enrolled: str | None
    seen: str | None
    revoked: str | None
    revoked_because: str
    suspended: str | None
    suspended_because: str
    running: list[RunningEntry]


@dataclass(frozen=True, kw_only=True)
class DeviceDetails(DeviceEntry):
    """A device in full. `certificates`: newest first.

    `machine`: boot and digests of the hardware that reported last, of the hardware before, and earlier boots.
    `used_twice`: when two machines last reported under this name, or null.
    """

    health_details: Mapping[str, object]
    machine: Mapping[str, object]
    used_twice: str | None
    desired: list[DesiredEntry]
    certificates: list[CertificateEntry]


@operation(get, "/v1/devices", Action.DEVICES_READ, "List devices by id")
def list_devices(
    request: Call,
    *,
    in_state: Annotated[EnrolmentState | None, QueryParameter(name="state")] = None,
    profile: NameInQuery = "",
    site: NameInQuery = "",
    serial: NameInQuery = "",
    tag: TagsInQuery = None,
    target: PathInQuery = "",
    device_query: DeviceQuery = "",
    after: NameInQuery = "",
    limit: Limit = PAGE_ROWS,
) -> Page[DeviceEntry]:
    """Return the devices that match every parameter.

    `tag`: may be repeated. `target`: release that the device reports to run, models/OWNER/MODEL/VERSION/release.
    `query`: in the query language of rollouts; 400 if it is malformed.
    """
    identity, control = caller_of(request), control_of(request)
    asked = (in_state, profile, site, serial, target, frozenset(tag or ()), scope_of(identity))
    with control.database.read() as connection:
        wanted = DeviceSelection(*asked, selected(connection, device_query))
        found = devices.page(connection, wanted, control.database.settings, after=after, limit_rows=limit)
    return page(found, limit, device_entry, lambda one: one.id)


@operation(get, "/v1/devices/{device:str}", Action.DEVICES_READ, "Show a device")
def show_device(request: Call, device: NameInPath) -> DeviceDetails:
    """Return a device: what it runs and is to run, its health and its certificates."""
    identity, control = caller_of(request), control_of(request)
    with control.database.read() as connection:
        found = known_device(request, connection, identity, device)
        return _details(connection, found, control.database.settings)


@operation(get, "/v1/devices/{device:str}/inventory", Action.DEVICES_READ, "Show a device's inventory")
def show_inventory(request: Call, device: NameInPath) -> dict[str, object]:
    """Return the inventory as `edge-gateway probe --json` prints it on the device; {} before it was reported."""
    identity, control = caller_of(request), control_of(request)
    with control.database.read() as connection:
        known_device(request, connection, identity, device)
        return dict(devices.inventory(connection, device))


@operation(post, "/v1/devices", Action.DEVICES_ENROL, "Register a device by its serial", opt={BODY_SCHEMA: NAMED})
def register_device(request: Call, data: JSONBody[Registration]) -> DeviceEntry:
    """Register a device, which may then enrol by its serial, without a token.

    Enrolment tokens made for its name before are void, because their makers' scopes were not checked against this
    device. 409 if the id or the serial is registered.
    """
    identity, control, now = caller_of(request), control_of(request), control_of(request).clock()
    allow_tags(request, identity, data.tags)
    name = data.id or data.serial
    if not NAME_PATTERN.fullmatch(name):
        problem = f"{name!r:.140} is no device's id: use letters, digits, '.', '_' and '-'; send an id with the serial"
        raise RequestError(Fault.INVALID, problem)
    with control.database.write() as connection:
        void = enrolment.void(connection, name)
        devices.register(connection, name, data.serial, now)
        devices.label(connection, name, data.tags, data.site)
        details = {"serial": data.serial, "tags": sorted(set(data.tags)), "site": data.site, "enrolments_void": void}
        audit.append(connection, Deed(actor(identity), "devices.register", name, details), now)
        return device_entry(devices.get(connection, name))


def _operation(name: str, summary: str, action: Action) -> post:
    """Return the route decorator for an operation that changes the state of a device."""
    return operation(post, f"/v1/devices/{{device:str}}/{name}", action, summary, state=SHOWN, status_code=200)


@_operation("revoke", "Revoke a device", Action.DEVICES_REVOKE)
def revoke_device(request: Call, device: NameInPath, data: JSONBody[Because | None] = None) -> DeviceEntry:
    """Refuse the device and its certificates from now on; on other replicas within seconds.

    A second call changes nothing. Revoked certificates are not accepted again: `suspend` is the reversible form.
    """
    return _changed(request, device, "revoke", data)


@_operation("readmit", "Readmit a revoked device", Action.DEVICES_REVOKE)
def readmit_device(request: Call, device: NameInPath) -> DeviceEntry:
    """Allow a revoked device to enrol again, by its serial or a new token.

    Its certificates stay revoked. 409 if it is not revoked.
    """
    return _changed(request, device, "readmit", None)


@_operation("suspend", "Suspend a device", Action.DEVICES_SUSPEND)
def suspend_device(request: Call, device: NameInPath, data: JSONBody[Because | None] = None) -> DeviceEntry:
    """Refuse the device until it is resumed; it continues with what it runs, and polls as before.

    Its certificate stays valid, and may be renewed. Rollouts leave the device out. 409 unless it is enrolled; a second
    call changes nothing.
    """
    return _changed(request, device, "suspend", data)


@_operation("resume", "Resume a suspended device", Action.DEVICES_SUSPEND)
def resume_device(request: Call, device: NameInPath, data: JSONBody[Because | None] = None) -> DeviceEntry:
    """Accept a suspended device again, from its next poll on. 409 if it is not suspended."""
    return _changed(request, device, "resume", data)


def _changed(request: Call, device: str, operation: devices.Operation, data: Because | None) -> DeviceEntry:
    """Change the state of a device, with an entry in the audit log if that changes anything."""
    identity, control, now = caller_of(request), control_of(request), control_of(request).clock()
    because = data.because if data else ""
    with control.database.write() as connection:
        if operation == "readmit":
            enrolment.hold(connection)  # what takes away does not wait for an enrolment in progress
        devices.lock(connection, device)
        check_device(request, connection, known_device(request, connection, identity, device))
        changed = devices.change_state(connection, device, operation, because, now)
        found = devices.get(connection, device)
        details: dict[str, object] = {"because": because}
        if found.state is EnrolmentState.REVOKED:
            details["certificates"] = certificates.revoke_all(connection, device, because, now)
        if changed or details.get("certificates"):
            audit.append(connection, Deed(actor(identity), f"devices.{operation}", device, details), now)
    if operation == "revoke":
        control.database.after_commit(lambda: control.revocations.refresh(now))
    if operation == "resume":
        control.database.after_commit(lambda: control.rollouts.hints.note([device]))
    return device_entry(found)


def check_device(request: Call, connection: Connection, device: Device) -> None:
    """Compare If-Match with the current state of the device. Raise what `check_state` raises."""
    settings = control_of(request).database.settings
    check_state(request, lambda: _details(connection, device, settings))


def _details(connection: Connection, device: Device, settings: DatabaseSettings) -> DeviceDetails:
    slots = desired.of_device(connection, device.id).slots
    held = certificates.of_device(connection, device.id, settings)
    return DeviceDetails(
        **_fields(device),
        **plain_fields(device, ("health_details", "machine", "used_twice")),
        desired=[DesiredEntry(**plain_fields(one, DesiredEntry.__dataclass_fields__)) for one in slots],
        certificates=[CertificateEntry(**plain_fields(one, CertificateEntry.__dataclass_fields__)) for one in held],
    )


def device_entry(device: Device) -> DeviceEntry:
    """Return the device as lists show it."""
    return DeviceEntry(**_fields(device))


def _fields(device: Device) -> dict[str, Any]:
    names = DeviceEntry.__dataclass_fields__.keys() - {"running"}
    fields = RunningEntry.__dataclass_fields__
    return {
        **plain_fields(device, names),
        "running": [RunningEntry(**plain_fields(one, fields)) for one in device.running],
    }


@operation(
    delete,
    "/v1/devices/{device:str}/slots/{slot:str}",
    Action.DEVICES_WITHDRAW,
    "Remove a model from a device",
    state=SHOWN,
)
def withdraw_slot(request: Call, device: NameInPath, slot: NameInPath, because: ReasonInQuery = "") -> None:
    """Order the device to empty the slot, by its next assignment; it does so when its policy allows it.

    400 for a reserved slot, which is never empty; 404 if nothing is assigned there; 409 while a rollout that is not
    over has the device in that slot.
    """
    identity, control = caller_of(request), control_of(request)
    motive = RemovalReason(actor(identity), because, control.clock())
    device_removal.withdraw(control.rollouts, device, slot, motive, permit=_permit(request, identity, device))


@operation(delete, "/v1/devices/{device:str}", Action.DEVICES_REMOVE, "Remove a device from the fleet", state=SHOWN)
def remove_device(request: Call, device: NameInPath, because: ReasonInQuery = "") -> None:
    """Remove a device from the fleet; its name may be enrolled again.

    What is stored about it is deleted. Its certificates stay revoked; facts of rollouts and the audit log are kept. 409
    unless it is revoked or was never enrolled, and while a rollout that is not over has it.
    """
    identity, control = caller_of(request), control_of(request)
    motive = RemovalReason(actor(identity), because, control.clock())
    device_removal.remove(control.rollouts, device, motive, permit=_permit(request, identity, device))
    control.revocations.refresh(motive.now)


def _permit(request: Call, identity: Identity, device: str) -> Permit:
    def permit(connection: Connection) -> Device:
        found = known_device(request, connection, identity, device)
        check_device(request, connection, found)
        return found

    return permit


HANDLERS = (
    list_devices,
    show_device,
    show_inventory,
    register_device,
    revoke_device,
    readmit_device,
    suspend_device,
    resume_device,
    withdraw_slot,
    remove_device,
)
