"""JSON form of facts and decisions, both ways. Recorded documents are checked as strictly as those from outside."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

from fleet.controller.rollouts.decisions import (
    Abort,
    Decision,
    Evidence,
    Finish,
    MarkSilent,
    Offer,
    OpenWave,
    Pause,
    Retry,
    RollBack,
)
from fleet.controller.rollouts.facts import (
    Aborted,
    Approved,
    ClockSetBack,
    Created,
    Decided,
    Event,
    Fact,
    Joined,
    Left,
    Paused,
    Reported,
    Resumed,
    RollbackRequested,
    Started,
    Superseded,
    Unattended,
    WaveApproved,
)
from gateway.common.domain.document import Table
from gateway.common.domain.manifest_toml import NAME_PATTERN

TEXT_LIMIT_CHARS = 500
"""Longest name or reason in a fact."""
EVIDENCE_LIMIT = 64
"""Most measurements of one fact."""
ACCELERATORS_LIMIT = 64
NUMBER_LIMIT = 2**53
"""Largest sequence number, wave or attempt: integers up to it are exact in every JSON reader."""
LARGEST = 1e300
"""Largest magnitude of a measurement."""
REPORTED_STATES = ("pending", "offered", "downloading", "probation", "committed", "rolled_back", "failed")
TIME_FORMAT = "%Y-%m-%dT%H:%M:%S.%fZ"
_DIGEST = re.compile(r"[0-9a-f]{64}")

EVENTS: Mapping[str, type[Any]] = {
    "created": Created,
    "approved": Approved,
    "started": Started,
    "paused": Paused,
    "resumed": Resumed,
    "aborted": Aborted,
    "wave_approved": WaveApproved,
    "rollback_requested": RollbackRequested,
    "joined": Joined,
    "left": Left,
    "reported": Reported,
    "superseded": Superseded,
    "clock_set_back": ClockSetBack,
    "unattended": Unattended,
}
"""The `kind` of each event in JSON. A decision has the kind `decided` and its own name in `decision`."""
DECISIONS: Mapping[str, type[Any]] = {
    "open_wave": OpenWave,
    "offer": Offer,
    "retry": Retry,
    "mark_silent": MarkSilent,
    "pause": Pause,
    "roll_back": RollBack,
    "finish": Finish,
    "abort": Abort,
}
DECIDED = "decided"
_EVENT_KINDS = {kind: name for name, kind in EVENTS.items()}
_DECISION_KINDS = {kind: name for name, kind in DECISIONS.items()}


def kind_of(event: Event) -> str:
    """Return the name of an event's kind, which databases index."""
    return DECIDED if isinstance(event, Decided) else _EVENT_KINDS[type(event)]


def event_document(event: Event) -> dict[str, Any]:
    """Return an event as plain values for JSON."""
    if isinstance(event, Decided):
        return {"kind": DECIDED, **decision_document(event.decision)}
    return {"kind": _EVENT_KINDS[type(event)], **_plain(event)}


def decision_document(decision: Decision) -> dict[str, Any]:
    """Return a decision as plain values for JSON."""
    return {"decision": _DECISION_KINDS[type(decision)], **_plain(decision)}


def read_event(document: Mapping[str, Any], where: str = "the event") -> Event:
    """Read the result of `event_document`. Raise ConfigurationError that names the key."""
    table = Table(dict(document), file=where)
    kind = table.text("kind", among=(*EVENTS, DECIDED))
    if kind == DECIDED:
        decision: Decision = _read(DECISIONS[table.text("decision", among=tuple(DECISIONS))], table, document)
        return Decided(decision)
    event: Event = _read(EVENTS[kind], table, document)
    return event


def fact_document(fact: Fact) -> dict[str, Any]:
    """Return a fact as plain values for JSON."""
    return {"seq": fact.seq, "at": _written(fact.at), "event": event_document(fact.event)}


