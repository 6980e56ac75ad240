"""The baseline: one variant's `session.run` on one row in a loop for each core, no gateway around it. Prints JSON."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from gateway.common.domain.manifest import ModelManifest
from gateway.common.domain.release import Release, complete
from gateway.common.domain.verdict import SessionBudget
from gateway.serving.domain.ports import Session
from gateway.serving.runtimes.catalog import get_runtime
from gateway.serving.runtimes.settings import TrialSettings
from gateway.serving.runtimes.trial import inspect_file
from gateway.serving.store.library import scan_model
from tests.performance.servers import core_busy_s

WARM_UP_S = 0.2


def main() -> None:
    """Run the loop. Arguments: model directory, model, variant, seconds, cores separated by commas."""
    models, model, variant_name, seconds, words = sys.argv[1:]
    cores = list(map(int, words.split(",")))
    os.sched_setaffinity(0, cores)
    release = scan_model(Path(models), model)[-1]
    manifest = release.manifest or _completed(release)
    variant = manifest.variant(variant_name)
    if variant is None:
        raise SystemExit(f"{model} has no variant {variant_name}")
    session = get_runtime(variant.runtime).open(manifest, variant, release.folder, SessionBudget(runs=len(cores)))
    session.widen(len(cores))
    generator = np.random.default_rng(0)
    row = {
        spec.name: generator.random([1, *spec.shape[1:]], dtype=np.float32).astype(spec.datatype.dtype)
        for spec in manifest.inputs
    }
    laps: list[int] = []

    def loop(each: Session, end_ns: int) -> None:
        while (lap := time.perf_counter_ns()) < end_ns:
            each.run(row)
            laps.append(time.perf_counter_ns() - lap)

    def run(seconds: float) -> int:
        end_ns = time.perf_counter_ns() + round(seconds * 1e9)
        with ThreadPoolExecutor(len(cores)) as pool:
            list(pool.map(loop, [session, *session.peers], [end_ns] * len(cores)))
        return time.perf_counter_ns()

    run(WARM_UP_S)
    laps.clear()
    busy_s, cpu, began = sum(map(core_busy_s, cores)), time.process_time_ns(), time.perf_counter_ns()
    last = run(float(seconds))
    taken_s = (time.process_time_ns() - cpu) / 1e9
    cpu_us = taken_s * 1e6 / len(laps)
    others = max(0.0, sum(map(core_busy_s, cores)) - busy_s - taken_s) / ((last - began) / 1e9)
    p50, p99 = np.percentile(laps, (50, 99)) / 1000
    per_s = len(laps) * 1e9 / (last - began)
    figures = {"requests": len(laps), "per_s": per_s, "p50_us": p50, "p99_us": p99, "cpu_us": cpu_us, "others": others}
    sys.stdout.write(json.dumps(figures))


def _completed(release: Release) -> ModelManifest:
    if release.bare is None:
        raise SystemExit(release.problem)
    file = release.folder / release.bare.artifacts[0].path
    return complete(release, release.bare, asyncio.run(inspect_file(release.bare.runtime, file, TrialSettings())))


if __name__ == "__main__":
    main()
