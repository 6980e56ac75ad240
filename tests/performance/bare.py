"""The baseline: one variant's `session.run` on one row in a loop, no gateway around it. Prints JSON."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path

import numpy as np

from gateway.domain.manifest import ModelManifest
from gateway.domain.release import Release, complete
from gateway.domain.verdict import Budget
from gateway.runtimes.catalog import get_runtime
from gateway.runtimes.settings import TrialSettings
from gateway.runtimes.trial import inspect_file
from gateway.store.library import scan_model


def main() -> None:
    """Arguments: model directory, model, variant, seconds, core."""
    models, model, variant_name, seconds, core = sys.argv[1:]
    os.sched_setaffinity(0, {int(core)})
    release = scan_model(Path(models) / model)[-1]
    manifest = release.manifest or _completed(release)
    variant = manifest.variant(variant_name)
    if variant is None:
        raise SystemExit(f"{model} has no variant {variant_name}")
    session = get_runtime(variant.runtime).open(manifest, variant, release.folder, Budget())
    generator = np.random.default_rng(0)
    row = {
        spec.name: generator.random([1, *spec.shape[1:]], dtype=np.float32).astype(spec.datatype.dtype)
        for spec in manifest.inputs
    }
    for _ in range(100):
        session.run(row)
    laps: list[int] = []
    cpu, end = time.process_time_ns(), time.monotonic_ns() + int(seconds) * 10**9
    while (began := time.perf_counter_ns()) and time.monotonic_ns() < end:
        session.run(row)
        laps.append(time.perf_counter_ns() - began)
    cpu_us = (time.process_time_ns() - cpu) / 1000 / len(laps)
    p50, p99 = np.percentile(laps, (50, 99)) / 1000
    figures = {"per_s": len(laps) / int(seconds), "p50_us": p50, "p99_us": p99, "cpu_us": cpu_us}
    sys.stdout.write(json.dumps(figures))


def _completed(release: Release) -> ModelManifest:
    if release.bare is None:
        raise SystemExit(release.problem)
    file = release.folder / release.bare.artifacts[0].path
    return complete(release, release.bare, asyncio.run(inspect_file(release.bare.runtime, file, TrialSettings())))


if __name__ == "__main__":
    main()
