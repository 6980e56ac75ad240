"""The baseline: one variant's `session.run` on one row in a loop, no gateway around it. Prints JSON."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path

import numpy as np

from gateway.common.domain.manifest import ModelManifest
from gateway.common.domain.release import Release, complete
from gateway.common.domain.verdict import SessionBudget
from gateway.serving.runtimes.catalog import get_runtime
from gateway.serving.runtimes.settings import TrialSettings
from gateway.serving.runtimes.trial import inspect_file
from gateway.serving.store.library import scan_model
from tests.performance.servers import core_busy_s

WARM_UP_S = 0.2


def main() -> None:
    """Run the loop. Arguments: model directory, model, variant, seconds, core."""
    models, model, variant_name, seconds, core = sys.argv[1:]
    os.sched_setaffinity(0, {int(core)})
    release = scan_model(Path(models), model)[-1]
    manifest = release.manifest or _completed(release)
    variant = manifest.variant(variant_name)
    if variant is None:
        raise SystemExit(f"{model} has no variant {variant_name}")
    session = get_runtime(variant.runtime).open(manifest, variant, release.folder, SessionBudget(threads=1))
    generator = np.random.default_rng(0)
    row = {
        spec.name: generator.random([1, *spec.shape[1:]], dtype=np.float32).astype(spec.datatype.dtype)
        for spec in manifest.inputs
    }
    end = time.monotonic() + WARM_UP_S
    while time.monotonic() < end:
        session.run(row)
    laps: list[int] = []
    busy_s = core_busy_s(int(core))
    cpu, began = time.process_time_ns(), time.perf_counter_ns()
    end_ns = last = began + round(float(seconds) * 1e9)
    while (lap := time.perf_counter_ns()) < end_ns:
        session.run(row)
        last = time.perf_counter_ns()
        laps.append(last - lap)
    taken_s = (time.process_time_ns() - cpu) / 1e9
    cpu_us = taken_s * 1e6 / len(laps)
    others = max(0.0, core_busy_s(int(core)) - busy_s - taken_s) / ((last - began) / 1e9)
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
