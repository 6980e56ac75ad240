"""Cost of a simulation is read from the system."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.common.domain.errors import ConfigurationError
from tests.load.machine import MachineReading, read, spent
from tests.load.run import watched


def test_a_process_and_a_database_are_read(tmp_path: Path) -> None:
    (tmp_path / "f.sqlite").write_bytes(b"x" * 100)
    (tmp_path / "f.sqlite-wal").write_bytes(b"x" * 20)
    found = read([os.getpid()], tmp_path / "f.sqlite")
    assert found.database_bytes == 120
    assert found.controller_bytes > 1_000_000
    assert found.controller_s > 0


def test_what_lies_between_two_readings() -> None:
    before, after = MachineReading(10.0, 1.0, 5.0, 1, 100), MachineReading(20.0, 3.0, 10.0, 7, 300)
    assert spent(before, after, 1000, pids=True, database=True) == {
        "simulator_busy": 0.2,
        "controller": {"cpu_s": 5.0, "busy": 0.5, "cpu_ms_per_request": 5.0, "rss_bytes": 7},
        "database_bytes": {"before": 100, "after": 300},
    }
    assert spent(before, after, 0, pids=False, database=False) == {"simulator_busy": 0.2}


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is no file"):
        read([], tmp_path / "none.sqlite")
    with pytest.raises(ConfigurationError, match="--pid"):
        read([2**22 + 1], None)


def test_a_controller_that_was_killed_meanwhile_costs_the_simulation_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = read([os.getpid()], None)
    assert set(watched(before, [2**22 + 1], None, 5)) == {"simulator_busy"}
    assert "the load on the controller is not known: --pid" in capsys.readouterr().err
