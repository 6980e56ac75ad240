"""Records of the journal, as values and as rows of its tables."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from gateway.common.domain.activation import Activation, activation_document, read_activation
from gateway.common.domain.assignment import Assignment, Target
from gateway.common.domain.python310 import from_iso
from gateway.common.domain.routing import version_order
from gateway.common.domain.update import REVOCABLE, Failure, Step

_TIME = "time"
"""Name of the time floor's row, in seconds since 1970, among those of roles and documents."""
UPDATE_COLUMNS = "slot, activation, step, assignment_version, started_at, content"


@dataclass(frozen=True, slots=True)
class Floors:
    """Lower limits of accepted versions: `numbers` by metadata role or document, `versions` by model; and of `time`."""

    numbers: Mapping[str, int] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    time: datetime | None = None


@dataclass(frozen=True, slots=True)
class Accepted:
    """Last accepted assignment, the signed `content` that it was read from, and the SHA-256 of that content."""

    assignment: Assignment
    content: bytes
    digest: str


@dataclass(frozen=True, slots=True)
class Update:
    """Update of a slot. `step` is in progress, or the final one; times are UTC.

    `attempt`: the number that its assignment states (0: none).
    """

    activation: Activation
    step: Step
    assignment_version: int
    started_at: datetime
    changed_at: datetime
    failure: Failure | None = None
    attempt: int = 0

    @property
    def slot(self) -> str:
        """Return the model's name on this device."""
        return self.activation.slot


@dataclass(frozen=True, slots=True)
class Rejection:
    """Release that did not pass on this device, at this attempt."""

    slot: str
    release: str
    reason: str
    attempt: int = 0


def floors(numbers: Mapping[str, int], versions: Mapping[str, str]) -> Floors:
    """Build the floors from the rows of both tables."""
    time_s = numbers.get(_TIME)
    others = {name: value for name, value in numbers.items() if name != _TIME}
    return Floors(others, versions, None if time_s is None else datetime.fromtimestamp(time_s, timezone.utc))


def lifted(known: Floors, seen: Floors) -> tuple[dict[str, int], dict[str, str]]:
    """Return the rows of both tables that rise because `seen` is above `known`. No row falls."""
    if _TIME in seen.numbers:
        raise ValueError(f"{_TIME!r} is the time floor's own name")
    numbers = {name: value for name, value in seen.numbers.items() if value > known.numbers.get(name, -1)}
    if seen.time and (known.time is None or seen.time > known.time):
        numbers[_TIME] = int(seen.time.timestamp())
    versions = {
        name: version
        for name, version in seen.versions.items()
        if name not in known.versions or version_order(version) > version_order(known.versions[name])
    }
    return numbers, versions


def may_follow(step: Step, following: Step) -> bool:
    """Return True if `following` may be recorded after `step`; every step but the rollback may be recorded again."""
    if step in REVOCABLE:
        return following in REVOCABLE or following is Step.COMMIT
    return following is step or (step is Step.COMMIT and following is Step.RETIRE)


def row(update: Update) -> tuple[str, str, str, int, str, str]:
    """Return the values in the order of UPDATE_COLUMNS."""
    failure = update.failure
    content = {
        "changed_at": time_text(update.changed_at),
        "failure": failure
        and {"step": failure.step.value, "reason": failure.reason, "evidence": dict(failure.evidence)},
        "attempt": update.attempt,
    }
    return (
        update.slot,
        json.dumps(activation_document(update.activation)),
        update.step.value,
        update.assignment_version,
        time_text(update.started_at),
        json.dumps(content),
    )


def update(found: sqlite3.Row) -> Update:
    """Read the output of `row`. Raises ValueError, TypeError or KeyError for anything else."""
    content = json.loads(found["content"])
    failure = content["failure"]
    return Update(
        activation=read_activation(json.loads(found["activation"])),
        step=Step(found["step"]),
        assignment_version=found["assignment_version"],
        started_at=_time(found["started_at"]),
        changed_at=_time(content["changed_at"]),
        failure=failure and Failure(Step(failure["step"]), failure["reason"], failure["evidence"]),
        attempt=content["attempt"],
    )


def assignment_text(assignment: Assignment) -> str:
    """Return the assignment as JSON. Unknown fields of `extra` are only in the signed content."""
    attempts = {slot: number for slot in assignment.slots if (number := assignment.attempt(slot))}
    extra = {"attempts": attempts, "diagnostics": assignment.diagnostics}
    return json.dumps(
        {
            "device": assignment.device,
            "version": assignment.version,
            "issued": time_text(assignment.issued),
            "expires": time_text(assignment.expires),
            "slots": {slot: _target_document(target) for slot, target in assignment.slots.items()},
            "files": [_target_document(target) for target in assignment.files],
            "nonce": assignment.nonce,
            "poll_s": assignment.poll_s,
            "extra": {name: value for name, value in extra.items() if value},
        }
    )


def accepted(found: sqlite3.Row) -> Accepted:
    """Read the output of `assignment_text`. Raises ValueError, TypeError or KeyError for anything else."""
    document = json.loads(found["document"])
    assignment = Assignment(
        device=document["device"],
        version=document["version"],
        issued=_time(document["issued"]),
        expires=_time(document["expires"]),
        slots={slot: _target(entry) for slot, entry in document["slots"].items()},
        files=tuple(_target(entry) for entry in document["files"]),
        nonce=document["nonce"],
        poll_s=document["poll_s"],
        extra=document["extra"],
    )
    return Accepted(assignment, bytes(found["content"]), found["digest"])


def time_text(moment: datetime) -> str:
    """Return ISO 8601 in UTC with a fixed length: the text sorts by time."""
    return moment.astimezone(timezone.utc).isoformat(timespec="microseconds")


def _time(text: str) -> datetime:
    return from_iso(text)


def _target_document(target: Target) -> dict[str, Any]:
    return {"path": target.path, "bytes": target.size_bytes, "sha256": target.sha256}


def _target(document: Mapping[str, Any]) -> Target:
    return Target(document["path"], document["bytes"], document["sha256"])
