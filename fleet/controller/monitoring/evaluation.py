"""Evaluation of alerts on readings from the database, run periodically by the leader.

New rows are read once, judged, and stored in one transaction with the read position. So a restart neither loses an
alert nor opens it twice.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta

from fleet import events
from fleet.controller.control.catalogue import usable
from fleet.controller.control.evaluation import ACTOR
from fleet.controller.database import alerts, watching
from fleet.controller.database.alerts import Alert, AlertState
from fleet.controller.database.engine import Connection, Database
from fleet.controller.database.leader import guard
from fleet.controller.database.tail import ReceivedRow, keep_position, position, settled, tail
from fleet.controller.database.watching import Stop
from fleet.controller.monitoring import readings
from fleet.controller.monitoring.alert_rules import AlertLimits, EvaluatedRules, RuleValue, evaluate_rules
from fleet.controller.monitoring.settings import AlertSettings
from fleet.controller.monitoring.slot_samples import Samples

PAUSED = "paused"
BY_ITSELF = frozenset({"", ACTOR})
"""Values of `by` for a rollout that was stopped automatically."""


def of_silence(
    connection: Connection, standing: Iterable[Alert], up_since: datetime, now: datetime, settings: AlertSettings
) -> Iterator[RuleValue]:
    """Yield readings of devices that are silent or have an alert for it.

    Time in which the controller was down does not count as silence.
    """
    known = {alert.device for alert in standing if alert.rule == readings.SILENT}
    found = watching.seen(connection, sorted(known))
    if settings.silent_s and now - up_since >= timedelta(seconds=settings.silent_s):
        before = now - timedelta(seconds=settings.silent_s)
        found |= watching.silent(connection, before, settings.open_limit + 1)
    for device, since in found.items():
        yield readings.silent(device, since, now)


def of_identities(
    connection: Connection, standing: Iterable[Alert], now: datetime, settings: AlertSettings
) -> Iterator[RuleValue]:
    """Yield readings of devices whose identity two machines used within `identity_s`, or that have an alert for it."""
    since = now - timedelta(seconds=settings.identity_s)
    found = watching.used_twice(connection, since, settings.open_limit + 1)
    for device in {*found, *(alert.device for alert in standing if alert.rule == readings.IDENTITY)}:
        yield readings.identity(device, found.get(device), now)


def of_certificates(
    connection: Connection, standing: Iterable[Alert], now: datetime, settings: AlertSettings
) -> Iterator[RuleValue]:
    """Yield readings of certificates that expire soon or have an alert for it."""
    known = {alert.device for alert in standing if alert.rule == readings.CERTIFICATE}
    found = watching.expiries(connection, sorted(known))
    if settings.certificate_d:
        before = now + timedelta(days=settings.certificate_d)
        found |= watching.expiring(connection, before, settings.open_limit + 1)
    for device, expires in found.items():
        yield readings.certificate(device, expires, now, settings.certificate_d)


def of_barred(connection: Connection, standing: Iterable[Alert], now: datetime) -> Iterator[RuleValue]:
    """Yield readings of releases that devices run and that may not be installed, or that have an alert for it."""
    known = {alert.subject for alert in standing if alert.rule == readings.BARRED}
    running = Counter[str]()
    for (_, target), count in watching.running_by_slot(connection).items():
        running[target] += count
    for target in {*running, *known}:
        why = usable(connection, target)
        if why or target in known:
            yield readings.barred(target, running[target] if why else 0, why, now)


class Stops:
    """Rollouts that stopped automatically. It keeps the read position, since a rollout may have very many facts."""

    def __init__(self, lasts_s: float) -> None:
        self._lasts = timedelta(seconds=lasts_s)
        self._known: dict[str, tuple[int, Stop | None]] = {}

    def read(self, connection: Connection, standing: Iterable[Alert], now: datetime) -> Iterator[RuleValue]:
        """Yield a reading for a paused rollout as long as it is paused, and for an aborted one once."""
        known, since = {}, now - self._lasts
        for found in watching.stopped(connection, since):
            stop = self._stop(connection, found.rollout, found.sequence)
            known[found.rollout] = (found.sequence, stop)
            if stop is not None and stop.by in BY_ITSELF and (found.state == PAUSED or stop.at > since):
                at = now if found.state == PAUSED else stop.at
                yield readings.halted(stop.rollout, stop.name, stop.reason, at, still=True)
        self._known = known
        for alert in standing:
            if alert.rule == readings.HALTED and alert.subject not in known:
                yield readings.halted(alert.subject, "", "", now, still=False)

    def _stop(self, connection: Connection, rollout: str, sequence: int) -> Stop | None:
        before, stop = self._known.get(rollout, (0, None))
        if before == sequence:
            return stop
        return watching.last_stop(connection, rollout, before) or stop


READER, LOOKED, UP_SINCE, FURTHEST = "watch", "watch, looked", "watch, up since", "watch, furthest"
LEFT_OUT = "alerts_left_out"
DEEP_EVERY = timedelta(hours=1)
"""Period at which certificates and signed roles are checked: they expire in days."""
MISSED_EVALUATIONS = 10
"""Evaluations missed in a row after which the controller counts as having been away."""
_log = logging.getLogger(__name__)

Source = Callable[[datetime], Iterable[RuleValue]]
Listener = Callable[[Sequence[ReceivedRow]], object]


class AlertEvaluation:
    """Alert evaluation, one per process, used by one thread.

    `sources` are read once an hour. `listeners` get every row once, or never if the process ends at that moment.
    `believed`: the trusted time for the retention of closed alerts when the clock shows `now`.
    """

    def __init__(
        self,
        database: Database,
        settings: AlertSettings,
        counts: Counter[str],
        *,
        sources: Sequence[Source] = (),
        listeners: Sequence[Listener] = (),
        believed: Callable[[datetime], datetime] = lambda now: now,
    ) -> None:
        self._database, self._settings, self._counts = database, settings, counts
        self._sources, self._listeners, self._believed = sources, listeners, believed
        self._rules = readings.rules(settings)
        self._limits = AlertLimits(settings.open_limit, settings.device_limit)
        self._samples = Samples(settings.error_min_sample, settings.samples_limit)
        self._stops = Stops(settings.lasts_s)
        self._deep_after: datetime | None = None
        self._changes = self._left_out = 0

    def evaluate(self, fence: int, now: datetime) -> bool:
        """Evaluate all alerts. Return whether an alert opened or closed. Raise AwayError, FencedError.

        The leader calls it every `evaluate_every_s`.
        """
        before = self._changes
        deep = self._deep_after is None or not self._deep_after <= now < self._deep_after + DEEP_EVERY
        with self._database.read() as connection:
            standing = alerts.standing(connection)
            values = [reading for part in self._asked(connection, standing, now, deep=deep) for reading in part]
            up_since = self._up_since(connection, now)
        more = self._page(fence, now, up_since, values)
        for _ in range(self._settings.pages_limit - 1):
            if not more:
                break
            more = self._page(fence, now, up_since, [])
        if deep:
            with self._database.write() as connection:
                guard(connection, fence)
                oldest = self._believed(now) - timedelta(days=self._settings.keep_d)
                alerts.forget(connection, oldest, self._settings.keep_limit_rows)
            self._deep_after = now
        return self._changes != before

    def _page(self, fence: int, now: datetime, up_since: datetime, values: Sequence[RuleValue]) -> bool:
        """Judge one page of rows and store the result. Return whether there are more rows."""
        with self._database.write() as connection:
            until = settled(connection, now - timedelta(seconds=self._settings.settle_s))
        with self._database.read() as connection:
            standing = alerts.standing(connection)
            after, furthest = position(connection, READER) or until, position(connection, FURTHEST) or until
            if after > now:  # the clock was ahead before: a row may be judged twice rather than not at all
                after = until - timedelta(seconds=self._settings.evaluate_every_s)
            elif up_since == now and furthest <= now:  # it was behind before, or the controller was away
                after = max(after, furthest)
            page = tail(connection, after, until, self._settings.rows_limit)
            devices = {alert.device for alert in standing if alert.device}
            gone = devices - watching.enrolled(connection, sorted(devices))
        all_values = [*values, *readings.rule_values(page.rows, self._samples)]
        judged = evaluate_rules(standing, all_values, self._rules, now, gone=gone, limits=self._limits)
        with self._database.write() as connection:
            guard(connection, fence)
            alerts.drop(connection, judged.dropped)
            alerts.put(connection, judged.changed, tell=bool(self._settings.url))
            furthest = max(page.reached, position(connection, FURTHEST) or page.reached)
            for name, at in ((READER, page.reached), (FURTHEST, furthest), (LOOKED, now), (UP_SINCE, up_since)):
                keep_position(connection, name, at)
        self._say(judged)
        for listener in self._listeners:
            listener(page.rows)
        return page.more

    def _up_since(self, connection: Connection, now: datetime) -> datetime:
        """Return since when the controller could receive polls, as far as the recorded evaluations show."""
        last, up_since = position(connection, LOOKED), position(connection, UP_SINCE)
        missed = timedelta(seconds=MISSED_EVALUATIONS * self._settings.evaluate_every_s)
        if last is None or up_since is None or not last - missed <= now <= last + missed:
            return now
        return up_since

    def _asked(
        self, connection: Connection, standing: Sequence[Alert], now: datetime, *, deep: bool
    ) -> Iterator[Iterable[RuleValue]]:
        up_since = self._up_since(connection, now)
        yield of_silence(connection, standing, up_since, now, self._settings)
        yield of_identities(connection, standing, now, self._settings)
        yield self._stops.read(connection, standing, now)
        if deep:
            yield of_certificates(connection, standing, now, self._settings)
            yield of_barred(connection, standing, now)
            yield from (source(now) for source in self._sources)

    def _say(self, judged: EvaluatedRules) -> None:
        more, self._left_out = judged.left_out - self._left_out, judged.left_out
        if more > 0:
            self._counts[LEFT_OUT] += more
            _log.warning(events.ALERTS_NOT_OPENED, judged.left_out)
        for alert in judged.changed:
            self._changes += alert.state is not AlertState.PENDING
            _log.info(events.ALERT_CHANGED, alert.rule, alert.state, alert.summary)
