"""A fleet in a database for tests of alerts: devices that report or fall silent, and an evaluating leader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from fleet.controller.database import alerts, devices, rollouts, telemetry
from fleet.controller.database.alerts import Alert, AlertState
from fleet.controller.database.engine import Database
from fleet.controller.database.ingestion import Batch, Row
from fleet.controller.database.leader import candidate
from fleet.controller.database.rollouts import NewFact, StoredRollout
from fleet.controller.database.settings import TelemetryStorageSettings
from fleet.controller.monitoring.evaluation import AlertEvaluation
from fleet.controller.monitoring.settings import AlertSettings
from tests.simulators.constants import settings_with
from tests.simulators.databases import NOW

SETTINGS = settings_with(
    AlertSettings(temperature_s=120.0), settle_s=0.0, evaluate_every_s=60.0, error_min_sample=10, calm_s=0.0
)
STEP_S = 300.0


class WatchedFleet:
    """Fleet. `now_s`: seconds since the start. `says` also marks the device as seen."""

    def __init__(self, database: Database, settings: AlertSettings = SETTINGS, **changes: Any) -> None:
        self.database, self.settings = database, settings_with(settings, **changes)
        self.counts: Counter[str] = Counter()
        self.now_s = 0.0
        self._leader = candidate(database, "leader")
        self._numbers: Counter[str] = Counter()
        self.restart()

    @property
    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.now_s)

    def restart(self, **parts: Any) -> AlertEvaluation:
        """Replace the evaluation by a new one, as after a restart."""
        self.watch = AlertEvaluation(self.database, self.settings, self.counts, **parts)
        return self.watch

    def look(self, *, after_s: float = 0.0) -> None:
        """Evaluate as the leader does, repeatedly until `after_s` has passed."""
        until_s = self.now_s + after_s
        while True:
            self.now_s = min(self.now_s + STEP_S, until_s)
            fence = self._leader.stand(self.now)
            assert fence is not None
            self.watch.evaluate(fence, self.now)
            if self.now_s >= until_s:
                return

    def seen(self, *names: str) -> None:
        with self.database.write() as connection:
            devices.touch(connection, dict.fromkeys(names, self.now))

    def says(self, device: str, stream: str, document: Mapping[str, Any], *, ahead_s: float = 0.0) -> None:
        self.now_s += 1
        self._numbers[device + stream] += 1
        row = Row(self._numbers[device + stream], self.now + timedelta(seconds=ahead_s), stream, document)
        with self.database.write() as connection:
            telemetry.receive(connection, device, Batch(stream, 1, [row]), self.now, TelemetryStorageSettings())
        self.seen(device)

    def rollout(self, name: str, state: str, *happened: Mapping[str, Any]) -> None:
        """Record facts given in their JSON form."""
        with self.database.write() as connection:
            known = {found.id for found in rollouts.page(connection, self.database.settings)}
            if name not in known:
                made = StoredRollout(name, f"the {name}", "m", "t", "draft", {}, self.now, "alice")
                rollouts.create(connection, made)
            facts = [NewFact(self.now, str(fact["kind"]), "", fact) for fact in happened]
            rollouts.record(connection, name, facts, self.database.settings, state=state)

    def alerts(self, state: AlertState | None = AlertState.OPEN) -> list[Alert]:
        with self.database.read() as connection:
            return list(alerts.page(connection, self.database.settings, state=state))

    @property
    def open(self) -> list[tuple[str, str, str]]:
        return sorted((alert.rule, alert.device, alert.subject) for alert in self.alerts())
