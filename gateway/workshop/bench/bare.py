"""The bare runtime: runs of the variant that the gateway chose, in a loop, with no gateway around them."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path

from gateway.common.domain.release import Release
from gateway.common.domain.tensor import Tensors
from gateway.serving import assembly
from gateway.serving.config import Config
from gateway.serving.domain.ports import Session
from gateway.workshop.bench.load import LoadResult
from gateway.workshop.bench.settings import BenchSettings


@dataclass(frozen=True, slots=True)
class BarePlan:
    """Loop of one release: `inputs` of one run, for `seconds`, on `cores`."""

    config: Config
    release: Release
    state: Path
    inputs: Tensors
    seconds: float
    cores: tuple[int, ...]


def run_bare(plan: BarePlan, settings: BenchSettings) -> tuple[str, LoadResult]:
    """Return the name of the variant, and its times. Raise VariantError, ConfigurationError."""
    os.sched_setaffinity(0, plan.cores)
    return asyncio.run(_run(plan, settings))


async def _run(plan: BarePlan, settings: BenchSettings) -> tuple[str, LoadResult]:
    surveyed = await assembly.survey(plan.config)
    with assembly.opened(plan.config, surveyed, plan.state, lambda _remark: None) as loader:
        opened = await loader.first(plan.release)
        try:
            _loop(opened.session, plan.inputs, settings.warm_up_s, settings)
            return opened.candidate.variant.name, _loop(opened.session, plan.inputs, plan.seconds, settings)
        finally:
            opened.session.close()


def _loop(session: Session, inputs: Tensors, seconds: float, settings: BenchSettings) -> LoadResult:
    laps: list[int] = []
    cpu_ns, start_ns = time.process_time_ns(), time.perf_counter_ns()
    end_ns = last_ns = start_ns + 0
    end_ns += round(seconds * 1e9)
    while last_ns < end_ns and len(laps) < settings.laps_limit:
        session.run(inputs)
        now_ns = time.perf_counter_ns()
        laps.append(now_ns - last_ns)
        last_ns = now_ns
    return LoadResult(laps, (last_ns - start_ns) / 1e9, (time.process_time_ns() - cpu_ns) / 1e9)
