"""Tags and sites of many devices, changed in one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from fleet.controller.database.device_filter import Filter
from fleet.controller.database.devices import TAGS_LIMIT
from fleet.controller.database.errors import AbsentError, RefusedError
from fleet.controller.database.rows import bounded, chunks
from fleet.controller.database.settings import DatabaseSettings
from fleet.controller.database.tables import device_tags, devices

_HERE = devices.c.removed.is_(None)


@dataclass(frozen=True, slots=True)
class LabelChange:
    """Tags to add and to remove. `site` None: sites stay."""

    add: frozenset[str] = frozenset()
    remove: frozenset[str] = frozenset()
    site: str | None = None


@dataclass(frozen=True, slots=True)
class Effect:
    """Effect of a change on one device: tags that it gains, tags that it loses, and whether its site changes."""

    device: str
    gained: frozenset[str]
    lost: frozenset[str]
    moved: bool


def matching_ids(connection: Connection, matching: Filter, settings: DatabaseSettings, *, lock: bool) -> list[str]:
    """Return the devices that pass a filter, by id.

    `lock`: none of them is removed before the transaction ends. Raise RefusedError for more than `bulk_limit_devices`.
    """
    found = _ids(matching, lock=lock).limit(settings.bulk_limit_devices + 1)
    return _at_most(connection.execute(found).scalars(), settings)


def named_ids(connection: Connection, names: Iterable[str], settings: DatabaseSettings, *, lock: bool) -> list[str]:
    """Return the devices of these names, by id.

    `lock`: none of them is removed before the transaction ends. Raise AbsentError that names an unknown one,
    RefusedError for more than `bulk_limit_devices`.
    """
    wanted = _at_most(sorted(set(names)), settings)
    found: list[str] = []
    for ids in chunks(wanted):
        found += connection.execute(_ids(devices.c.id.in_(ids), lock=lock)).scalars()
    if unknown := sorted(set(wanted) - set(found)):
        raise AbsentError(f"{len(unknown)} of {len(wanted)} devices are not known, {unknown[0]!r:.140} among them")
    return found


def effects(connection: Connection, ids: Iterable[str], change: LabelChange) -> list[Effect]:
    """Return the effects of `change` on these devices; devices that it does not change are left out.

    Raise RefusedError for a device that would have too many tags.
    """
    found: list[Effect] = []
    for chunk in chunks(ids):
        tags: dict[str, set[str]] = {device: set() for device in chunk}
        for device, tag in connection.execute(sa.select(device_tags).where(device_tags.c.device.in_(chunk))):
            tags[device].add(tag)
        here = sa.select(devices.c.id, devices.c.site).where(devices.c.id.in_(chunk)).order_by(devices.c.id)
        sites = connection.execute(here).all()
        found += (effect for device, site in sites if (effect := _effect(device, site, tags[device], change)))
    return found


def apply(connection: Connection, changed: Sequence[Effect], change: LabelChange) -> None:
    """Apply what `effects` returned in this transaction."""
    for part in chunks(changed):
        ids = [effect.device for effect in part]
        if change.remove:
            gone = (device_tags.c.device.in_(ids), device_tags.c.tag.in_(sorted(change.remove)))
            connection.execute(sa.delete(device_tags).where(*gone))
        rows = [{"device": effect.device, "tag": tag} for effect in part for tag in sorted(effect.gained)]
        if rows:
            connection.execute(sa.insert(device_tags), rows)
        if change.site is not None:
            connection.execute(sa.update(devices).where(devices.c.id.in_(ids)).values(site=change.site))


def _ids(wanted: Filter, *, lock: bool) -> sa.Select[Any]:
    found = sa.select(devices.c.id).where(_HERE, wanted).order_by(devices.c.id)
    return found.with_for_update(key_share=True, of=devices) if lock else found


def _effect(device: str, site: str, tags: set[str], change: LabelChange) -> Effect | None:
    gained, lost = change.add - tags, change.remove & tags
    if len(tags) + len(gained) - len(lost) > TAGS_LIMIT:
        raise RefusedError(f"{device!r:.140} would have more than {TAGS_LIMIT} tags; remove some of them, too")
    moved = change.site not in {None, site}
    return Effect(device, gained, frozenset(lost), moved) if gained or lost or moved else None


def _at_most(names: Iterable[str], settings: DatabaseSettings) -> list[str]:
    return bounded(names, settings.bulk_limit_devices, "devices")
