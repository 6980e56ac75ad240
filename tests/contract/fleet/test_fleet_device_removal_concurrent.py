"""Removal of a device while its last telemetry is still being taken in, on PostgreSQL.

Both have locks of single rows there. The two are brought together by what they wait for, not by chance.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from fleet.controller.control import device_removal, ingestion
from fleet.controller.control.device_removal import RemovalReason
from fleet.controller.control.ingestion import Intake
from fleet.controller.control.settings import IntakeSettings
from fleet.controller.database import certificates, devices, removal, sweep, telemetry
from fleet.controller.database.certificates import Certificate
from tests.simulators.asking import record
from tests.simulators.databases import waiting
from tests.simulators.operator import until
from tests.simulators.rolled_fleet import RolledFleet, rolling

SERIAL = "ab"


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[RolledFleet]:
    """Yield a fleet with a device that sent telemetry, which was swept since."""
    with rolling("postgresql", tmp_path) as made:
        made.enrol(["a"])
        with made.database.write() as connection:
            expires = made.now + timedelta(days=30)
            certificates.add(connection, Certificate(SERIAL, "a", made.now, expires, key_digest="k"))
        assert told(made, 1) == 1
        with made.database.write() as connection:
            assert sweep.clear(connection, "a", made.database.settings.telemetry) == 1
        yield made


def told(fleet: RolledFleet, seq: int) -> int:
    """Let the device report its state; return up to which number it may forget its rows."""
    taking = Intake(fleet.database, IntakeSettings(), fleet.rolling.states, Counter())
    line = record("state", seq, {"state": "in-step"}, kind="device")
    (said,) = taking.take(SERIAL, json.dumps(line).encode(), "", lambda: fleet.now)
    return said.seq


def remove(fleet: RolledFleet) -> None:
    motive = RemovalReason("olga", "", fleet.now)
    device_removal.remove(fleet.rolling, "a", motive, permit=lambda opened: devices.get(opened, "a"))


def test_neither_waits_for_the_other_in_a_ring(fleet: RolledFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is held once its rows are stored, and before what they say of the device is, until the removal waits."""
    describe, removing = devices.report_health, list[Future[None]]()
    with ThreadPoolExecutor() as pool:

        def late(*said: object) -> None:
            with fleet.database.write() as connection:
                devices.change_state(connection, "a", "revoke", "", fleet.now)
            removing.append(pool.submit(remove, fleet))
            until(lambda: waiting(fleet.database) == 1, "the removal does not wait")
            describe(*said)  # type: ignore[arg-type]

        monkeypatch.setattr(ingestion.devices, "report_health", late)
        assert told(fleet, 2) == 2
        removing[0].result()
    with fleet.database.read() as connection:
        assert removal.gone(connection, ["a"]) == {"a"}
        assert telemetry.sources(connection, "a") == ()
