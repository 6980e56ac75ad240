"""JSON form of a specification, both ways, with every bound named. Errors name the key."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from fractions import Fraction
from itertools import pairwise
from typing import Any

from fleet.controller.rollouts.facts_form import read_name
from fleet.controller.rollouts.query_parser import parse
from fleet.controller.rollouts.schedule import SITE, known_zone
from fleet.controller.rollouts.spec import AbortLimit, Canary, OfferWindow, Retries, Rollback, Spec, Success, Wave
from gateway.common.domain.assignment import Target
from gateway.common.domain.document import Table
from gateway.common.domain.policy import blackout_documents, read_blackouts
from gateway.common.domain.release_paths import FORMS, HOLDS, fits_slot, is_slot, parse_path

SCHEMA = 1
WAVES_LIMIT = 100
WINDOWS_LIMIT = 50
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_MIN = 24 * 60
CANARY_LIMIT = 1000
"""Most canaries of one set of accelerators."""
DEVICES_LIMIT = 10_000_000
"""Largest count of a wave and largest minimum sample."""
SOAK_LIMIT_S = 90 * 86_400.0
SILENCE_LOW_S = 60.0
SILENCE_LIMIT_S = 90 * 86_400.0
RETRIES_LIMIT = 20
BACKOFF_LOW_S = 1.0
CONFIDENCE_LOW, CONFIDENCE_HIGH = 0.5, 0.9999
PERCENT_LOW = 0.001
TARGET_LIMIT_BYTES = 2**40
DEFAULTS: Mapping[str, float] = {
    "soak_s": 3600.0,
    "silence_s": 86_400.0,
    "deadline_s": 7 * 86_400.0,
    "confidence": 0.95,
}
"""Values of keys that a document may omit."""


def spec_document(spec: Spec) -> dict[str, Any]:
    """Return a specification as plain values for JSON, with every key."""
    return {
        "schema": SCHEMA,
        "name": spec.name,
        "slot": spec.slot,
        "target": {"path": spec.target.path, "size_bytes": spec.target.size_bytes, "sha256": spec.target.sha256},
        "query": spec.query,
        "canary": _plain(spec.canary) if spec.canary else {},
        "waves": [{key: value for key, value in _plain(wave).items() if value is not None} for wave in spec.waves],
        "soak_s": spec.soak_s,
        "success": _plain(spec.success),
        "abort": _plain(spec.abort),
        "silence_s": spec.silence_s,
        "deadline_s": spec.deadline_s,
        "windows": [_window_document(window) for window in spec.windows],
        "blackouts": blackout_documents(spec.blackouts),
        "retries": _plain(spec.retries),
        "dynamic": spec.dynamic,
        "rollback": spec.rollback.value,
        **({"standing": True} if spec.standing else {}),  # else absent: digests of earlier approvals stay valid
    }


def spec_digest(spec: Spec) -> str:
    """Return the digest that an approval refers to.

    It is the SHA-256 of the document with sorted keys, after it was read back (7 becomes 7.0).
    """
    document = spec_document(read_spec(spec_document(spec)))
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def read_spec(document: Mapping[str, Any], where: str = "the rollout") -> Spec:
    """Read the result of `spec_document`. Raise ConfigurationError that names the key; unknown keys are errors."""
    top = Table(dict(document), file=where)
    top.integer("schema", SCHEMA, low=SCHEMA, high=SCHEMA)
    spec = Spec(
        name=read_name(top, "name"),
        target=(target := _target(top)),
        slot=_slot(top, target),
        query=_query(top),
        canary=_canary(top),
        waves=_waves(top),
        soak_s=top.number("soak_s", DEFAULTS["soak_s"], low=0.0, high=SOAK_LIMIT_S),
        success=_success(top),
        abort=_abort(top),
        silence_s=top.number("silence_s", DEFAULTS["silence_s"], low=SILENCE_LOW_S, high=SILENCE_LIMIT_S),
        deadline_s=top.number("deadline_s", DEFAULTS["deadline_s"], low=SILENCE_LOW_S, high=SILENCE_LIMIT_S),
        windows=_windows(top),
        blackouts=read_blackouts(top),
        retries=_retries(top),
        dynamic=top.flag("dynamic", True),
        rollback=Rollback(top.text("rollback", Rollback.OFFERED.value, among=tuple(r.value for r in Rollback))),
        standing=top.flag("standing", False),
    )
    if spec.standing and not spec.dynamic:
        top.refuse("standing", "devices that match later join a standing rollout; leave out dynamic = false")
    top.finish()
    return spec


def _plain(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}


def _window_document(window: OfferWindow) -> dict[str, Any]:
    return {
        "days": [DAYS[day] for day in window.days],
        "start": f"{window.start_min // 60:02}:{window.start_min % 60:02}",
        "end": f"{window.end_min // 60:02}:{window.end_min % 60:02}",
        "zone": window.zone,
    }


def _section(top: Table, key: str) -> Table:
    section = top.table(key, required=True)
    return section if section is not None else top


def _optional(top: Table, key: str) -> Table | None:
    """Return a section if it exists and is not empty, or None."""
    section = top.table(key)
    return section if section is not None and section.remaining() else None


def _slot(top: Table, target: Target) -> str:
    value = top.text("slot")
    if not is_slot(value):
        top.refuse("slot", f"must be a name of letters, digits, '.', '_' and '-', not {value!r:.80}")
    if not fits_slot(target.path, value):
        top.refuse("slot", f"{value} cannot hold {target.path}; {HOLDS}")
    return value


def _target(top: Table) -> Target:
    table = _section(top, "target")
    path, size = table.text("path"), table.integer("size_bytes", low=0, high=TARGET_LIMIT_BYTES)
    digest = table.text("sha256")
    table.finish()
    try:
        parse_path(path)
    except ValueError:
        table.refuse("path", f"must be {FORMS}, not {path!r:.200}")
    if len(digest) != 64 or set(digest) - set("0123456789abcdef"):
        table.refuse("sha256", f"must be a SHA-256 digest, not {digest!r:.80}")
    return Target(path, size, digest)


def _query(top: Table) -> str:
    query = top.text("query")
    try:
        parse(query)
    except ValueError as error:
        top.refuse("query", str(error))
    return query


def _canary(top: Table) -> Canary | None:
    table = _optional(top, "canary")
    if table is None:
        return None
    canary = Canary(
        table.integer("per_accelerator", low=1, high=CANARY_LIMIT),
        table.number("soak_s", DEFAULTS["soak_s"], low=0.0, high=SOAK_LIMIT_S),
    )
    table.finish()
    return canary


def _waves(top: Table) -> tuple[Wave, ...]:
    tables = top.tables("waves")
    if not 1 <= len(tables) <= WAVES_LIMIT:
        top.refuse("waves", f"must be 1 to {WAVES_LIMIT} waves, not {len(tables)}")
    waves = tuple(_wave(table) for table in tables)
    shares = [Fraction(str(wave.percent)) for wave in waves if wave.percent is not None]
    if any(later <= earlier for earlier, later in pairwise(shares)):
        top.refuse("waves", "percents say how much of all devices is reached, so each must be above the one before")
    if waves[-1].percent != 100:
        top.refuse("waves", "the last must reach all devices: {percent: 100}; narrow the query for fewer")
    return waves


def _wave(table: Table) -> Wave:
    if ("percent" in table) == ("count" in table):
        table.refuse("percent", "a wave has either percent or count")
    percent = table.number("percent", low=PERCENT_LOW, high=100.0) if "percent" in table else None
    count = table.integer("count", low=1, high=DEVICES_LIMIT) if "count" in table else None
    wave = Wave(percent, count, table.flag("needs_approval", False))
    table.finish()
    return wave


def _success(top: Table) -> Success:
    table = _section(top, "success")
    sample = table.integer("min_sample", low=1, high=DEVICES_LIMIT)
    success = Success(sample, table.number("min_percent", low=PERCENT_LOW, high=100.0))
    table.finish()
    return success


def _abort(top: Table) -> AbortLimit:
    table = _section(top, "abort")
    limit = AbortLimit(
        table.integer("min_sample", low=1, high=DEVICES_LIMIT),
        table.number("max_failed_percent", low=0.0, high=100.0),
        table.number("confidence", DEFAULTS["confidence"], low=CONFIDENCE_LOW, high=CONFIDENCE_HIGH),
    )
    table.finish()
    return limit


def _retries(top: Table) -> Retries:
    table, default = _optional(top, "retries"), Retries()
    if table is None:
        return default
    retries = Retries(
        table.integer("limit", low=0, high=RETRIES_LIMIT),
        table.number("backoff_s", default.backoff_s, low=BACKOFF_LOW_S, high=SOAK_LIMIT_S),
        table.number("backoff_limit_s", default.backoff_limit_s, low=BACKOFF_LOW_S, high=SOAK_LIMIT_S),
    )
    table.finish()
    return retries


def _windows(top: Table) -> tuple[OfferWindow, ...]:
    tables = top.tables("windows")
    if len(tables) > WINDOWS_LIMIT:
        top.refuse("windows", f"must be at most {WINDOWS_LIMIT}, not {len(tables)}")
    return tuple(_window(table) for table in tables)


def _window(table: Table) -> OfferWindow:
    named = table.texts("days", DAYS, among=DAYS)
    days = tuple(place for place, day in enumerate(DAYS) if day in named)
    window = OfferWindow(days, _minute(table, "start"), _minute(table, "end"), table.text("zone", "UTC"))
    if not days:
        table.refuse("days", "must name a day; leave it out for all")
    if window.zone != SITE and not known_zone(window.zone):
        table.refuse("zone", f"must be {SITE!r} or a time zone as Europe/Berlin, not {window.zone!r:.80}")
    table.finish()
    return window


def _minute(table: Table, key: str) -> int:
    """Return minutes after midnight. An equal start and end mean the whole day."""
    value = table.text(key)
    hours, colon, minutes = value.partition(":")
    formed = len(value) == 5 and colon and value.isascii() and hours.isdigit() and minutes.isdigit()
    if not (formed and int(minutes) < 60 and int(hours) * 60 + int(minutes) < DAY_MIN):
        table.refuse(key, f"must be a time of day as 22:30, not {value!r:.80}")
    return int(hours) * 60 + int(minutes)
