"""Content of reports to the fleet: changes since the last report, the device's state, and results of updates.

Streams: `updates` (result of each, with evidence), `events` (for operators), `state` (of the device and each slot, on
change), `statistics`, `vitals`. `Priority` decides which records are dropped first without space.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gateway import __version__
from gateway.common.domain.assignment import RESERVED_SLOTS
from gateway.common.domain.errors import UnreachableError
from gateway.device.agent.control import DaemonClient, DaemonRefusedError
from gateway.device.agent.report.report import StatusInput, document
from gateway.device.store.spool_rows import Priority, SpoolRecord, Usage

Document = dict[str, Any]
SMALL = ("slot", "state", "target", "version", "release", "model", "key")
"""Keys that remain of a document that is larger than a record may be."""
SERVED = ("version", "variant", "accelerator", "state", "signed", "weight")
"""Keys of a served version in the state of a slot."""
GONE = "gone"
"""State of a slot that was reported before, has no assignment and serves nothing."""


@dataclass(frozen=True, slots=True)
class ReportInput:
    """Input of a report. Values that the daemon did not answer are None or empty."""

    standing: StatusInput
    status: Document | None = None
    vitals: Document | None = None
    inventory: Document | None = None
    statistics: Mapping[str, Mapping[str, Document]] = field(default_factory=dict)


def observe(standing: StatusInput, control: DaemonClient) -> ReportInput:
    """Return the daemon's answers. After the first failure it is not asked further."""
    status = vitals = inventory = None
    statistics: dict[str, Mapping[str, Document]] = {}
    with suppress(UnreachableError, DaemonRefusedError):
        status, vitals, inventory = control.status(), control.vitals(), control.inventory()
        statistics = {slot: control.statistics(slot) for slot in standing.active.slots if slot not in RESERVED_SLOTS}
    return ReportInput(standing, status, vitals, inventory, statistics)


@dataclass(frozen=True, slots=True)
class Telling:
    """Records to keep, and marks of what was reported."""

    records: tuple[SpoolRecord, ...]
    marks: Mapping[str, str]


def telling(
    observed: ReportInput,
    marks: Mapping[str, str | None],
    usage: Usage,
    now: datetime,
    *,
    refresh_s: float,
    limit_bytes: int,
) -> Telling:
    """Return new records. `marks`: those of `MARKS`, kept with the previous records."""
    ended, keys = _ended(observed, marks, now)
    changed, marks_now = _changed(observed, marks.get("told"), now, refresh_s)
    polled, reason = _polled(observed, marks.get("poll"), now)
    records = [*ended, *polled, *changed, *_statistics(observed, now), *_vitals(observed, usage, now)]
    fitting = tuple(_fitting(record, limit_bytes) for record in records)
    return Telling(fitting, {"told": marks_now, "ended": json.dumps(keys), "poll": reason})


MARKS = ("told", "poll", "ended")
"""`told`: state of the device and its slots. `poll`: result of the last poll. `ended`: keys of updates told before."""


def event(kind: str, now: datetime, **details: Any) -> SpoolRecord:
    """Return an event for operators."""
    return SpoolRecord("events", Priority.EVENT, kind, now, details)


