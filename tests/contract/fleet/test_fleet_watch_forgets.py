"""Closed alerts are forgotten when they are old, not when a clock says so for a while."""

from __future__ import annotations

from pathlib import Path

from fleet.controller.control.monotonic_clock import MonotonicClock
from fleet.controller.control.settings import MaintenanceSettings
from fleet.controller.database import alerts
from fleet.controller.database.alerts import Alert, AlertState
from tests.simulators.databases import NOW, made
from tests.simulators.watched_fleet import WatchedFleet

DAY_S = 86_400.0


def test_a_clock_that_is_far_ahead_for_a_while_forgets_no_alert(tmp_path: Path) -> None:
    with made("sqlite", tmp_path) as database:
        fleet, uptime_s = WatchedFleet(database, keep_d=30.0), [0.0]
        careful = MonotonicClock(MaintenanceSettings(), NOW, None, lambda: uptime_s[0])
        closed = Alert("1", "silent", "", "", AlertState.CLOSED, NOW, NOW, NOW, NOW)
        with database.write() as connection:
            alerts.put(connection, [closed], tell=False)
        fleet.restart(believed=careful.believed)
        fleet.now_s = 4000 * DAY_S
        fleet.look()
        assert len(fleet.alerts(AlertState.CLOSED)) == 1
        for later_s in (3_600.0, 3_600.0):
            uptime_s[0] += later_s
            fleet.now_s += later_s
            careful.read(fleet.now)
        fleet.look()
        assert fleet.alerts(AlertState.CLOSED) == []
