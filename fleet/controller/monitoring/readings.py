"""Readings for alert rules, made from telemetry. Pure except for `Samples`; input from devices is untrusted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from fleet.controller.database.tail import ReceivedRow
from fleet.controller.monitoring.alert_rules import AlertRule, RuleValue
from fleet.controller.monitoring.documents import count, mapping, number, numbers, text
from fleet.controller.monitoring.settings import AlertSettings
from fleet.controller.monitoring.slot_samples import Samples
from gateway.common.terminal.tables import counted

SILENT, ERRORS, TEMPERATURE, ROLLBACK, HALTED, CERTIFICATE, CLOCK, REPOSITORY, BARRED, REMOVAL, IDENTITY = (
    "silent",
    "errors",
    "temperature",
    "rollback",
    "halted",
    "certificate",
    "clock",
    "repository",
    "barred",
    "removal",
    "identity",
)
RULES = (SILENT, ERRORS, TEMPERATURE, ROLLBACK, HALTED, CERTIFICATE, CLOCK, REPOSITORY, BARRED, REMOVAL, IDENTITY)
VITALS, STATISTICS, UPDATES, STATE = "vitals", "statistics", "updates", "state"
WITHDRAW = "withdraw"
"""State of a waiting removal in devices' reports."""
GAVE_UP = frozenset({"rolled_back", "failed"})
COMMITTED = "committed"


def rules(settings: AlertSettings) -> Mapping[str, AlertRule]:
    """Return the active rules. Units: seconds, percent, °C, days; 1 or 0 for conditions."""
    lasts_s = settings.lasts_s
    hot = settings.temperature_c
    known = {
        SILENT: (settings.silent_s, AlertRule(settings.silent_s, settings.silent_s)),
        ERRORS: (settings.error_percent, AlertRule(settings.error_percent, settings.error_percent / 2, 0.0, lasts_s)),
        TEMPERATURE: (hot, AlertRule(hot, hot - settings.temperature_margin_c, settings.temperature_s, lasts_s)),
        ROLLBACK: (settings.rollback, AlertRule(0.5, 0.5, 0.0, lasts_s)),
        HALTED: (settings.halted, AlertRule(0.5, 0.5, 0.0, lasts_s)),
        CERTIFICATE: (settings.certificate_d, AlertRule(0.0, 0.0)),
        CLOCK: (settings.clock_s, AlertRule(settings.clock_s, settings.clock_s / 2, 0.0, lasts_s)),
        REPOSITORY: (settings.repository_d, AlertRule(0.0, 0.0, 0.0, lasts_s)),
        BARRED: (settings.barred, AlertRule(0.5, 0.5)),
        REMOVAL: (settings.removal, AlertRule(0.5, 0.5, 0.0, lasts_s)),
        IDENTITY: (settings.identity_s, AlertRule(0.5, 0.5)),
    }
    return {name: replace(rule, calm_s=settings.calm_s) for name, (on, rule) in known.items() if on}


def rule_values(rows: Iterable[ReceivedRow], samples: Samples) -> Iterator[RuleValue]:
    """Yield the readings of telemetry rows, in their order."""
    for received in rows:
        if received.stream == VITALS:
            yield from _vitals(received)
        elif received.stream == STATISTICS:
            yield from _statistics(received, samples)
        elif received.stream == UPDATES:
            yield from _updates(received)
        elif received.stream == STATE:
            yield from _state(received)


def silent(device: str, since: datetime, now: datetime) -> RuleValue:
    """Return the reading of a device that polled last at `since`."""
    age_s = (now - since).total_seconds()
    summary = f"{device} has not polled since {since:%Y-%m-%d %H:%M:%S} UTC"
    return RuleValue(SILENT, device, "", age_s, now, summary, {"seen": since.isoformat()})


def certificate(device: str, expires: datetime, now: datetime, notice_d: float) -> RuleValue:
    """Return the reading of a device's newest certificate. The value: days within the notice period."""
    left_d = (expires - now).total_seconds() / 86_400
    summary = f"the certificate of {device} expires on {expires:%Y-%m-%d %H:%M} UTC and was not renewed"
    return RuleValue(CERTIFICATE, device, "", notice_d - left_d, now, summary, {"expires": expires.isoformat()})


def halted(rollout: str, name: str, reason: str, now: datetime, *, still: bool) -> RuleValue:
    """Return the reading of a rollout that stopped automatically. `still`: it was neither resumed nor ended since."""
    summary = f"the rollout {name:.100} stopped: {reason:.300}" if still else ""
    return RuleValue(HALTED, "", rollout, float(still), now, summary, {"rollout": rollout, "name": name})


