"""Times of variants that were measured on a busy machine."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.common.domain.errors import VariantError
from gateway.common.domain.manifest import Golden
from gateway.serving.runtimes.settings import TrialSettings
from gateway.workshop.making import quantize_run
from gateway.workshop.making.settings import CalibrationSettings
from tests.simulators.engine_rig import manifest, measured


def test_a_time_of_a_busy_machine_is_estimated_and_remarked(monkeypatch: pytest.MonkeyPatch) -> None:
    of, verdict = manifest(), measured(36_000.0)
    assert verdict.measured
    busy = replace(verdict, measured=replace(verdict.measured, quiet_us=7400.0, disturbed="load 9"))

    async def tried(*_: object) -> object:
        return busy

    def opened(_: str) -> None:
        raise VariantError("not here")

    monkeypatch.setattr(quantize_run, "try_variant", tried)
    monkeypatch.setattr(quantize_run, "get_runtime", opened)
    job: Any = SimpleNamespace(manifest=of, plan=SimpleNamespace(reference=of.variants[0]))
    run = quantize_run.QuantizeRun(job, CalibrationSettings(), TrialSettings(), Path(), lambda _: None)
    evaluation: Any = SimpleNamespace(golden=None)
    result = asyncio.run(run._measured(of.variants[0], evaluation, Golden("golden.npz", "0" * 64)))
    assert result.p50_us == 7400.0
    assert run._remarks == ["a: measured while the machine was busy (load 9)"]
