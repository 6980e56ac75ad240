"""Explanations of figures that were taken on a busy machine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.common.domain.noise import Conditions
from gateway.common.domain.selection import Candidate
from gateway.serving.cli import explain
from gateway.serving.cli.explain import candidate_json, remarks
from gateway.serving.engine.settings import SelectionSettings
from tests.simulators.engine_rig import manifest, measured, release

BUSY = Conditions(load=9.0, steal=0.1, waited=0.8, switches=40, mhz=1500)


def test_the_conditions_of_a_measurement_are_told() -> None:
    verdict, of = measured(36_000.0, 687.0), manifest()
    assert verdict.measured
    figures = replace(verdict.measured, quiet_us=7400.0, quiet_row_us=60.0, conditions=BUSY, disturbed="load 9")
    candidate = Candidate(of.variants[0], "cpu", 1, True, "", verdict=replace(verdict, measured=figures))
    assert list(remarks(release(of), [candidate])) == [
        "a: measured while the machine was busy (load 9); the gateway measures it again when it is idle"
    ]
    told = candidate_json(candidate)["measured"]
    assert (told["p50_us"], told["run_us"], told["row_us"], told["quiet_row_us"]) == (36_000.0, 7400.0, 687.0, 60.0)
    assert told["conditions"] == {"load": 9.0, "steal": 0.1, "waited": 0.8, "switches": 40, "mhz": 1500}
    assert (told["disturbed"], told["remark"]) == ("load 9", figures.remark)


@pytest.mark.parametrize("width", [60, 80])
def test_lines_are_wrapped_on_a_terminal(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict, of = measured(36_000.0, 687.0), manifest()
    assert verdict.measured
    figures = replace(verdict.measured, quiet_us=7400.0, quiet_row_us=60.0, conditions=BUSY, disturbed="load 9")
    candidate = Candidate(of.variants[0], "cpu", 1, True, "", verdict=replace(verdict, measured=figures))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    explain._print(release(of), "a-profile-" + "x" * 30, [candidate], candidate, SelectionSettings())
    said = capsys.readouterr().out
    assert "when it is idle" in " ".join(said.split())
    assert all(len(line) <= width for line in said.splitlines() if "┃" not in line), said
