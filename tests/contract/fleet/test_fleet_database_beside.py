"""Sweeps while more rows are taken in, on PostgreSQL, where both lock single rows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from fleet.controller.database import sweep, telemetry
from fleet.controller.database.engine import Connection, Database
from fleet.controller.database.ingestion import Batch, Row
from fleet.controller.database.settings import DatabaseSettings, TelemetryStorageSettings
from tests.simulators.constants import settings_with
from tests.simulators.databases import NOW, enrolled, made

OLD = TelemetryStorageSettings(age_limit_d=1.0)
LATER = NOW + timedelta(days=2)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """Yield a database with a device that sent rows in two streams, too long ago."""
    with made("postgresql", tmp_path, settings_with(DatabaseSettings(), busy_timeout_ms=2_000)) as opened:
        enrolled(opened, "camera-1")
        with opened.write() as connection:
            for stream in ("state", "vitals"):
                take(connection, stream, 1)
        yield opened


def take(connection: Connection, stream: str, seq: int) -> None:
    batch = Batch(stream, 1, [Row(seq, NOW, "row", {})])
    at = NOW if seq == 1 else LATER
    assert telemetry.receive(connection, "camera-1", batch, at, OLD).stored == 1


def swept(database: Database) -> int:
    with database.write() as connection:
        return sweep.sweep(connection, LATER, OLD)


def rows(database: Database) -> dict[str, int]:
    with database.read() as connection:
        return {source.stream: source.rows for source in telemetry.sources(connection, "camera-1")}


def test_a_sweep_waits_for_nobody_who_takes_in(database: Database) -> None:
    """A transaction that takes rows in may hold one stream and ask for the other, while the sweep holds that."""
    with database.write() as taking:
        take(taking, "vitals", 2)
        with database.write() as sweeping:
            assert sweep.sweep(sweeping, LATER, OLD) == 1
        take(taking, "state", 2)
    assert rows(database) == {"state": 1, "vitals": 2}
    assert swept(database) == 1
    assert rows(database) == {"state": 1, "vitals": 1}
    assert swept(database) == 0
