"""SQL conditions on devices, from which callers compose filters.

`fleet.controller.control.device_query` does so for the query language of rollouts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from fleet.controller.database.columns import Words
from fleet.controller.database.errors import RefusedError
from fleet.controller.database.rows import chunks
from fleet.controller.database.tables import PATH_BYTES, device_running, device_tags, devices
from gateway.common.domain.assignment import RESERVED_SLOTS

Filter = sa.ColumnElement[bool]
"""Condition on a row of `devices`. Compare it only with `is`."""
CPU = "cpu"
"""Accelerator of a device without one."""
TARGETS_LIMIT = 10_000
"""Different releases in one slot that a comparison of versions reads."""
_ESCAPE = "\\"
_MODELS = "models/*/*"
_RESERVED = {slot: f"{kind}/*" for slot, kind in RESERVED_SLOTS.items()}
"""Patterns of releases' paths up to the version, for models and by reserved slot."""


def everything() -> Filter:
    """Return the filter that every device passes."""
    return sa.true()


def all_of(parts: Iterable[Filter]) -> Filter:
    """Return the conjunction of `parts`."""
    return sa.and_(sa.true(), *parts)


def any_of(parts: Iterable[Filter]) -> Filter:
    """Return the disjunction of `parts`."""
    return sa.or_(sa.false(), *parts)


def negated(part: Filter) -> Filter:
    """Return the filter that passes what `part` does not."""
    return sa.not_(part)


def selected_ids(wanted: Filter) -> sa.Select[Any]:
    """Return the ids of devices that pass `wanted`, as a subquery."""
    return sa.select(devices.c.id).where(devices.c.removed.is_(None), wanted)


def tagged_ids(tags: Iterable[str]) -> sa.Select[Any]:
    """Return the ids of devices with one of these tags, as a subquery."""
    return sa.select(device_tags.c.device).where(device_tags.c.tag.in_(sorted(tags)))


def chosen(device: sa.Column[str], scope: Collection[str], matching: Filter | None) -> list[Filter]:
    """Return conditions on a column of devices' ids.

    `scope`: only devices with one of these tags; empty: all. `matching`: only devices that pass this filter.
    """
    found: list[Filter] = [] if matching is None else [device.in_(selected_ids(matching))]
    return [*found, device.in_(tagged_ids(scope))] if scope else found


def passing(connection: Connection, named: Iterable[str], wanted: Filter) -> frozenset[str]:
    """Return those of these devices that pass `wanted`."""
    found = (selected_ids(wanted).where(devices.c.id.in_(ids)) for ids in chunks(named))
    return frozenset(device for statement in found for device in connection.execute(statement).scalars())


def tagged(connection: Connection, named: Iterable[str], tags: Iterable[str]) -> dict[str, datetime]:
    """Return those of these devices that have one of the tags, and when each was registered."""
    wanted = sa.select(devices.c.id, devices.c.registered).where(devices.c.id.in_(tagged_ids(tags)))
    found = (wanted.where(devices.c.id.in_(ids)) for ids in chunks(named))
    return {device: at for statement in found for device, at in connection.execute(statement)}


