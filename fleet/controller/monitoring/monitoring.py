"""Assembly of monitoring: alerts, webhook, metrics and OTLP, and the threads that run them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from fleet import events
from fleet.controller.control.control import Control
from fleet.controller.control.worker import PeriodicThread
from fleet.controller.database.tail import ReceivedRow
from fleet.controller.monitoring.alert_rules import RuleValue
from fleet.controller.monitoring.credentials import secret_text, trusting
from fleet.controller.monitoring.evaluation import AlertEvaluation
from fleet.controller.monitoring.measures import Measures, Sources
from fleet.controller.monitoring.message import read_secret
from fleet.controller.monitoring.otlp import Exporter, read_headers
from fleet.controller.monitoring.otlp_own import own_piece
from fleet.controller.monitoring.page import MetricsPage
from fleet.controller.monitoring.post import Post
from fleet.controller.monitoring.readings import repository
from fleet.controller.monitoring.settings import AlertSettings, MetricsSettings, OtlpSettings
from fleet.controller.monitoring.timing import Timing
from fleet.controller.monitoring.webhook import Webhook
from fleet.publisher.roles import ONLINE, SNAPSHOT
from fleet.publisher.verify import expiries
from gateway.common.domain.errors import ConfigurationError

ONLINE_SHARE = 0.25
"""Share of an online role's validity. Less than this remains only if maintenance fails to renew it."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MonitoringSettings:
    """Settings of monitoring."""

    alerts: AlertSettings
    metrics: MetricsSettings
    otlp: OtlpSettings


class Monitoring:
    """Monitoring of the fleet, one per process.

    `page` is read by Prometheus, `timing` wraps the application, `workers` do the rest. `fence`: the fencing token of
    this replica's leadership, None if it does not lead. `done`: times of the last maintenance. `believed`: the trusted
    time for an expiry check when the clock shows `now`.
    """

    def __init__(
        self,
        control: Control,
        settings: MonitoringSettings,
        fence: Callable[[], int | None],
        done: Callable[[], Mapping[str, datetime]],
        believed: Callable[[datetime], datetime],
    ) -> None:
        """Read the credentials. Raise ConfigurationError if a secret, header or authority is invalid."""
        self._control, self._settings, self._fence = control, settings, fence
        self._started = control.clock()
        folder = control.workspace.folder
        self._news, self._offered = threading.Event(), threading.Event()
        self.timing = Timing()
        self._exporter = _exporter(control, settings.otlp, folder) if settings.otlp.url else None
        self._measures = Measures(control, self.timing, settings.metrics.cache_s, self._sources(done))
        self.page = MetricsPage(self._measures)
        self._watch = AlertEvaluation(
            control.database,
            settings.alerts,
            control.counts,
            sources=[partial(_roles, control, settings.alerts.repository_d)],
            listeners=[self._offer_rows],
            believed=believed,
        )
        self._webhook = _webhook(control, settings.alerts, folder) if settings.alerts.url else None

    def workers(self) -> tuple[PeriodicThread, ...]:
        """Return the workers, in the order to start them. Stop them in reverse."""
        clock, settings = self._control.clock, self._settings
        found = [PeriodicThread("watch", settings.alerts.evaluate_every_s, self._evaluate, clock)]
        if self._webhook:
            every_s = settings.alerts.retry_s
            found.append(PeriodicThread("webhook", every_s, self._tell, clock, due=self._news, end=self._webhook.close))
        if self._exporter:
            exporter, every_s = self._exporter, settings.otlp.retry_s
            send = PeriodicThread(
                "otlp", every_s, lambda _: exporter.tick(clock), clock, due=self._offered, end=exporter.close
            )
            found += [send, PeriodicThread("otlp own", settings.metrics.own_every_s, self._offer_own, clock)]
        return tuple(found)

    def _evaluate(self, now: datetime) -> None:
        fence = self._fence()
        if fence is not None and self._watch.evaluate(fence, now):
            self._news.set()

    def _tell(self, _now: datetime) -> None:
        """Send alerts to the webhook. Only the leader does this, since other replicas would send duplicates."""
        if self._webhook and self._fence() is not None:
            self._webhook.tick(self._control.clock)

    def _offer_own(self, now: datetime) -> None:
        if self._exporter:
            samples = self._measures.samples()
            self._exporter.offer([own_piece(samples, self.timing, self._control.holder, self._started, now)])
            self._offered.set()

    def _offer_rows(self, rows: Sequence[ReceivedRow]) -> None:
        if self._exporter and rows:
            self._exporter.offer_rows(rows)
            self._offered.set()

    def _sources(self, done: Callable[[], Mapping[str, datetime]]) -> Sources:
        queues: dict[str, Callable[[], int]] = {"seen": self._control.seen.waiting}
        if self._exporter:
            exporter = self._exporter
            queues["otlp"] = lambda: exporter.waiting()[0]
        return Sources(
            lambda: self._fence() is not None,
            queues,
            lambda: {name: at.timestamp() for name, at in done().items()},
        )


def _roles(control: Control, notice_d: float, now: datetime) -> Iterable[RuleValue]:
    """Read the expiry of signed roles: offline ones that people sign, and online ones that this controller signs.

    If that fails, log it and return nothing, so that other alerts are evaluated.
    """
    settings = control.workspace.settings
    try:
        published = control.workspace.published()
    except (ConfigurationError, OSError) as error:
        _log.warning(events.ROLE_EXPIRY_NOT_CHECKED, error)
        return
    for found in expiries(published, now):
        if found.what in ONLINE:
            life_d = settings.snapshot_expiry_d if found.what == SNAPSHOT else settings.timestamp_expiry_d
            yield repository(found.what, found.expires, now, life_d * ONLINE_SHARE, "edge-fleet publish")
        else:
            remedy = f"edge-fleet renew {found.what}, and have it signed"
            yield repository(found.what, found.expires, now, notice_d, remedy)


def _webhook(control: Control, settings: AlertSettings, folder: Path) -> Webhook:
    secret, trust = None, trusting(folder, settings.ca_file, "alerts")
    if settings.secret_file:
        file = folder / settings.secret_file
        secret = read_secret(secret_text(file), str(file))
    return Webhook(control.database, settings, Post(settings.timeout_s, trust), control.counts, secret=secret)


def _exporter(control: Control, settings: OtlpSettings, folder: Path) -> Exporter:
    file, trust = folder / settings.headers_file, trusting(folder, settings.ca_file, "otlp")
    headers = read_headers(secret_text(file), str(file)) if settings.headers_file else {}
    return Exporter(settings, Post(settings.timeout_s, trust), control.counts, headers)
