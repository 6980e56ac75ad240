"""Status of the device: one document for programs, and sentences for operators."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gateway.common.domain.activation import Activation
from gateway.common.domain.assignment import Assignment
from gateway.common.domain.update import REPORTED
from gateway.common.store.active import Active
from gateway.device.agent.state.identity import DeviceIdentity
from gateway.device.agent.state.policy import read_holds
from gateway.device.agent.state.polled import OUT_OF_REACH, POLLED, SUSPENDED, WAITING
from gateway.device.agent.state.slot_state import FACTS, SlotState, read_state
from gateway.device.agent.state.storage import Storage
from gateway.device.store.journal import Journal
from gateway.device.store.journal_rows import Accepted, Update

LINK = "link"
"""Name of the fact: result of the last report to the controller."""
BOARD_SERIAL = "sys/firmware/devicetree/base/serial-number"
PRODUCT_UUID, UUID_VARIABLE = "sys/class/dmi/id/product_uuid", "PRODUCT_UUID"
"""Sources of the UUID. Only root may read the file; the service's unit sets the variable."""
PLACEHOLDER = "03000200-0400-0500-0006-000700080009"
"""UUID of boards whose maker set none. Others repeat one or two characters."""
PLACEHOLDER_CHARACTERS = 2
ADAPTERS_LIMIT = 8
DIGEST_CHARACTERS = 16
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
        _rejected(journal, accepted.assignment, reserved) if accepted else {},
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


def document(standing: StatusInput) -> dict[str, Any]:
    """Return the document of `edge-agent status --json`; gateway/device/agent/README.md documents its keys."""
    accepted = standing.accepted.assignment if standing.accepted else None
    slots = {*standing.active.slots, *(one.slot for one in standing.updates), *(accepted.slots if accepted else ())}
    state, why = judged(standing)
    return {
        "device": standing.identity.device,
        "state": state,
        "why": why,
        "assignment": accepted
        and {
            "version": accepted.version,
            "issued": accepted.issued.isoformat(),
            "expires": accepted.expires.isoformat(),
        },
        "slots": {slot: _slot(slot, standing) for slot in sorted(slots)},
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
    runs = {slot: activation.release for slot, activation in standing.active.slots.items()}
    behind = [slot for slot, target in assignment.slots.items() if runs.get(slot) != target.sha256]
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


def _rejected(journal: Journal, assignment: Assignment, states: Iterable[SlotState]) -> dict[str, str]:
    """Return why assigned releases are not tried again, by slot. `states`: those of the reserved slots."""
    reasons = {s: journal.rejected(s, t.sha256, assignment.attempt(s)) for s, t in assignment.models.items()}
    for one in states:
        assigned, tried = assignment.slots.get(one.slot), one.tried
        if assigned and tried and tried.excludes(assigned.sha256, assignment.attempt(one.slot)):
            reasons[one.slot] = one.reason
    return {slot: reason for slot, reason in reasons.items() if reason}


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
        "failure": failure
        and {"step": failure.step.value, "reason": failure.reason, "evidence": dict(failure.evidence)},
    }


# ---- what a copy of this device's storage does not carry -----------------------------------------------------------
def hardware(root: Path = Path("/")) -> dict[str, list[str]]:
    """Return digests by fact, `serial`, `uuid` and `macs`, without the facts that are unknown.

    Left out: placeholders, addresses that software set or drew, and USB adapters, which may move to another device.
    """
    uuid = os.environ.get(UUID_VARIABLE) or _text(root / PRODUCT_UUID)
    facts = {"serial": [_text(root / BOARD_SERIAL)], "uuid": [uuid.lower()]}
    facts["macs"] = sorted(map(_permanent, (root / "sys/class/net").glob("*/device")))[-ADAPTERS_LIMIT:]
    known = {name: [text for text in texts if _is_known(text)] for name, texts in facts.items()}
    return {
        name: [hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARACTERS] for text in texts]
        for name, texts in known.items()
        if texts
    }


def _permanent(device: Path) -> str:
    """Return the address that the maker gave an Ethernet adapter, or ""."""
    adapter = device.parent
    fixed = (_text(adapter / "type"), _text(adapter / "addr_assign_type")) == ("1", "0")
    return _text(adapter / "address") if fixed and "/usb" not in os.path.realpath(device) else ""


def _is_known(text: str) -> bool:
    return text != PLACEHOLDER and len(set(text) - set("-:")) > PLACEHOLDER_CHARACTERS


def _text(file: Path) -> str:
    with suppress(OSError):
        return file.read_bytes().decode("ascii", "replace").strip("\0 \n")
    return ""
