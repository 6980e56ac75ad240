"""Which alerts open and close: readings and rules in, changed alerts out. Pure.

One alert at a time for each rule, device and subject. It opens above a limit, and closes once it has been at or below a
lower one for a while, so that what wavers is told once. What one device says can open only so many: a device that lies
must not hide others.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from fleet.database.alerts import Alert, State
from fleet.database.rows import Json

Key = tuple[str, str, str]
"""Rule, device, subject."""
REFRESH_SHARE = 0.25
"""Of `lasts_s`: how old `heard` may be before it is written again. Not with every look: most alerts stay for long."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Rule:
    """Opens above `above` once that lasted `for_s`; closes `calm_s` after it came to `until` or below, or when nothing
    is heard for `lasts_s` (0: it is always heard of)."""

    above: float
    until: float
    for_s: float = 0.0
    lasts_s: float = 0.0
    calm_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Limits:
    """How many alerts may stand, in all and of one device."""

    total: int
    device: int


@dataclass(frozen=True, slots=True)
class Reading:
    """What is known now: `value` in the rule's own unit; `summary` says it in words."""

    rule: str
    device: str
    subject: str
    value: float
    at: datetime
    summary: str = ""
    evidence: Json = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """Of which alert it speaks."""
        return self.rule, self.device, self.subject


@dataclass(frozen=True, slots=True)
class Judged:
    """`changed` are to be kept, `dropped` (keys of pending ones) to be forgotten; `left_out`: not opened, as too many
    are open."""

    changed: tuple[Alert, ...] = ()
    dropped: tuple[str, ...] = ()
    left_out: int = 0


def judge(
    standing: Iterable[Alert],
    readings: Iterable[Reading],
    rules: Mapping[str, Rule],
    now: datetime,
    *,
    gone: Collection[str] = (),
    limits: Limits,
) -> Judged:
    """What changes. `standing`: all that are pending or open; `gone`: devices that are in the fleet no more.

    Readings are taken in their order. A reading without a rule has no effect, and an alert without one is closed.
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
    return Judged((*bench.over, *changed), dropped, bench.left_out)


class _Bench:
    """The alerts while they are judged. `over`: those that closed, whose place may be taken by another."""

    def __init__(self, alerts: dict[Key, Alert], rules: Mapping[str, Rule], limits: Limits) -> None:
        self.alerts, self._rules, self._limits = alerts, rules, limits
        self._of_device = Counter(alert.device for alert in alerts.values() if alert.device)
        self.over: list[Alert] = []
        self.left_out = 0

    def hear(self, reading: Reading) -> None:
        rule, alert = self._rules[reading.rule], self.alerts.get(reading.key)
        if reading.value <= rule.until:
            self._calm(reading, alert)
        elif reading.value > rule.above:
            self._exceed(rule, reading, alert)
        elif alert is not None:
            self.alerts[reading.key] = _heard(alert, rule, reading.at)

    def sweep(self, now: datetime, gone: Collection[str]) -> None:
        """What nobody spoke of, and what nobody will speak of again."""
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

    def _exceed(self, rule: Rule, reading: Reading, alert: Alert | None) -> None:
        if alert is None:
            if not self._has_room(reading.device):
                self.left_out += 1
                return
            alert = _begun(reading)
            self._of_device[reading.device] += 1
        alert = _heard(alert if alert.calm is None else replace(alert, calm=None), rule, reading.at)
        if alert.state is State.PENDING and reading.at - alert.since >= timedelta(seconds=rule.for_s):
            alert = replace(alert, state=State.OPEN, opened=reading.at, heard=reading.at)
            alert = replace(alert, summary=reading.summary, evidence=dict(reading.evidence))
        self.alerts[reading.key] = alert

    def _has_room(self, device: str) -> bool:
        mine = self._of_device[device] if device else 0
        return len(self.alerts) < self._limits.total and mine < self._limits.device

    def _calm(self, reading: Reading, alert: Alert | None) -> None:
        """What never opened is forgotten at once."""
        if alert is not None and alert.state is State.PENDING:
            self._end(reading.key, reading.at)
        elif alert is not None and alert.calm is None:
            self.alerts[reading.key] = replace(alert, calm=reading.at)

    def _end(self, key: Key, at: datetime, because: str = "") -> None:
        alert = self.alerts.pop(key)
        self._of_device[alert.device] -= 1
        if alert.state is State.OPEN:
            evidence = {**alert.evidence, "closed_because": because} if because else alert.evidence
            self.over.append(replace(alert, state=State.CLOSED, closed=at, heard=at, evidence=evidence))


def _begun(reading: Reading) -> Alert:
    """Its key is the same, whoever judges: a replica that repeats another's look opens the same alert."""
    said = "\0".join((*reading.key, str((reading.at - _EPOCH) // _MICROSECOND)))
    key = (
        f"{(reading.at - _EPOCH) // _MICROSECOND:014x}-{hashlib.sha256(said.encode(errors='replace')).hexdigest()[:16]}"
    )
    return Alert(key, *reading.key, State.PENDING, reading.at, reading.at, summary=reading.summary)


def _heard(alert: Alert, rule: Rule, at: datetime) -> Alert:
    if at - alert.heard >= timedelta(seconds=max(1.0, rule.lasts_s * REFRESH_SHARE)) and rule.lasts_s:
        return replace(alert, heard=at)
    return alert
