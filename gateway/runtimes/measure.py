"""Evaluation and measurement of an open session in a trial: correctness, and the cost of a run. Runs in the child."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from gateway.domain.errors import VariantError
from gateway.domain.golden import GoldenSet, compare_golden, joined, portions
from gateway.domain.manifest import LEVELS, ModelManifest, Tolerance, fits
from gateway.domain.ports import Session
from gateway.domain.postprocess import finish_outputs
from gateway.domain.tensor import Array, Tensors
from gateway.domain.verdict import Measurement, Verdict
from gateway.runtimes.generate import InputKind, generated
from gateway.runtimes.joining import stacked
from gateway.runtimes.settings import TrialSettings

LEAST_RUNS = 5
WARMUP_RUNS = 3
BATCH_RUNS = 5


def judged(manifest: ModelManifest, session: Session, golden: GoldenSet, runtime: str, batch_rows: int) -> Verdict:
    """Compare the session's answers to a golden set with the tolerance for `runtime`."""
    tolerances = manifest.golden.tolerance if manifest.golden else {}
    result = compare_golden(
        golden, answered(manifest, session, golden, batch_rows), tolerances.get(runtime, Tolerance())
    )
    word = "passed" if result.passed else "failed"
    reason = f"{word} its golden set: {result.reason}"
    loss, level = result.accuracy_loss, LEVELS[-1] if result.passed else LEVELS[0]
    return Verdict(result.passed, reason, accuracy=result.accuracy, accuracy_loss=loss, answered=True, level=level)


def measured(
    session: Session, rows: Sequence[Tensors], settings: TrialSettings, memory_before_bytes: int, *, joined: bool
) -> Measurement:
    """Measure one-row runs and, if `joined`, rows in a batch. CPU time is that of the whole process."""
    row = rows[0]
    for _ in range(WARMUP_RUNS):
        session.run(row)
    cpu_ns, walls_ns = time.process_time_ns(), list(_timed(session, row, settings))
    cpu_us = (time.process_time_ns() - cpu_ns) / len(walls_ns) / 1000
    walls_ns.sort()
    return Measurement(
        p50_us=walls_ns[len(walls_ns) // 2] / 1000,
        p99_us=walls_ns[int(len(walls_ns) * 0.99)] / 1000,
        cpu_us=cpu_us,
        memory_bytes=max(0, resident_bytes() - memory_before_bytes),
        row_us=_row_us(session, rows) if joined else 0.0,
    )


def once_us(session: Session, row: Tensors) -> float:
    """Return the wall time of one run, after one that warms up."""
    session.run(row)
    start_ns = time.monotonic_ns()
    session.run(row)
    return (time.monotonic_ns() - start_ns) / 1000


def golden_rows(manifest: ModelManifest, golden: GoldenSet, count: int) -> list[dict[str, Array]]:
    """Return the inputs of `count` runs of one row; a shorter golden set is repeated."""
    rows = [portion for portion, _ in zip(portions(manifest, golden, 1), range(count), strict=False)]
    return [rows[index % len(rows)] for index in range(count)]


def generated_rows(manifest: ModelManifest, sample: InputKind, count: int) -> list[dict[str, Array]]:
    """Return the inputs of `count` runs of one row like `sample`."""
    return [generated(manifest, sample, row) for row in range(count)]


def resident_bytes() -> int:
    """Return this process's memory, or 0 if the kernel does not report it (proc(5), statm)."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * resource.getpagesize()


def finished(manifest: ModelManifest, session: Session, inputs: Tensors) -> dict[str, Array]:
    """Return the finished outputs of one run, copied because the session only lends them. Raises VariantError."""
    return {name: answer.copy() for name, answer in finish_outputs(manifest, session.run(inputs)).items()}


def _timed(session: Session, row: Tensors, settings: TrialSettings) -> Iterator[int]:
    end_ns = time.monotonic_ns() + int(settings.measure_s * 1e9)
    for run in range(max(settings.measure_runs, LEAST_RUNS)):
        start_ns = time.monotonic_ns()
        if run >= LEAST_RUNS and start_ns >= end_ns:
            return
        session.run(row)
        yield time.monotonic_ns() - start_ns


def _row_us(session: Session, rows: Sequence[Tensors]) -> float:
    batch = stacked(rows)
    session.run(batch)
    walls_ns = []
    for _ in range(BATCH_RUNS):
        start_ns = time.monotonic_ns()
        session.run(batch)
        walls_ns.append(time.monotonic_ns() - start_ns)
    return sorted(walls_ns)[BATCH_RUNS // 2] / len(rows) / 1000


def answered(manifest: ModelManifest, session: Session, golden: GoldenSet, batch_rows: int) -> dict[str, Array]:
    """Return the finished outputs for a golden set's inputs. Raises VariantError."""
    parts = [_fitting(manifest, session, portion) for portion in portions(manifest, golden, batch_rows)]
    return joined(manifest, golden, parts)


def _fitting(manifest: ModelManifest, session: Session, inputs: Tensors) -> dict[str, Array]:
    """Return the output of `finished`. Raises VariantError if a shape differs from the manifest's."""
    answers = finished(manifest, session, inputs)
    for spec in manifest.outputs:
        shape = answers[spec.name].shape
        if not fits(shape, spec.shape):
            raise VariantError(f"output {spec.name!r} has shape {list(shape)}, the manifest says {list(spec.shape)}")
    return answers
