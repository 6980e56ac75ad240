"""Devices' reports on their slots, as values: what runs, its health, and its meaning to a rollout. Pure.

Devices may send anything: a malformed value is left out, and a report that names no release is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fleet.controller.control.identity_use import FACTS
from fleet.controller.database.devices import Running
from fleet.controller.database.events import Event
from fleet.controller.database.ingestion import Row
from fleet.controller.rollouts.facts import Reported
from fleet.controller.rollouts.facts_form import EVIDENCE_LIMIT, LARGEST, REPORTED_STATES, TEXT_LIMIT_CHARS
from gateway.common.domain.assignment import ATTEMPT_LIMIT
from gateway.common.domain.manifest_toml import DIGEST_PATTERN, NAME_PATTERN
from gateway.common.domain.release_paths import is_slot

STATE, UPDATES, VITALS = "state", "updates", "vitals"
"""Streams (gateway/device/agent/README.md, "Telemetry")."""
SLOT, DEVICE = "slot", "device"
"""Kinds of rows of the stream `state`."""
GONE, COMMITTED, ROLLED_BACK = "gone", "committed", "rolled_back"
ROLLBACK, UPDATE, MOVED = "rollback", "update", "moved"
"""Kinds of events."""
PATH_LIMIT_CHARS = 512
DIGESTS_LIMIT = 16
"""Digests of one fact about the hardware."""
ASSIGNMENT_LIMIT = 2**53 - 1
"""Greatest version of an assignment that a report may name: every JSON reader holds it exactly."""

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Made:
    """A report, and the version of the assignment that the device had then (0: it does not say)."""

    report: Reported
    assignment: int = 0


@dataclass(frozen=True, slots=True)
class SlotReport:
    """Report of a device on a slot. `running` None: the slot is gone. `made` None: it answers no offer."""

    slot: str
    running: Running | None
    made: Made | None


@dataclass(frozen=True, slots=True)
class Health:
    """Health of a device, as the device reports it."""

    state: str
    details: Mapping[str, object]
    profile: str


def slot_report(device: str, document: Document, at: datetime) -> SlotReport | None:
    """Read a row of stream `state`, kind `slot`; return None if it names no slot."""
    slot = _slot(document)
    if not slot:
        return None
    if document.get("state") == GONE:
        return SlotReport(slot, None, None)
    committed = document.get("committed")
    there: Document = committed if isinstance(committed, Mapping) else {}
    digest = there.get("release")
    known = isinstance(digest, str) and DIGEST_PATTERN.fullmatch(digest) is not None
    variant, accelerator = _served(document, name(there.get("version")))
    return SlotReport(
        slot,
        Running(
            slot,
            path(there.get("target")) if known else "",
            str(digest) if known else "",
            variant,
            accelerator,
            word(document.get("state")),
            at,
        ),
        reported(device, document),
    )


def reported(device: str, document: Document) -> Made | None:
    """Return what a slot's state, or the end of an update, means to a rollout; None: nothing.

    A device that reports success is recorded with the digest that it says it committed, whatever it was assigned.
    """
    state = document.get("state")
    committed = document.get("committed")
    spoken = committed.get("release") if state == COMMITTED and isinstance(committed, Mapping) else None
    release = spoken or document.get("release")
    if state not in REPORTED_STATES or not (isinstance(release, str) and DIGEST_PATTERN.fullmatch(release)):
        return None
    report = Reported(device, state, release, _attempt(document), _reason(document), _evidence(document))
    return Made(report, _counted(document, "assignment", ASSIGNMENT_LIMIT))


def health(document: Document) -> Health | None:
    """Read a row of stream `state`, kind `device`; return None if it says no state."""
    state = word(document.get("state"))
    if not state:
        return None
    versions = document.get("versions")
    known = versions if isinstance(versions, Mapping) else {}
    details = {
        "why": text(document.get("why")),
        "problem": text(document.get("problem")),
        "versions": {key: text(known.get(key)) for key in ("agent", "gateway", "python", "kernel") if known.get(key)},
    }
    return Health(state, {key: value for key, value in details.items() if value}, name(document.get("profile")))


def hardware(document: Document) -> dict[str, list[str]]:
    """Return the digests of the device's hardware in a row of stream `vitals`; {} if it reports none."""
    facts = document.get("hardware")
    listed = {fact: facts.get(fact) for fact in FACTS} if isinstance(facts, Mapping) else {}
    bounded = {fact: found[:DIGESTS_LIMIT] for fact, found in listed.items() if isinstance(found, list)}
    return {fact: digests for fact, found in bounded.items() if (digests := [*filter(None, map(word, found))])}


