"""Queries for alerts: they read only devices and rollouts that may need one, not every device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from fleet.controller.database.devices import STATE, EnrolmentState
from fleet.controller.database.rows import Json, chunks
from fleet.controller.database.tables import certificates, device_running, device_seen, devices, facts, rollouts


@dataclass(frozen=True, slots=True)
class Stopped:
    """A rollout that does not go on for now. `sequence`: of its last fact."""

    rollout: str
    sequence: int
    state: str


@dataclass(frozen=True, slots=True)
class Stop:
    """The last fact by which a rollout stopped. `by`: the operator, or "" if it was decided."""

    rollout: str
    name: str
    sequence: int
    at: datetime
    by: str
    reason: str


def silent(connection: Connection, before: datetime, limit_rows: int) -> dict[str, datetime]:
    """Return enrolled devices without a poll since `before`, with the time of the last one, or of enrolment."""
    statement = _last_seen.where(_seen_at < before).limit(limit_rows)
    return _mapped(connection.execute(statement))


def seen(connection: Connection, named: Iterable[str]) -> dict[str, datetime]:
    """Return the times of the last polls of these devices, of those that are enrolled."""
    found: dict[str, datetime] = {}
    for ids in chunks(named):
        found |= _mapped(connection.execute(_last_seen.where(devices.c.id.in_(ids))))
    return found


def used_twice(connection: Connection, since: datetime, limit_rows: int) -> dict[str, Json]:
    """Return enrolled devices whose identity two machines used after `since`, with the machine that reported last."""
    wanted = (devices.c.used_twice > since, STATE == EnrolmentState.ENROLLED)
    return _mapped(connection.execute(sa.select(devices.c.id, devices.c.machine).where(*wanted).limit(limit_rows)))


def running_by_slot(connection: Connection) -> dict[tuple[str, str], int]:
    """Return how many enrolled devices report each release, by slot and path of the release."""
    columns = (device_running.c.slot, device_running.c.target)
    mine = sa.select(*columns, sa.func.count()).join(devices, devices.c.id == device_running.c.device)
    wanted = mine.where(STATE == EnrolmentState.ENROLLED, device_running.c.target != "").group_by(*columns)
    return {(slot, target): count for slot, target, count in connection.execute(wanted)}


def enrolled(connection: Connection, named: Iterable[str]) -> set[str]:
    """Return which of these devices are enrolled."""
    found: set[str] = set()
    for ids in chunks(named):
        mine = sa.select(devices.c.id).where(devices.c.id.in_(ids), STATE == EnrolmentState.ENROLLED)
        found |= set(connection.execute(mine).scalars())
    return found


def expiring(connection: Connection, before: datetime, limit_rows: int) -> dict[str, datetime]:
    """Return enrolled devices whose newest certificate expires before `before`, with that time."""
    statement = _newest.having(_expires < before).limit(limit_rows)
    return _mapped(connection.execute(statement))


def expiries(connection: Connection, named: Iterable[str]) -> dict[str, datetime]:
    """Return when the newest certificates of these devices expire, of those that are enrolled and have one."""
    found: dict[str, datetime] = {}
    for ids in chunks(named):
        mine = _newest.where(certificates.c.device.in_(ids))
        found |= _mapped(connection.execute(mine))
    return found


def stopped(connection: Connection, since: datetime) -> tuple[Stopped, ...]:
    """Return rollouts that are paused, and aborted ones with a fact since `since`.

    Aborted ones include `returning`: their devices are still being rolled back.
    """
    last = (facts.c.rollout == rollouts.c.id) & (facts.c.sequence == rollouts.c.sequence)
    statement = sa.select(rollouts.c.id, rollouts.c.sequence, rollouts.c.state).join_from(rollouts, facts, last)
    recent = rollouts.c.state.in_(["aborted", "returning"]) & (facts.c.at > since)
    found = connection.execute(statement.where((rollouts.c.state == "paused") | recent))
    return tuple(Stopped(*row) for row in found)


def last_stop(connection: Connection, rollout: str, after: int) -> Stop | None:
    """Return the last fact after number `after` that paused or aborted the rollout, or None."""
    text = sa.type_coerce(facts.c.document, sa.Text)
    decisions = sa.or_(*(text.contains(f'"decision":"{word}"', autoescape=True) for word in ("pause", "abort")))
    by_itself = sa.and_(facts.c.kind == "decided", decisions)
    mine = (facts.c.rollout == rollout, facts.c.sequence > after)
    columns = (rollouts.c.id, rollouts.c.name, facts.c.sequence, facts.c.at, facts.c.kind, facts.c.document)
    statement = sa.select(*columns).join_from(facts, rollouts).where(*mine)
    wanted = statement.where(sa.or_(facts.c.kind.in_(["paused", "aborted"]), by_itself))
    row = connection.execute(wanted.order_by(facts.c.sequence.desc()).limit(1)).one_or_none()
    if row is None:
        return None
    return Stop(*row[:4], str(row.document.get("by", "")), str(row.document.get("reason", "")))


_seen_at = sa.type_coerce(
    sa.func.coalesce(device_seen.c.seen, devices.c.enrolled, devices.c.registered), device_seen.c.seen.type
)
_last_seen: sa.Select[Any] = (
    sa.select(devices.c.id, _seen_at)
    .join_from(devices, device_seen, isouter=True)
    .where(STATE == EnrolmentState.ENROLLED)
)
_expires = sa.type_coerce(sa.func.max(certificates.c.expires), certificates.c.expires.type)
_newest: sa.Select[Any] = (
    sa.select(certificates.c.device, _expires)
    .join_from(certificates, devices)
    .where(STATE == EnrolmentState.ENROLLED, certificates.c.revoked.is_(None))
    .group_by(certificates.c.device)
)


def _mapped(found: Iterable[Any]) -> dict[Any, Any]:
    return {row[0]: row[1] for row in found}