def digest(value: Any) -> str:
    """Return the digest of a JSON value. Different values have different digests."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


# ---- updates ---------------------------------------------------------------------------------------------------------
def _ended(
    observed: ReportInput, marks: Mapping[str, str | None], now: datetime
) -> tuple[list[SpoolRecord], list[str]]:
    """Return updates that ended and were not told, and the keys of all that are in the history.

    The history forgets updates in any order, so each is compared by its key, which is the same if it is sent twice
    (after a lost spool).
    """
    history = document(observed.standing)["history"]
    named = [
        {**entry, "release": u.activation.release} for entry, u in zip(history, observed.standing.finished, strict=True)
    ]
    # an attempt of 0 is left out
    parts = ("slot", "release", "began", "changed", "attempt")
    keys = [digest([entry[name] for name in parts if entry[name] != 0]) for entry in named]
    known = json.loads(marks.get("ended") or "[]")
    records = [
        SpoolRecord("updates", Priority.EVIDENCE, "update", now, {"key": key, **entry})
        for key, entry in zip(keys, named, strict=True)
        if key not in known
    ]
    return records[::-1], keys


def _polled(observed: ReportInput, before: str | None, now: datetime) -> tuple[list[SpoolRecord], str]:
    """Return an event if the result of the last poll differs from the one before."""
    reason = str(observed.standing.polled.get("reason", ""))
    if reason == (before or ""):
        return [], reason
    return [event("poll", now, reason=reason, problem=str(observed.standing.polled.get("problem", "")))], reason


# ---- state -----------------------------------------------------------------------------------------------------------
def _changed(
    observed: ReportInput, marks: str | None, now: datetime, refresh_s: float
) -> tuple[list[SpoolRecord], str]:
    """Return the device and slots whose state changed, or all of them every `refresh_s`."""
    standing = document(observed.standing)
    latest = {f"slot {slot}": _slot_document(slot, status, observed) for slot, status in standing["slots"].items()}
    latest["device"] = _device_document(standing, observed)
    before: Document = json.loads(marks or "{}")
    passed_s = now.timestamp() - before.get("at", 0.0)
    known: Document = before.get("digests", {}) if 0 <= passed_s < refresh_s else {}
    # an assignment whose signature was renewed, without other changes, is not reported
    digests = {name: digest({**value, "assignment": None}) for name, value in latest.items()}
    gone = {
        name: {"slot": name.partition(" ")[2], "state": GONE}
        for name in before.get("digests", {})
        if name not in latest
    }
    fresh = {**gone, **{name: value for name, value in latest.items() if known.get(name) != digests[name]}}
    records = [
        SpoolRecord("state", Priority.STATE, name.partition(" ")[0], now, value) for name, value in fresh.items()
    ]
    at = before["at"] if known else now.timestamp()
    return records, json.dumps({"at": at, "digests": digests})


def _slot_document(slot: str, status: Document, observed: ReportInput) -> Document:
    """Return assignment, progress, commit and serving versions of a slot.

    `told`: the slot in the document of `edge-agent status`.
    """
    accepted = observed.standing.accepted
    assigned = accepted.assignment.slots.get(slot) if accepted else None
    models = (observed.status or {}).get("models", [])
    return {
        "slot": slot,
        "state": _state(slot, status, observed.standing),
        "target": assigned.path if assigned else None,
        "release": assigned.sha256 if assigned else None,
        "assignment": accepted.assignment.version if accepted else None,
        "attempt": accepted.assignment.attempt(slot) if accepted else 0,
        **{key: status[key] for key in ("committed", "previous", "waits_for", "rejected", "held")},
        "step": status["update"]["step"] if status["update"] else None,
        "serving": [{key: model.get(key) for key in SERVED} for model in models if model.get("model") == slot],
    }


def _state(slot: str, status: Document, standing: StatusInput) -> str:
    assigned = standing.accepted.assignment.slots.get(slot) if standing.accepted else None
    ends_first = assigned and any(u.slot == slot and u.activation.release != assigned.sha256 for u in standing.updates)
    if status["update"] and not ends_first:
        return str(status["update"]["state"])
    if status["rejected"]:
        return "rolled_back"
    if status["held"]:
        return "pending"
    committed = status["committed"]
    return "committed" if committed and assigned and committed["release"] == assigned.sha256 else "offered"


def _device_document(own: Document, observed: ReportInput) -> Document:
    """Return facts of the device that seldom change."""
    status = observed.status or {}
    return {
        "state": own["state"],
        "why": own["why"],
        "profile": status.get("profile"),
        "versions": {
            "agent": __version__,
            "gateway": status.get("version"),
            "python": platform.python_version(),
            "kernel": platform.release(),
        },
        "inventory": digest(observed.inventory) if observed.inventory else None,
        "problem": status.get("problem"),
        "files": [{"path": f.target.path, "release": f.target.sha256} for f in observed.standing.active.files],
    }


# ---- numbers ---------------------------------------------------------------------------------------------------------
def _statistics(observed: ReportInput, now: datetime) -> Iterable[SpoolRecord]:
    for slot, versions in observed.statistics.items():
        for version, counters in versions.items():
            document = {**counters, "model": slot, "version": version}
            yield SpoolRecord("statistics", Priority.STATISTICS, "model", now, document)


def _vitals(observed: ReportInput, usage: Usage, now: datetime) -> Iterable[SpoolRecord]:
    spool = {"records": usage.records, "gaps": usage.gaps, "size_bytes": usage.size_bytes}
    status = observed.status or {}
    document = {
        **(observed.vitals or {}),
        "gateway": status.get("instance"),
        "rss_bytes": status.get("rss_bytes"),
        "store_bytes": observed.standing.used_bytes,
        "hardware": observed.standing.hardware,
        "spool": spool,
    }
    yield SpoolRecord("vitals", Priority.VITALS, "vitals", now, document)


def _fitting(record: SpoolRecord, limit_bytes: int) -> SpoolRecord:
    """Return the record, or only its names if it is too large."""
    size = len(json.dumps(record.document, separators=(",", ":")).encode())
    if size <= limit_bytes:
        return record
    left = {key: value for key, value in record.document.items() if key in SMALL and len(str(value)) < 300}
    return SpoolRecord(record.stream, record.priority, record.kind, record.at, {**left, "left_out_bytes": size})