def update_event(device: str, row: Row) -> Event | None:
    """Return the end of an update as an event for operators; None if it cannot be told from others."""
    document, key = row.document, word(row.document.get("key"))
    state = document.get("state")
    if not key or state not in {COMMITTED, ROLLED_BACK}:
        return None
    kept = {
        "version": name(document.get("version")),
        "release": word(document.get("release")),
        "state": state,
        "attempt": _attempt(document),
        "step": word(document.get("step")),
        "began": word(document.get("began"), 40),
        "changed": word(document.get("changed"), 40),
        "reason": _reason(document),
        "evidence": dict(_evidence(document)),
    }
    kind = ROLLBACK if state == ROLLED_BACK else UPDATE
    target = path(document.get("target"))
    return Event(device, key, row.at, kind, _slot(document), target, document=kept)


def name(value: object) -> str:
    """Return `value` if it is a name, otherwise ""."""
    return value if isinstance(value, str) and NAME_PATTERN.fullmatch(value) else ""


def path(value: object) -> str:
    """Return `value` if it is a path in the repository, otherwise ""."""
    fits = isinstance(value, str) and len(value) <= PATH_LIMIT_CHARS
    return str(value) if fits and all(NAME_PATTERN.fullmatch(part) for part in str(value).split("/")) else ""


def word(value: object, limit_chars: int = 64) -> str:
    """Return `value` if it is short and of plain characters, otherwise ""."""
    return value if isinstance(value, str) and len(value) <= limit_chars and _PLAIN.fullmatch(value) else ""


def text(value: object, limit_chars: int = TEXT_LIMIT_CHARS) -> str:
    """Return text of a device on one line that cannot control a terminal; "" if `value` is not text."""
    if not isinstance(value, str):
        return ""
    return "".join(c if c.isprintable() else " " for c in value[:limit_chars])


_PLAIN = re.compile(r"[A-Za-z0-9._:+/-]+")


def _slot(document: Document) -> str:
    slot = document.get("slot")
    return str(slot) if is_slot(slot) else ""


def _served(document: Document, version: str) -> tuple[str, str]:
    """Return variant and accelerator of the committed version."""
    serving = document.get("serving")
    for one in serving[:16] if isinstance(serving, list) else []:
        if isinstance(one, Mapping) and version and one.get("version") == version:
            return name(one.get("variant")), name(one.get("accelerator"))
    return "", ""


def _attempt(document: Document) -> int:
    return _counted(document, "attempt", ATTEMPT_LIMIT)


def _counted(document: Document, name: str, limit: int) -> int:
    number = document.get(name)
    return number if type(number) is int and 0 <= number <= limit else 0


def _reason(document: Document) -> str:
    """Return the first reason that the device gives for not being done."""
    failure, held = document.get("failure"), document.get("held")
    reasons = [failure.get("reason") if isinstance(failure, Mapping) else None, document.get("rejected")]
    reasons += [held.get("why") if isinstance(held, Mapping) else None, document.get("waits_for")]
    return next((found for one in reasons if (found := text(one))), "")


def _evidence(document: Document) -> dict[str, float | int | str]:
    """Return the measurements of a failure, as facts keep them: flat, finite, bounded."""
    failure = document.get("failure")
    evidence = failure.get("evidence") if isinstance(failure, Mapping) else None
    if not isinstance(evidence, Mapping):
        return {}
    found: dict[str, float | int | str] = {}
    for key, value in list(evidence.items())[:EVIDENCE_LIMIT]:
        named = text(key)
        if isinstance(value, str):
            found[named] = text(value)
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= LARGEST:
            found[named] = value
    found.pop("", None)
    return found
