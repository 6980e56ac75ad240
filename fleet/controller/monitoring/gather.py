"""Readings for alert rules, made from the database: silent devices, certificates, stopped rollouts, barred releases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from fleet.controller.control.catalogue import usable
from fleet.controller.control.evaluation import ACTOR
from fleet.controller.database import watching
from fleet.controller.database.alerts import Alert
from fleet.controller.database.engine import Connection
from fleet.controller.database.watching import Stop
from fleet.controller.monitoring import readings
from fleet.controller.monitoring.alert_rules import RuleValue
from fleet.controller.monitoring.settings import AlertSettings

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