def read_fact(document: Mapping[str, Any], where: str = "the fact") -> Fact:
    """Read the result of `fact_document`. Raise ConfigurationError that names the key."""
    table = Table(dict(document), file=where)
    seq, moment = table.integer("seq", low=1, high=NUMBER_LIMIT), table.time("at", TIME_FORMAT)
    table.table("event", required=True)
    table.finish()
    return Fact(seq, moment, read_event(document["event"], f"{where} {seq}"))


def _plain(value: Any) -> dict[str, Any]:
    fields = {spec.name: getattr(value, spec.name) for spec in dataclasses.fields(value)}
    return {name: _plain_field(field) for name, field in fields.items()}


def _plain_field(field: Any) -> Any:
    if isinstance(field, tuple):
        return list(field)
    if isinstance(field, datetime):
        return _written(field)
    return dict(field) if isinstance(field, Mapping) else field


def _read(kind: type[Any], table: Table, document: Mapping[str, Any]) -> Any:
    """Read a value field by field. A field name means the same in all facts and decisions."""
    values: dict[str, object] = {}
    for spec in dataclasses.fields(kind):
        if spec.name == "evidence":
            values[spec.name] = _evidence(table, document)
        else:
            values[spec.name] = _READERS[spec.name](table, spec.name)
    table.finish()
    return kind(**values)


def _evidence(table: Table, document: Mapping[str, Any]) -> Evidence:
    table.table("evidence", required=True)
    evidence: Mapping[str, Any] = document["evidence"]
    if len(evidence) > EVIDENCE_LIMIT:
        table.refuse("evidence", f"must have at most {EVIDENCE_LIMIT} entries, not {len(evidence)}")
    for name, value in evidence.items():
        if not (0 < len(name) <= TEXT_LIMIT_CHARS and _measured(value)):
            table.refuse("evidence", f"{name!r:.80} must be a finite number or a short text, not {value!r:.80}")
    return dict(evidence)


def _measured(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= TEXT_LIMIT_CHARS
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= LARGEST


def _text(table: Table, key: str) -> str:
    value = table.text(key)
    if len(value) > TEXT_LIMIT_CHARS:
        table.refuse(key, f"must have at most {TEXT_LIMIT_CHARS} characters, not {len(value)}")
    return value


def read_name(table: Table, key: str) -> str:
    """Return the text of a key, which is a name. Raise ConfigurationError."""
    value = table.text(key)
    if not NAME_PATTERN.fullmatch(value):
        table.refuse(key, f"must be a name of letters, digits, '.', '_' and '-', not {value!r:.80}")
    return value


def _digest(table: Table, key: str) -> str:
    value = table.text(key)
    if not _DIGEST.fullmatch(value):
        table.refuse(key, f"must be a SHA-256 digest, not {value!r:.80}")
    return value


def _names(table: Table, key: str) -> tuple[str, ...]:
    values = table.texts(key)
    if len(values) > ACCELERATORS_LIMIT or not all(NAME_PATTERN.fullmatch(value) for value in values):
        table.refuse(key, f"must be at most {ACCELERATORS_LIMIT} names")
    return values


def _written(moment: datetime) -> str:
    return moment.astimezone(timezone.utc).strftime(TIME_FORMAT)


def _number(table: Table, key: str) -> int:
    return table.integer(key, low=0, high=NUMBER_LIMIT)


_READERS: Mapping[str, Callable[[Table, str], object]] = {
    "rollout": read_name,
    "device": read_name,
    "by": _text,
    "reason": _text,
    "zone": _text,
    "since": lambda table, key: table.time(key, TIME_FORMAT),
    "spec": _digest,
    "release": _digest,
    "accelerators": _names,
    "state": lambda table, key: table.text(key, among=REPORTED_STATES),
    "halt": lambda table, key: table.flag(key),
    "suspended": lambda table, key: table.flag(key, default=False),
    "wave": _number,
    "attempt": _number,
}
