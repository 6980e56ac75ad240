"""Explanations of figures that were taken on a busy machine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.common.domain.noise import Conditions
from gateway.common.domain.selection import Candidate
from gateway.common.domain.verdict import Parallel, SessionBudget
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


def test_threads_and_runs_at_a_time_are_shown_with_those_that_serve(capsys: pytest.CaptureFixture[str]) -> None:
    tried = Parallel(1, 1, 8000.0, 8000.0, 2**20), Parallel(1, 2, 8100.0, 4050.0, 2**21), Parallel(2, 1, 7000.0, 7000.0)
    of, verdict = manifest(), replace(measured(8000.0), runs=2, parallel=tried)
    candidate = Candidate(of.variants[0], "cpu", 1, True, "", SessionBudget(2, runs=2), verdict=verdict)
    explain._print(release(of), "profile", [candidate], candidate, SelectionSettings())
    rows = [line.replace(" ", "").split("│") for line in capsys.readouterr().out.splitlines()[-3:]]
    assert rows == [
        ["a", "1", "1", "8000", "125.0", "1.0"],
        ["a◀", "1", "2", "8100", "246.9", "2.0"],
        ["a", "2", "1", "7000", "142.9", "0.0"],
    ]
    told = candidate_json(candidate)
    assert (told["threads"], told["runs"], told["parallel"][1]["busy_us"]) == (1, 2, 4050.0)


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
