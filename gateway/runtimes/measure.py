"""What a trial finds out about an open session: whether it answers rightly, and what a run costs. Runs in the child."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gateway.domain.errors import VariantError
from gateway.domain.golden import GoldenSet, judge
from gateway.domain.manifest import ROWS, ModelManifest, TensorSpec, Tolerance, fits
from gateway.domain.ports import Session
from gateway.domain.postprocess import finish_outputs
from gateway.domain.tensor import Array, Datatype, Tensors
from gateway.domain.verdict import Measurement, Verdict
from gateway.runtimes.settings import TrialSettings

LEAST_RUNS = 5
WARMUP_RUNS = 3
BATCH_RUNS = 5
SEED = 20


def generated_inputs(manifest: ModelManifest) -> dict[str, Array]:
    """One row from a fixed seed: floats in 0..1, integers 0 or 1 (safe as indices), BYTES empty; open sizes are 1."""
    random = np.random.default_rng(SEED)
    return {spec.name: _generated(spec, random) for spec in manifest.inputs}


def _generated(spec: TensorSpec, random: np.random.Generator) -> Array:
    shape = tuple(1 if size == ROWS else size for size in spec.shape)
    if spec.datatype is Datatype.BYTES:
        return np.full(shape, b"", object)
    if spec.datatype.dtype.kind == "f":
        return np.asarray(random.random(shape)).astype(spec.datatype.dtype)
    return random.integers(0, 2, shape).astype(spec.datatype.dtype)


def judged(manifest: ModelManifest, session: Session, golden: GoldenSet, runtime: str, batch_rows: int) -> Verdict:
    """Hold the session's answers to a golden set against the tolerance for `runtime`."""
    tolerances = manifest.golden.tolerance if manifest.golden else {}
    result = judge(golden, _answers(manifest, session, golden, batch_rows), tolerances.get(runtime, Tolerance()))
    word = "passed" if result.passed else "failed"
    reason = f"{word} its golden set: {result.reason}"
    loss = result.accuracy_loss
    return Verdict(result.passed, reason, accuracy=result.accuracy, accuracy_loss=loss, answered=True)


def repeated(manifest: ModelManifest, session: Session) -> Verdict:
    """The gate of a model without a golden set: two runs on generated inputs, finite and equal."""
    inputs = generated_inputs(manifest)
    first = _run(manifest, session, inputs)
    second = _run(manifest, session, inputs)
    for name, answer in first.items():
        if answer.dtype.kind == "f" and not np.isfinite(answer).all():
            return Verdict(
                False, f"no golden set; output {name!r} holds NaN or infinity for generated inputs", answered=True
            )
        if not np.array_equal(answer, second[name]):
            return Verdict(
                False, f"no golden set; output {name!r} differs between two runs on the same inputs", answered=True
            )
    return Verdict(True, "no golden set; two runs finite and equal", answered=True)


def measured(
    manifest: ModelManifest, session: Session, row: Tensors, settings: TrialSettings, memory_before_bytes: int
) -> Measurement:
    """Cost of one-row runs and of rows in a batch. CPU time is the whole process's, the engine's threads included."""
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
        row_us=_row_us(session, row, settings.batch_rows) if manifest.batched else 0.0,
    )


def once_us(session: Session, row: Tensors) -> float:
    """Wall time of one run, after one that warms up."""
    session.run(row)
    start_ns = time.monotonic_ns()
    session.run(row)
    return (time.monotonic_ns() - start_ns) / 1000


def first_row(manifest: ModelManifest, golden: GoldenSet | None) -> Tensors:
    """The inputs of one run: the golden set's first, else generated ones."""
    return generated_inputs(manifest) if golden is None else next(_portions(manifest, golden, 1))


def resident_bytes() -> int:
    """This process's memory, 0 where the kernel does not tell (proc(5), statm)."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * resource.getpagesize()


def _timed(session: Session, row: Tensors, settings: TrialSettings) -> Iterator[int]:
    end_ns = time.monotonic_ns() + int(settings.measure_s * 1e9)
    for run in range(max(settings.measure_runs, LEAST_RUNS)):
        start_ns = time.monotonic_ns()
        if run >= LEAST_RUNS and start_ns >= end_ns:
            return
        session.run(row)
        yield time.monotonic_ns() - start_ns


def _row_us(session: Session, row: Tensors, rows: int) -> float:
    batch = {name: np.repeat(array, rows, axis=0) for name, array in row.items()}
    session.run(batch)
    walls_ns = []
    for _ in range(BATCH_RUNS):
        start_ns = time.monotonic_ns()
        session.run(batch)
        walls_ns.append(time.monotonic_ns() - start_ns)
    return sorted(walls_ns)[BATCH_RUNS // 2] / rows / 1000


def _answers(manifest: ModelManifest, session: Session, golden: GoldenSet, batch_rows: int) -> dict[str, Array]:
    parts = [_run(manifest, session, portion) for portion in _portions(manifest, golden, batch_rows)]
    join = np.concatenate if manifest.batched or _whole(manifest, golden) else np.stack
    return {spec.name: join([part[spec.name] for part in parts]) for spec in manifest.outputs}


def _portions(manifest: ModelManifest, golden: GoldenSet, batch_rows: int) -> Iterator[dict[str, Array]]:
    """Golden inputs as the manifest's shapes take them: some rows at once, the whole, or one row without its axis."""
    arrays = {spec.name: _typed(spec, golden.inputs[spec.name]) for spec in manifest.inputs}
    if not manifest.batched and _whole(manifest, golden):
        yield arrays
        return
    rows = len(next(iter(arrays.values())))
    if rows == 0:
        raise VariantError("the golden set has no rows", remedy="write a golden set with at least one row")
    for start in range(0, rows, batch_rows if manifest.batched else 1):
        part = slice(start, start + batch_rows) if manifest.batched else start
        yield {name: array[part] for name, array in arrays.items()}


def _whole(manifest: ModelManifest, golden: GoldenSet) -> bool:
    """Whether the golden inputs are one run as they stand: their rank is the manifest's."""
    return all(golden.inputs[spec.name].ndim == len(spec.shape) for spec in manifest.inputs)


def _typed(spec: TensorSpec, array: Array) -> Array:
    """npz has no object arrays: BYTES are stored as fixed-width strings of bytes."""
    return array.astype(spec.datatype.dtype, copy=False)


def _run(manifest: ModelManifest, session: Session, inputs: Tensors) -> dict[str, Array]:
    """Finished outputs of one run, copied because the session only lends them. Raises VariantError on a wrong shape."""
    answers = finish_outputs(manifest, session.run(inputs))
    for spec in manifest.outputs:
        shape = answers[spec.name].shape
        if not fits(shape, spec.shape):
            raise VariantError(f"output {spec.name!r} has shape {list(shape)}, the manifest says {list(spec.shape)}")
    return {name: answer.copy() for name, answer in answers.items()}