class DeviceConditions:
    """Conditions for the database of `connection`. A value with `*` or `?` is a glob if `is_glob` says so."""

    def __init__(self, connection: Connection, is_glob: Callable[[str], bool]) -> None:
        self._connection, self._is_glob = connection, is_glob

    def field(self, name: str, values: Sequence[str]) -> Filter:
        """Return whether the column `name` (id, site, profile) is one of `values`."""
        return self._one_of(devices.c[name], values)

    def tag(self, values: Sequence[str]) -> Filter:
        """Return whether one of the device's tags is one of `values`."""
        mine = sa.select(sa.literal(1)).where(device_tags.c.device == devices.c.id)
        return _apart(mine.where(self._one_of(device_tags.c.tag, values)))

    def accelerator(self, values: Sequence[str]) -> Filter:
        """Return whether one of the device's accelerators is one of `values`; without any it has `CPU`."""
        kinds = self._kinds()
        found = _apart(sa.select(sa.literal(1)).select_from(kinds).where(self._one_of(kinds.c.value, values)))
        none = sa.type_coerce(devices.c.accelerators, sa.Text) == "[]"
        return sa.or_(found, sa.and_(none, self._one_of(sa.literal(CPU), values)))

    def slot(self, values: Sequence[str]) -> Filter:
        """Return whether a release runs in one of the slots `values`."""
        return _runs(self._one_of(device_running.c.slot, values), self._names_release())

    def version(self, slot: str, values: Sequence[str]) -> Filter:
        """Return whether the version that runs in `slot` is one of `values`."""
        begin = _RESERVED.get(slot, _MODELS)
        exact = (
            self._like(device_running.c.target, f"{begin}/{value}/release") for value in values if "/" not in value
        )
        return _runs(device_running.c.slot == slot, self._is_release(begin), any_of(exact))

    def version_that(self, slot: str, holds: Callable[[str], bool]) -> Filter:
        """Return whether `holds` of the version that runs in `slot`.

        SQL cannot order versions, so `holds` is called for each version that runs on any device. Raise RefusedError for
        more than `TARGETS_LIMIT` releases in the slot.
        """
        here = sa.and_(device_running.c.slot == slot, self._is_release(_RESERVED.get(slot, _MODELS)))
        distinct = sa.select(device_running.c.target).where(here).distinct().limit(TARGETS_LIMIT + 1)
        found = self._connection.execute(distinct).scalars().all()
        if len(found) > TARGETS_LIMIT:
            raise RefusedError(f"more than {TARGETS_LIMIT} releases run in {slot!r:.140}; compare versions with '='")
        wanted = [target for target in found if holds(target.split("/")[-2])]
        return _runs(device_running.c.slot == slot, device_running.c.target.in_(wanted))

    def _kinds(self) -> sa.TableValuedAlias:
        if self._connection.dialect.name == "sqlite":
            return sa.func.json_each(devices.c.accelerators).table_valued("value")
        plain = sa.cast(sa.type_coerce(devices.c.accelerators, sa.Text), sa.JSON)
        return sa.func.json_array_elements_text(plain).table_valued("value").render_derived()

    def _names_release(self) -> Filter:
        """Return whether a target is the path of a release that fits its slot."""
        slot = device_running.c.slot
        fitting = (sa.and_(slot == one, self._is_release(begin)) for one, begin in _RESERVED.items())
        return sa.or_(sa.and_(slot.not_in(_RESERVED), self._is_release(_MODELS)), *fitting)

    def _is_release(self, begin: str) -> Filter:
        """Return whether a target is the path of a release that begins like that: no part is empty."""
        target = sa.type_coerce(device_running.c.target, sa.Text)
        slashes = sa.func.length(target) - sa.func.length(sa.func.replace(target, "/", ""))
        formed = self._like(device_running.c.target, f"{begin}/*/release")
        return sa.and_(slashes == begin.count("/") + 2, formed, sa.not_(self._like(device_running.c.target, "*//*")))

    def _one_of(self, column: sa.ColumnElement[Any], values: Sequence[str]) -> Filter:
        exact = [value for value in values if not self._is_glob(value)]
        globs = [self._like(column, value) for value in values if self._is_glob(value)]
        return sa.or_(*([column.in_(exact)] if exact else []), *globs)

    def _like(self, column: sa.ColumnElement[Any], glob: str) -> Filter:
        """Return whether `column` matches `glob`, with case, on both databases. SQLite's LIKE ignores case."""
        if self._connection.dialect.name == "sqlite":
            return sa.func.glob(sa.literal(glob.replace("[", "[[]"), Words(PATH_BYTES)), column) == 1
        for special in (_ESCAPE, "%", "_"):
            glob = glob.replace(special, _ESCAPE + special)
        pattern = glob.replace("*", "%").replace("?", "_")
        return sa.type_coerce(column, sa.Text).like(sa.literal(pattern, Words(2 * PATH_BYTES)), escape=_ESCAPE)


def _runs(*wanted: Filter) -> Filter:
    return _apart(sa.select(sa.literal(1)).where(device_running.c.device == devices.c.id, *wanted))


def _apart(rows: sa.Select[Any]) -> Filter:
    """Return whether there are `rows`.

    PostgreSQL would turn a plain EXISTS into a join, and planning hundreds of joins takes longer than a statement may.
    """
    return rows.exists().is_(sa.true())
