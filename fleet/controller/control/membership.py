"""Membership of rollouts: devices as the database knows them, compared with a rollout's query."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

from fleet.controller.control.rollouts_record import RecordedRollout
from fleet.controller.database import devices
from fleet.controller.database.devices import DeviceSelection, EnrolmentState, Running
from fleet.controller.database.engine import Connection, Database
from fleet.controller.database.settings import DatabaseSettings
from fleet.controller.rollouts.facts import Joined, Left
from fleet.controller.rollouts.members import CLAIMED, NO_NEWCOMERS, Newcomers, membership
from fleet.controller.rollouts.query import QueriedDevice
from fleet.controller.rollouts.spec import Spec
from fleet.controller.rollouts.state import RolloutState as Standing
from gateway.common.domain.release_paths import fits_slot
from gateway.common.trust.distrust import Distrust
from gateway.common.trust.paths import release_path

PAGE_ROWS = 1_000
ENROLLED = DeviceSelection(state=EnrolmentState.ENROLLED)


def pages(database: Database, limit_rows: int) -> Iterator[Sequence[devices.Device]]:
    """Yield all devices of the fleet, each page in a transaction of its own."""
    after = ""
    while page := read_page(database, after, limit_rows):
        yield page
        after = page[-1].id


def read_page(database: Database, after: str, limit_rows: int) -> Sequence[devices.Device]:
    """Return the devices that follow `after`; empty at the end."""
    found: list[devices.Device] = []
    with database.read() as connection:
        while len(found) < limit_rows:
            rows = min(limit_rows - len(found), database.settings.page_limit_rows)
            page = devices.page(connection, DeviceSelection(), database.settings, after=after, limit_rows=rows)
            found += page
            if len(page) < rows:
                break
            after = page[-1].id
    return found


def device_of(known: devices.Device, zones: Mapping[str, str]) -> QueriedDevice:
    """Return a device as queries see it. The time zone of its site is in `zones`, else the site's own name."""
    versions = {running.slot: version for running in known.running if (version := version_of(running))}
    zone = zones.get(known.site, known.site)
    return QueriedDevice(known.id, known.site, known.profile, known.tags, known.accelerators, versions, zone)


def version_of(running: Running) -> str:
    """Return the version of the release that runs, or "" if its path names none that fits the slot."""
    try:
        named = release_path(running.target)
        return named.version if fits_slot(running.target, running.slot) else ""
    except Distrust:
        return ""


def changes(
    spec: Spec,
    state: Standing,
    known: Iterable[devices.Device],
    claimed: AbstractSet[str],
    zones: Mapping[str, str],
    *,
    newcomers: Newcomers = NO_NEWCOMERS,
) -> tuple[Joined | Left, ...]:
    """Return which of these devices join and which leave. Only enrolled devices are members of rollouts."""
    here, gone = [], []
    for device in known:
        member, is_suspended = state.members.get(device.id), device.state is EnrolmentState.SUSPENDED
        if device.state is EnrolmentState.ENROLLED:
            here.append(device_of(device, zones))
        elif member and (member.present or (member.suspended and not is_suspended)):
            gone.append(Left(device.id, f"it is {device.state}", is_suspended))
    return (*gone, *membership(spec, state, here, claimed, newcomers))


def awaited(
    connection: Connection,
    settings: DatabaseSettings,
    known: RecordedRollout,
    held: AbstractSet[str],
    zones: Mapping[str, str],
) -> bool:
    """Return whether a device would join that is absent because another rollout has it, or had it until now.

    `held`: devices for which the rollout does not wait. It reads pages of devices until it finds one.
    """
    after = ""
    while page := devices.page(connection, ENROLLED, settings, after=after, limit_rows=PAGE_ROWS):
        found = changes(known.spec, known.state, page, held, zones)
        if any(isinstance(change, Joined) for change in found):
            return True
        after = page[-1].id
    return False


def taken_away(state: Standing, claimed: AbstractSet[str]) -> tuple[Left, ...]:
    """Return as leaving the waiting members to which another rollout offered something for the same slot."""
    waiting = (member for member in state.members.values() if member.waiting and member.device in claimed)
    return tuple(Left(member.device, CLAIMED) for member in waiting)
