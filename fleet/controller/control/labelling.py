"""Tags and sites of many devices at once: one transaction, one entry in the audit log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from fleet.controller.audit import Deed
from fleet.controller.control.device_query import filter_of, read_query
from fleet.controller.database import audit, enrolment, labels
from fleet.controller.database.engine import Connection, Database
from fleet.controller.database.errors import ConflictError, RefusedError
from fleet.controller.database.labels import Effect, LabelChange

NAMES_SHOWN = 20
"""Devices that an answer and the audit log name."""

SUBJECT_CHARACTERS = 100
"""Characters of a query in the list of audit entries. The details contain all of it."""


@dataclass(frozen=True, slots=True)
class Order:
    """Change of labels for devices that a query selects, or that are named.

    `expected`: how many devices may change; None: any number.
    """

    change: LabelChange
    query: str = ""
    names: Sequence[str] = ()
    expected: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """Numbers of devices that were selected and that changed, and the first of those that changed.

    `enrolments_void`: unused enrolment tokens that are void because their device lost a tag (0 in a preview).
    """

    selected: int
    changed: int
    devices: Sequence[str]
    enrolments_void: int


def check(order: Order) -> None:
    """Raise RefusedError for an order that names no devices, names them twice, or changes nothing."""
    change = order.change
    if bool(order.query) == bool(order.names):
        raise RefusedError("name the devices either by a query ('all' selects every device) or by their ids")
    if not (change.add or change.remove or change.site is not None):
        raise RefusedError("say what to change: tags to add, tags to remove, or a site")
    if "" in change.add | change.remove:
        raise RefusedError("a tag has at least one character")
    if both := sorted(change.add & change.remove):
        raise RefusedError(f"{both[0]!r:.140} is both added and removed")


def preview(database: Database, order: Order) -> Outcome:
    """Return what `relabel` would do now; nothing changes. Raise RefusedError, AbsentError, AwayError."""
    check(order)
    with database.read() as connection:
        selected, changed = _found(connection, database, order)
    return _outcome(selected, changed, 0)


def relabel(database: Database, order: Order, by: str, now: datetime) -> Outcome:
    """Change all of the devices, or none.

    Raise ConflictError if another number of devices than `expected` would change; RefusedError, AbsentError, AwayError.
    """
    check(order)
    with database.write() as connection:
        enrolment.hold(connection)
        selected, changed = _found(connection, database, order, lock=True)
        if order.expected not in {None, len(changed)}:
            problem = f"{len(changed)} devices would change, not {order.expected}; nothing was changed: preview again"
            raise ConflictError(problem)
        labels.apply(connection, changed, order.change)
        void = enrolment.void_all(connection, (effect.device for effect in changed if effect.lost))
        outcome = _outcome(selected, changed, void)
        if changed:
            subject = order.query[:SUBJECT_CHARACTERS] or f"{len(order.names)} devices"
            change = order.change
            site = {} if change.site is None else {"site": change.site}
            asked = {"query": order.query} if order.query else {}
            labelled = {"add": sorted(change.add), "remove": sorted(change.remove), **site}
            found = {"selected": outcome.selected, "changed": outcome.changed, "devices": list(outcome.devices)}
            audit.append(
                connection,
                Deed(
                    by,
                    "devices.tag",
                    subject,
                    {**asked, **labelled, **found, "enrolments_void": outcome.enrolments_void},
                ),
                now,
            )
    return outcome


def _found(connection: Connection, database: Database, order: Order, *, lock: bool = False) -> tuple[int, list[Effect]]:
    settings = database.settings
    if order.query:
        matching = filter_of(connection, read_query(order.query))
        ids = labels.matching_ids(connection, matching, settings, lock=lock)
    else:
        ids = labels.named_ids(connection, order.names, settings, lock=lock)
    return len(ids), labels.effects(connection, ids, order.change)


def _outcome(selected: int, changed: Sequence[Effect], void: int) -> Outcome:
    return Outcome(selected, len(changed), [effect.device for effect in changed[:NAMES_SHOWN]], void)