def repository(role: str, expires: datetime, now: datetime, notice_d: float, remedy: str) -> RuleValue:
    """Return the reading of a signed role. The value: days within the notice period."""
    left_d = (expires - now).total_seconds() / 86_400
    summary = f"{role} expires on {expires:%Y-%m-%d %H:%M} UTC: {remedy}"
    return RuleValue(REPOSITORY, "", role, notice_d - left_d, now, summary, {"expires": expires.isoformat()})


def barred(target: str, devices: int, why: str, now: datetime) -> RuleValue:
    """Return the reading of a release that is no longer installed. The value: devices that still run it."""
    summary = f"{counted(devices, 'device')} run {target}: {why}; a rollout of another release moves them"
    return RuleValue(BARRED, "", target, float(devices), now, summary, {"target": target, "devices": devices})


def identity(device: str, machine: Mapping[str, Any] | None, now: datetime) -> RuleValue:
    """Return the reading of a device's identity. `machine` None: only one machine uses it."""
    summary = f"identity used twice: two machines report as {device:.140}; enrol one of them under another name"
    facts = machine or {}
    evidence = {name: facts.get(name) for name in ("hardware", "before", "boot", "ended")}
    return RuleValue(IDENTITY, device, "", float(machine is not None), now, summary, evidence)


def _vitals(received: ReceivedRow) -> Iterator[RuleValue]:
    """Yield readings of vitals, with the controller's time.

    Rows that a device stored while it was offline do not show how long a condition lasted.
    """
    zones = sorted(
        ((celsius, zone) for zone, celsius in numbers(mapping(received.row.document).get("temperatures_c"))),
        reverse=True,
    )
    if zones:
        celsius, zone = zones[0]
        summary = f"{received.device} has {celsius:.1f} °C in {zone or 'a zone'}"
        details = {"zone": zone, "celsius": celsius}
        yield RuleValue(TEMPERATURE, received.device, "", celsius, received.received, summary, details)
    ahead_s = (received.row.at - received.received).total_seconds()
    summary = f"the clock of {received.device} is {ahead_s:.0f} s ahead"
    yield RuleValue(CLOCK, received.device, "", max(ahead_s, 0.0), received.received, summary, {"ahead_s": ahead_s})


def _statistics(received: ReceivedRow, samples: Samples) -> Iterator[RuleValue]:
    document = mapping(received.row.document)
    slot, version = text(document.get("model")), text(document.get("version"))
    requests, failed = count(document.get("requests")), count(document.get("failed_runs"))
    if not slot or requests is None or failed is None:
        return
    sample = samples.take(received.device, slot, version, (requests, failed))
    if sample is not None:
        summary = f"{sample.percent:.1f} % of {sample.requests} requests of {slot} on {received.device} failed"
        evidence = {"requests": sample.requests, "failed_runs": sample.failed, "version": version}
        yield RuleValue(ERRORS, received.device, slot, sample.percent, received.received, summary, evidence)


def _updates(received: ReceivedRow) -> Iterator[RuleValue]:
    document = mapping(received.row.document)
    slot, state = text(document.get("slot")), text(document.get("state"))
    if not slot or state not in {*GAVE_UP, COMMITTED}:
        return
    failure = mapping(document.get("failure"))
    reason, step = text(failure.get("reason")), text(failure.get("step"))
    target, version = text(document.get("target")), text(document.get("version"))
    summary = f"{received.device} gave up {slot} {version}: {reason or state}"
    measured = dict(_measured(failure.get("evidence")))
    evidence = {"state": state, "target": target, "version": version, "step": step, "reason": reason, **measured}
    yield RuleValue(ROLLBACK, received.device, slot, float(state in GAVE_UP), received.received, summary, evidence)


def _state(received: ReceivedRow) -> Iterator[RuleValue]:
    """Yield whether a slot waits to be emptied: a holder of a stolen director's key may have ordered that."""
    document = mapping(received.row.document)
    slot, held = text(document.get("slot")), mapping(document.get("held"))
    if not slot:
        return
    why, target = text(held.get("why")), text(mapping(document.get("committed")).get("target"))
    summary = f"{received.device} is ordered to remove {target or 'what runs'} from the slot {slot}: {why}"
    ordered = float(held.get("change") == WITHDRAW)
    evidence = {"target": target, "why": why, "until": text(held.get("until"))}
    yield RuleValue(REMOVAL, received.device, slot, ordered, received.received, summary, evidence)


def _measured(evidence: object) -> Iterator[tuple[str, object]]:
    """Yield measurements that are numbers or short texts, with a prefix that keeps them apart from the controller's."""
    for name, value in list(mapping(evidence).items())[:32]:
        kept = number(value) if not isinstance(value, str) else text(value)
        if kept is not None:
            yield f"evidence_{text(name)}", kept
