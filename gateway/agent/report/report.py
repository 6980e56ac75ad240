"""Status of the device: one document for programs, and sentences for operators."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.agent.report.hardware import hardware
from gateway.agent.state.identity import DeviceIdentity
from gateway.agent.state.policy import read_holds
from gateway.agent.state.polled import OUT_OF_REACH, POLLED, SUSPENDED, WAITING
from gateway.agent.state.slot_state import FACTS, SlotState, read_state
from gateway.agent.state.storage import Storage
from gateway.domain.activation import Activation
from gateway.domain.assignment import Assignment
from gateway.domain.update import REPORTED, Failure
from gateway.store.active import Active
from gateway.store.journal import Journal
from gateway.store.journal_rows import Accepted, Update

LINK = "link"
"""Name of the fact: result of the last report to the controller."""
HISTORY = 20
"""Finished updates in the document."""
IN_STEP, UNASSIGNED, UPDATING, WAITS, HELD, BEHIND, REFUSED, UNREACHABLE, NEW = (
    "in-step",
    "unassigned",
    "updating",
    "waiting",
    "held",
    "behind",
    "refused",
    "unreachable",
    "new",
)


@dataclass(frozen=True, slots=True)
class StatusInput:
    """Input of the status document.

    By slot: `rejected`: why an assigned release is not tried again; `held`: changes that a policy holds.
    """

    identity: DeviceIdentity
    active: Active
    accepted: Accepted | None
    updates: tuple[Update, ...]
    finished: tuple[Update, ...]
    polled: Mapping[str, str] = field(default_factory=dict)
    waiting: Mapping[str, str] = field(default_factory=dict)
    rejected: Mapping[str, str] = field(default_factory=dict)
    time_floor: str | None = None
    used_bytes: int = 0
    held: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    link: Mapping[str, Any] = field(default_factory=dict)
    hardware: Mapping[str, list[str]] = field(default_factory=dict)


def read_standing(storage: Storage, identity: DeviceIdentity) -> StatusInput:
    """Return the status data in the store. Raise StoreError."""
    journal, accepted = storage.journal, storage.journal.accepted()
    floor = journal.time_floor()
    reserved = [read_state(journal, slot) for slot in FACTS]
    going = [update for state in reserved if state.wanted and (update := state.update())]
    ended = [update for state in reserved if not state.wanted and (update := state.update())]
    finished = sorted((*journal.finished(HISTORY), *ended), key=lambda one: one.changed_at, reverse=True)
    return StatusInput(
        identity,
        _with_reserved(storage.active(), reserved),
        accepted,
        (*journal.updates(), *going),
        tuple(finished),
        json.loads(journal.fact(POLLED) or "{}"),
        json.loads(journal.fact(WAITING) or "{}"),
        {**_rejected(journal, accepted.assignment), **_not_again(accepted.assignment, reserved)} if accepted else {},
        floor.isoformat() if floor else None,
        storage.blobs.usage_bytes(),
        read_holds(journal),
        json.loads(journal.fact(LINK) or "{}"),
        hardware(),
    )


def _with_reserved(active: Active, states: Iterable[SlotState]) -> Active:
    """Return what is committed with the releases of the reserved slots."""
    slots = dict(active.slots)
    for one in states:
        if one.committed:
            target, release = one.committed
            slots[one.slot] = Activation(one.slot, target, release, (), (), 1)
    return replace(active, slots=slots)


def _not_again(assignment: Assignment, states: Iterable[SlotState]) -> dict[str, str]:
    """Return, by reserved slot, why an assigned release is not tried again."""
    return {one.slot: one.reason for one in states if one.reason and _is_excluded(one, assignment)}


def _is_excluded(state: SlotState, assignment: Assignment) -> bool:
    assigned, tried = assignment.slots.get(state.slot), state.tried
    return bool(assigned and tried and tried.excludes(assigned.sha256, assignment.attempt(state.slot)))


def document(standing: StatusInput) -> dict[str, Any]:
    """Return the document of `edge-agent status --json`; gateway/agent/README.md documents its keys."""
    accepted = standing.accepted.assignment if standing.accepted else None
    state, why = judged(standing)
    return {
        "device": standing.identity.device,
        "state": state,
        "why": why,
        "assignment": _assignment(accepted),
        "slots": {slot: _slot(slot, standing) for slot in _slots(standing, accepted)},
        "files": [file.target.path for file in standing.active.files],
        "last_poll": dict(standing.polled) or None,
        "controller": dict(standing.link) or None,
        "time_floor": standing.time_floor,
        "store_bytes": standing.used_bytes,
        "hardware": dict(standing.hardware),
        "history": [_update(update) for update in standing.finished],
    }


def judged(standing: StatusInput) -> tuple[str, str]:
    """Return the state in one word, and the reason in a sentence."""
    reason, problem = standing.polled.get("reason", ""), standing.polled.get("problem", "")
    if reason == SUSPENDED:
        return SUSPENDED, problem
    if standing.waiting:
        slot, why = next(iter(standing.waiting.items()))
        return WAITS, f"the update of {slot} cannot continue: {why}"
    if standing.updates:
        update = standing.updates[0]
        return UPDATING, f"{update.slot} is being updated to {update.activation.version}: {update.step.value}"
    if problem:
        return (UNREACHABLE if reason in OUT_OF_REACH else REFUSED), problem
    if standing.accepted is None:
        return NEW, "no poll yet; run edge-agent sync"
    if standing.held:
        slot, held = next(iter(standing.held.items()))
        return HELD, f"the {held['change']} of {slot} is held: {held['why']}"
    return _compared(standing, standing.accepted.assignment)


def _compared(standing: StatusInput, assignment: Assignment) -> tuple[str, str]:
    behind = [s for s, target in assignment.slots.items() if _committed(standing, s) != target.sha256]
    if not behind:
        return _unassigned(standing, assignment) or (IN_STEP, "everything that is assigned is committed")
    reason = standing.rejected.get(behind[0])
    because = f": {reason}" if reason else "; run edge-agent sync"
    return BEHIND, f"{behind[0]} does not run what is assigned{because}"


def _unassigned(standing: StatusInput, assignment: Assignment) -> tuple[str, str] | None:
    kept = next((slot for slot in standing.active.slots if slot not in assignment.slots), None)
    if kept is None:
        return None
    target = standing.active.slots[kept].target
    goes_on = "it continues until another release is committed there or its removal is ordered"
    return UNASSIGNED, f"{kept} runs {target}, which is not assigned any more; {goes_on}"


def _committed(standing: StatusInput, slot: str) -> str:
    activation = standing.active.slots.get(slot)
    return activation.release if activation else ""


def _rejected(journal: Journal, assignment: Assignment) -> dict[str, str]:
    """Return why assigned releases are not tried again, by slot."""
    reasons = {s: journal.rejected(s, t.sha256, assignment.attempt(s)) for s, t in assignment.models.items()}
    return {slot: reason for slot, reason in reasons.items() if reason}


def _slots(standing: StatusInput, assignment: Assignment | None) -> list[str]:
    under_way = {update.slot for update in standing.updates}
    return sorted({*standing.active.slots, *under_way, *(assignment.slots if assignment else ())})


def _slot(slot: str, standing: StatusInput) -> dict[str, Any]:
    accepted = standing.accepted
    assigned = accepted.assignment.slots.get(slot) if accepted else None
    update = next((one for one in standing.updates if one.slot == slot), None)
    return {
        "assigned": assigned.path if assigned else None,
        "committed": _activation(standing.active.slots.get(slot)),
        "previous": _activation(standing.active.previous.get(slot)),
        "update": _update(update) if update else None,
        "waits_for": standing.waiting.get(slot),
        "rejected": standing.rejected.get(slot),
        "held": standing.held.get(slot),
    }


def _activation(activation: Activation | None) -> dict[str, Any] | None:
    if activation is None:
        return None
    return {
        "target": activation.target,
        "version": activation.version,
        "release": activation.release,
        "variants": list(activation.variants),
    }


def _update(update: Update) -> dict[str, Any]:
    failure = update.failure
    return {
        "slot": update.slot,
        "target": update.activation.target,
        "version": update.activation.version,
        "step": update.step.value,
        "state": REPORTED[update.step],
        "assignment": update.assignment_version,
        "attempt": update.attempt,
        "began": update.started_at.isoformat(),
        "changed": update.changed_at.isoformat(),
        "failure": _failure(failure) if failure else None,
    }


def _failure(failure: Failure) -> dict[str, Any]:
    return {"step": failure.step.value, "reason": failure.reason, "evidence": dict(failure.evidence)}


def _assignment(assignment: Assignment | None) -> dict[str, Any] | None:
    if assignment is None:
        return None
    return {
        "version": assignment.version,
        "issued": assignment.issued.isoformat(),
        "expires": assignment.expires.isoformat(),
    }
