"""Operators' actions on rollouts: each is a recorded fact, and is refused if it would have no effect."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from fleet.controller.audit import Deed
from fleet.controller.control.catalogue import resolve, usable
from fleet.controller.control.rollouts_record import RecordedRollout, States, add, live_rollouts
from fleet.controller.control.settings import SchedulerSettings
from fleet.controller.control.wake_hints import Hints
from fleet.controller.database import audit, rollouts
from fleet.controller.database.engine import Connection, Database
from fleet.controller.database.errors import ConflictError, RefusedError
from fleet.controller.database.rollouts import DRAFT, StoredRollout
from fleet.controller.rollouts.facts import Approved, Created, Event, Resumed, Started
from fleet.controller.rollouts.fold import refusal
from fleet.controller.rollouts.query import And, FieldMatch, Operator, Query
from fleet.controller.rollouts.query_parser import parse, query_text
from fleet.controller.rollouts.spec import Spec
from fleet.controller.rollouts.spec_form import read_spec, spec_digest, spec_document
from fleet.publisher.workspace import Workspace
from gateway.common.domain.errors import ConfigurationError

GLOB = frozenset("*?")
STANDING_LIMIT = 48
"""Most standing rollouts: the leader keeps the state of each in memory (`rollouts_record.STATES_LIMIT`)."""
Permit = Callable[[RecordedRollout], None]
"""Check that raises if the caller may not do this to the rollout."""


@dataclass(frozen=True, slots=True)
class Rollouts:
    """Context of operations on rollouts.

    `workspace`: the publisher's folder. `due`: set if the scheduler should evaluate rollouts at once. `hints`: devices
    for which there is something new.
    """

    database: Database
    workspace: Workspace
    settings: SchedulerSettings
    states: States
    due: threading.Event = field(default_factory=threading.Event)
    hints: Hints = field(default_factory=lambda: Hints(0))


@dataclass(frozen=True, slots=True)
class Word:
    """Action of an operator. `deed` names it in the audit log, with `details`."""

    event: Event
    deed: str
    by: str
    details: Mapping[str, object]


def drafted(connection: Connection, document: Mapping[str, Any], scope: Collection[str] = ()) -> Spec:
    """Return a specification with its release resolved and its query narrowed to `scope` (tags; empty: all devices).

    Its target may be a name (`acme/meter-reader/2`). Raise RefusedError that names what is wrong, ConflictError for a
    release that must not be assigned.
    """
    named = document.get("target")
    target = resolve(connection, str(named.get("path", "") if isinstance(named, Mapping) else named))
    found = {"path": target.path, "size_bytes": target.size_bytes, "sha256": target.sha256}
    if isinstance(named, Mapping) and dict(named) != {key: found.get(key) for key in named}:
        published = f"{target.path} is published with {target.size_bytes} bytes and the sha256 {target.sha256}"
        raise RefusedError(f"target: {published}, not as the specification says; name its path only, or those")
    try:
        spec = read_spec({**document, "target": found})
        query = within(parse(spec.query), scope)
        return read_spec(spec_document(replace(spec, query=query)))
    except ConfigurationError as error:
        raise RefusedError(str(error)) from None


def create(rolling: Rollouts, spec: Spec, by: str, now: datetime) -> RecordedRollout:
    """Create a draft. Raise AwayError."""
    rollout = f"r{now:%y%m%d-%H%M%S}-{secrets.token_hex(3)}"
    row = (rollout, spec.name, spec.slot, spec.target.path, DRAFT, spec_document(spec), now, by)
    stored, settings = StoredRollout(*row), rolling.database.settings
    with rolling.database.write() as connection:
        rollouts.create(connection, stored)
        known = rolling.states.read(connection, rollout, settings, lock=True)
        known = add(connection, known, [Created(rollout, by)], now, settings)
        audit.append(connection, Deed(by, "rollouts.create", rollout, {"spec": spec_digest(spec)}), now)
    return known


def revise(rolling: Rollouts, rollout: str, spec: Spec, by: str, now: datetime, *, permit: Permit) -> RecordedRollout:
    """Replace the specification of a draft.

    Raise ConflictError if the rollout is no longer a draft, AbsentError, AwayError, and what `permit` raises.
    """
    settings = rolling.database.settings
    with rolling.database.write() as connection:
        permit(rolling.states.read(connection, rollout, settings, lock=True))
        target, document = spec.target.path, spec_document(spec)
        rollouts.revise(connection, rollout, name=spec.name, slot=spec.slot, target=target, spec=document, by=by)
        audit.append(connection, Deed(by, "rollouts.revise", rollout, {"spec": spec_digest(spec)}), now)
        return rolling.states.read(connection, rollout, settings)


def say(rolling: Rollouts, rollout: str, word: Word, now: datetime, *, permit: Permit) -> RecordedRollout:
    """Record an operator's action; the scheduler then evaluates the rollouts at once.

    Raise ConflictError if the action would have no effect, or the release must not be assigned any more; AbsentError,
    AwayError, and what `permit` raises.
    """
    settings = rolling.database.settings
    with rolling.database.read() as connection:  # reads most of the facts without a lock
        rolling.states.keep(rolling.states.read(connection, rollout, settings))
    with rolling.database.write() as connection:
        known = rolling.states.read(connection, rollout, settings, lock=True)
        permit(known)
        if known.stored.archived is not None:
            remedy = f"restore it first: edge-fleet rollouts restore {known.stored.id}"
            raise ConflictError(f"the rollout {known.stored.id} is archived; {remedy}")
        if why := refusal(known.spec, known.state, word.event):
            raise ConflictError(f"the rollout {known.stored.id}: {why}")
        if isinstance(word.event, Started) and known.spec.standing:
            standing = sum(bool(one.spec.get("standing")) for one in live_rollouts(connection, settings))
            if standing >= STANDING_LIMIT:
                remedy = "abort one that is no longer needed: edge-fleet rollouts list --state standing"
                raise ConflictError(
                    f"there are {standing} standing rollouts, and {STANDING_LIMIT} is the most; {remedy}"
                )
        if isinstance(word.event, (Approved, Started, Resumed)) and (why := usable(connection, known.spec.target.path)):
            raise ConflictError(f"the rollout {known.stored.id} cannot go on: {why}")
        known = add(connection, known, [word.event], now, settings)
        audit.append(connection, Deed(word.by, word.deed, rollout, word.details), now)
    rolling.database.after_commit(lambda: rolling.states.keep(known))
    rolling.database.after_commit(rolling.due.set)
    return known


# ---- scopes by tag


def within(query: Query, scope: Collection[str]) -> str:
    """Return the query as text, limited to devices of the scope; an approver sees the limit.

    Raise RefusedError for a scope that a query cannot express.
    """
    if not scope or covers(scope, query):
        return query_text(query)
    plain = sorted(tag for tag in scope if not GLOB & set(tag))
    if not plain:
        raise RefusedError("no tag of this token's scope can stand in a query: each holds '*' or '?'")
    tags = FieldMatch("tag", Operator.EQUAL, tuple(plain))
    return query_text(And((tags, *(query.parts if isinstance(query, And) else (query,)))))


def covers(scope: Collection[str], query: Query) -> bool:
    """Return whether a caller with this scope (empty: all) covers every device that the query can match.

    It does if the query demands one of the scope's tags.
    """
    parts = query.parts if isinstance(query, And) else (query,)
    return not scope or any(_demands(part, scope) for part in parts)


def _demands(part: Query, scope: Collection[str]) -> bool:
    if not isinstance(part, FieldMatch) or (part.field, part.operator) != ("tag", Operator.EQUAL):
        return False
    return all(value in scope and not GLOB & set(value) for value in part.values)
