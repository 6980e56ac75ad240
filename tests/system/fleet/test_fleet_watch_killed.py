"""`edge-fleet serve` is killed again and again while it tells a webhook of alerts: none is lost, none has two names."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from signal import SIGKILL

import pytest

from fleet.controller.database import alerts, devices, telemetry
from fleet.controller.database.alerts import AlertState
from fleet.controller.database.ingestion import Batch, Row
from fleet.controller.database.tail import position
from tests.simulators.memory import memory_path
from tests.simulators.receiver import Said, receiving
from tests.simulators.served_fleet import ServedFleet, served_fleet, wait_until

__all__ = ["memory_path"]
EACH = 3
GONE, TAKEN = Said(0), Said(200)


def gives_up(fleet: ServedFleet, names: list[str]) -> None:
    """Store a rollback of each of these devices, like a report of theirs."""
    said = {"slot": "m", "state": "rolled_back", "version": "2", "failure": {"reason": "latency"}}
    with fleet.database.write() as connection:
        now = datetime.now(UTC)  # no other transaction writes from here on
        for name in names:
            devices.enrol(connection, name, now)
            batch = Batch("updates", 1, [Row(1, now, "update", said)])
            telemetry.receive(connection, name, batch, now, fleet.database.settings.telemetry)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("rounds", [3, pytest.param(5, marks=pytest.mark.long)])
def test_a_kill_at_any_message_loses_none(memory_path: Path, rounds: int) -> None:
    with receiving() as hook:
        tables = {
            "alerts": {"url": hook.url, "evaluate_every_s": 0.3, "settle_s": 0.1, "retry_s": 0.2, "silent_s": 0.0},
            "database": {"lease_s": 1.0},
            "scheduler": {"tick_s": 0.2},
        }
        with served_fleet(memory_path, tables=tables) as fleet:
            (replica,) = fleet.replicas
            replica.start()

            def looked() -> bool:
                with fleet.database.read() as connection:
                    return position(connection, "watch") is not None

            wait_until(looked, 60)
            for number in range(rounds):
                hook.answers = [TAKEN] * (number % EACH) + [GONE] * 50
                before = len(hook.posted)
                gives_up(fleet, [f"camera-{number}-{n}" for n in range(EACH)])
                wait_until(lambda: len(hook.posted) > before + number % EACH, 60, 0.01)  # noqa: B023  called here only
                replica.end(SIGKILL)
                hook.answers = []
                replica.start()

            def told() -> bool:
                with fleet.database.read() as connection:
                    found = alerts.page(connection, fleet.database.settings, state=AlertState.OPEN)
                    return len(found) == rounds * EACH and alerts.waiting(connection) == 0

            wait_until(told, 60)
            assert replica.end() == 0
            with fleet.database.read() as connection:
                kept = {found.key for found in alerts.page(connection, fleet.database.settings)}
        sent = Counter(posted.headers["webhook-id"] for posted in hook.posted)
        assert set(sent) == {f"{key}-opened" for key in kept}
        assert len(kept) == rounds * EACH
        contents = {(posted.headers["webhook-id"], posted.content) for posted in hook.posted}
        assert len(contents) == len(kept)
        assert len({json.loads(content)["data"]["device"] for _, content in contents}) == len(kept)
        assert max(sent.values()) > 1
