"""Alert rules: readings and rules in, changed alerts out. Pure.

There is one alert at a time for each rule, device and subject. It opens above a limit. It closes after it has stayed at
or below a lower limit for some time, so that a fluctuating value is reported once. The alerts of one device are
limited, so that a lying device does not hide others.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone

from fleet.controller.database.alerts import Alert, AlertState
from fleet.controller.database.rows import Json

Key = tuple[str, str, str]
"""Rule, device, subject."""
REFRESH_SHARE = 0.25
"""Share of `lasts_s` after which `Alert.heard` is stored again. Storing it each time would cost many writes."""
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class AlertRule:
    """Thresholds of an alert: it opens after a value stayed above `above` for `for_s`.

    It closes `calm_s` after the value reached `until` or less, or without a reading for `lasts_s` (0: never).
    """

    above: float
    until: float
    for_s: float = 0.0
    lasts_s: float = 0.0
    calm_s: float = 0.0


@dataclass(frozen=True, slots=True)
class AlertLimits:
    """Most pending and open alerts, in total and of one device."""

    total: int
    device: int


@dataclass(frozen=True, slots=True)
class RuleValue:
    """One measurement: `value` in the rule's own unit; `summary` describes it for people."""

    rule: str
    device: str
    subject: str
    value: float
    at: datetime
    summary: str = ""
    evidence: Json = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """The key of the alert that it concerns."""
        return self.rule, self.device, self.subject


@dataclass(frozen=True, slots=True)
class EvaluatedRules:
    """Result: `changed` alerts to store, and `dropped` keys of pending alerts to delete.

    `left_out`: alerts not opened because too many are open.
    """

    changed: tuple[Alert, ...] = ()
    dropped: tuple[str, ...] = ()
    left_out: int = 0


def evaluate_rules(
    standing: Iterable[Alert],
    readings: Iterable[RuleValue],
    rules: Mapping[str, AlertRule],
    now: datetime,
    *,
    gone: Collection[str] = (),
    limits: AlertLimits,
) -> EvaluatedRules:
    """Apply readings to alerts, in order, and return the changes.

    `standing`: all pending and open alerts; `gone`: devices that are no longer in the fleet. A reading without a rule
    has no effect, and an alert without a rule is closed.
    """
    known = {(alert.rule, alert.device, alert.subject): alert for alert in standing}
    bench = _Bench(dict(known), rules, limits)
    for reading in readings:
        if reading.rule in rules and reading.device not in gone:
            bench.hear(reading)
    bench.sweep(now, gone)
    left = {alert.key for alert in bench.alerts.values()} | {alert.key for alert in bench.over}
    changed = [alert for key, alert in bench.alerts.items() if alert is not known.get(key)]
    dropped = tuple(alert.key for alert in known.values() if alert.key not in left)
    return EvaluatedRules((*bench.over, *changed), dropped, bench.left_out)


class _Bench:
    """Mutable alerts during an evaluation. `over`: alerts that closed and free their place."""

    def __init__(self, alerts: dict[Key, Alert], rules: Mapping[str, AlertRule], limits: AlertLimits) -> None:
        self.alerts, self._rules, self._limits = alerts, rules, limits
        self._of_device = Counter(alert.device for alert in alerts.values() if alert.device)
        self.over: list[Alert] = []
        self.left_out = 0

    def hear(self, reading: RuleValue) -> None:
        """Apply a reading. Below the limit a pending alert is deleted at once."""
        rule, alert = self._rules[reading.rule], self.alerts.get(reading.key)
        if reading.value <= rule.until:
            if alert is not None and alert.state is AlertState.PENDING:
                self._end(reading.key, reading.at)
            elif alert is not None and alert.calm is None:
                self.alerts[reading.key] = replace(alert, calm=reading.at)
        elif reading.value > rule.above:
            self._exceed(rule, reading, alert)
        elif alert is not None:
            self.alerts[reading.key] = _refreshed(alert, rule, reading.at)

    def sweep(self, now: datetime, gone: Collection[str]) -> None:
        """Close alerts that are over, have no readings, no rule or no device any more."""
        for key, alert in list(self.alerts.items()):
            rule = self._rules.get(alert.rule)
            if rule is None:
                self._end(key, now, "the rule is off")
            elif alert.device in gone:
                self._end(key, now, "the device is not enrolled any more")
            elif alert.calm is not None and alert.calm > now:  # the clock went back
                self.alerts[key] = replace(alert, calm=now)
            elif alert.calm is not None and now - alert.calm >= timedelta(seconds=rule.calm_s):
                self._end(key, alert.calm)
            elif rule.lasts_s and now - alert.heard >= timedelta(seconds=rule.lasts_s):
                self._end(key, now, f"nothing was heard of it for {rule.lasts_s:g} s")

    def _exceed(self, rule: AlertRule, reading: RuleValue, alert: Alert | None) -> None:
        if alert is None:
            mine = self._of_device[reading.device] if reading.device else 0
            if len(self.alerts) >= self._limits.total or mine >= self._limits.device:
                self.left_out += 1
                return
            alert = _begun(reading)
            self._of_device[reading.device] += 1
        alert = _refreshed(alert if alert.calm is None else replace(alert, calm=None), rule, reading.at)
        if alert.state is AlertState.PENDING and reading.at - alert.since >= timedelta(seconds=rule.for_s):
            alert = replace(alert, state=AlertState.OPEN, opened=reading.at, heard=reading.at)
            alert = replace(alert, summary=reading.summary, evidence=dict(reading.evidence))
        self.alerts[reading.key] = alert

    def _end(self, key: Key, at: datetime, because: str = "") -> None:
        alert = self.alerts.pop(key)
        self._of_device[alert.device] -= 1
        if alert.state is AlertState.OPEN:
            evidence = {**alert.evidence, "closed_because": because} if because else alert.evidence
            self.over.append(replace(alert, state=AlertState.CLOSED, closed=at, heard=at, evidence=evidence))


def _begun(reading: RuleValue) -> Alert:
    """Return a new pending alert. Its key is deterministic: a replica that repeats an evaluation opens the same one."""
    text = "\0".join((*reading.key, str((reading.at - _EPOCH) // _MICROSECOND)))
    key = (
        f"{(reading.at - _EPOCH) // _MICROSECOND:014x}-{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:16]}"
    )
    return Alert(key, *reading.key, AlertState.PENDING, reading.at, reading.at, summary=reading.summary)


def _refreshed(alert: Alert, rule: AlertRule, at: datetime) -> Alert:
    if at - alert.heard >= timedelta(seconds=max(1.0, rule.lasts_s * REFRESH_SHARE)) and rule.lasts_s:
        return replace(alert, heard=at)
    return alert
