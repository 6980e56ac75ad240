"""The measurement of the controller's database cannot rot: it runs once, briefly. No figure is judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.performance import fleet_database
from tests.simulators.databases import KINDS, made


@pytest.mark.parametrize("kind", KINDS)
def test_every_figure_is_printed(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fleet_database, "MEASURE_S", 0.02)
    with made(kind, tmp_path) as database:
        fleet_database.fill(database, 30)
        fleet_database.measure(database, 30)
        fleet_database.bytes_per_row(database)
    said = capsys.readouterr().out
    for figure in ("polls/s", "telemetry rows/s", "assignments", "offered", "last seen", "audit", "bytes per"):
        assert figure in said
