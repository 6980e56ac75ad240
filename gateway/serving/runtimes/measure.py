"""Evaluation and measurement of an open session in a trial: correctness, and the cost of a run. Runs in the child."""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from gateway.common.domain.errors import VariantError
from gateway.common.domain.manifest import LEVELS, ModelManifest, Tolerance, fits
from gateway.common.domain.noise import NoiseSnapshot, median, quiet_ns
from gateway.common.domain.tensor import Array, Tensors
from gateway.common.domain.verdict import Measurement, Verdict
from gateway.serving import machine_noise
from gateway.serving.domain.golden import GoldenSet, compare_golden, joined, portions
from gateway.serving.domain.ports import Session
from gateway.serving.domain.postprocess import finish_outputs
from gateway.serving.runtimes.generate import InputKind, generated
from gateway.serving.runtimes.joining import stacked
from gateway.serving.runtimes.settings import TrialSettings

LEAST_RUNS = 5
LEAST_TOGETHER = 2
"""Least runs of each thread that are measured at a time with those of others."""
WARMUP_RUNS = 3


def judged(manifest: ModelManifest, session: Session, golden: GoldenSet, runtime: str, batch_rows: int) -> Verdict:
    """Compare the session's answers to a golden set with the tolerance for `runtime`."""
    tolerances = manifest.golden.tolerance if manifest.golden else {}
    result = compare_golden(
        golden, answered(manifest, session, golden, batch_rows), tolerances.get(runtime, Tolerance())
    )
    loss, level = result.accuracy_loss, LEVELS[-1] if result.passed else LEVELS[0]
    return Verdict(
        result.passed, result.words, accuracy=result.accuracy, accuracy_loss=loss, answered=True, level=level
    )


@dataclass(frozen=True, slots=True)
class TimedRuns:
    """Wall and CPU times of runs, between two snapshots of the machine's noise. CPU time is that of the process."""

    walls_ns: list[int]
    cpus_ns: list[int]
    first: NoiseSnapshot
    last: NoiseSnapshot

    def quiet_ns(self, *, single: bool) -> float:
        """Return the time of a run; if a `single` thread of the CPU runs it, without its waits for a processor."""
        return quiet_ns(self.walls_ns, self.cpus_ns, self.first, self.last) if single else median(self.walls_ns)


def measured(
    session: Session,
    rows: Sequence[Tensors],
    settings: TrialSettings,
    memory_before_bytes: int,
    *,
    joined: bool,
    single: bool,
) -> Measurement:
    """Measure one-row runs and, if `joined`, rows in a batch. `single`: one thread of the CPU runs the model."""
    for _ in range(WARMUP_RUNS):
        session.run(rows[0])
    timing = timed(session, rows[0], max(settings.measure_runs, LEAST_RUNS), settings.measure_s)
    walls_ns, run_ns = sorted(timing.walls_ns), timing.quiet_ns(single=single)
    p50_ns, row_us, quiet_row_us = median(walls_ns), 0.0, 0.0
    if joined:
        batch = stacked(rows)
        session.run(batch)
        together = timed(session, batch, LEAST_RUNS)
        row_us = median(together.walls_ns) / len(rows) / 1000
        quiet_row_us = together.quiet_ns(single=single) / len(rows) / 1000
    waited_ns = timing.last.waited_ns - timing.first.waited_ns
    waited = 1 - run_ns / p50_ns if single else waited_ns / sum(walls_ns)
    found, disturbed = machine_noise.conditions_since(timing.first, waited)
    return Measurement(
        p50_us=p50_ns / 1000,
        p99_us=walls_ns[int(len(walls_ns) * 0.99)] / 1000,
        cpu_us=sum(timing.cpus_ns) / len(walls_ns) / 1000,
        memory_bytes=max(0, resident_bytes() - memory_before_bytes),
        row_us=row_us,
        quiet_us=run_ns / 1000,
        quiet_row_us=quiet_row_us,
        conditions=found,
        disturbed=disturbed,
    )


def together(session: Session, row: Tensors, runs: int, longest_s: float, *, single: bool) -> tuple[float, float]:
    """Return the time of a run in µs while `runs` of a widened session take place, and the time per run of all of them.

    `single`: one thread of the CPU runs each. Its waits for a processor are not counted, as in `quiet_ns`.
    """
    sessions = [session, *session.peers][:runs]
    for each in sessions:
        each.run(row)
    walls_ns = list[int]()
    clock, start = time.monotonic_ns, threading.Barrier(runs)

    def work(each: Session) -> None:
        start.wait()
        count, end_ns = 0, clock() + int(longest_s * 1e9)
        while count < LEAST_TOGETHER or clock() < end_ns:
            began_ns = clock()
            each.run(row)
            walls_ns.append(clock() - began_ns)
            count += 1

    first, cpu_ns, began_ns = machine_noise.snapshot(), time.process_time_ns(), clock()
    with ThreadPoolExecutor(runs) as threads:
        list(threads.map(work, sessions))
        last = machine_noise.snapshot()  # before the threads end, and with them what they waited
    passed_ns, count = clock() - began_ns, len(walls_ns)
    if not single:
        return median(walls_ns) / 1000, passed_ns / count / 1000
    mean_ns = (time.process_time_ns() - cpu_ns) // count
    run_us = quiet_ns(walls_ns, [mean_ns] * count, first, last) / 1000
    return run_us, run_us / runs


def once_us(session: Session, row: Tensors, *, single: bool) -> float:
    """Return the time of one run, after one that warms up; see `TimedRuns.quiet_ns`."""
    session.run(row)
    return timed(session, row, 1).quiet_ns(single=single) / 1000


def timed(session: Session, inputs: Tensors, most: int, longest_s: float = 0.0) -> TimedRuns:
    """Run `most` times; if that takes longer than `longest_s`, LEAST_RUNS times at least."""
    clock, cpu_clock, walls_ns, cpus_ns = time.monotonic_ns, time.process_time_ns, list[int](), list[int]()
    first, end_ns = machine_noise.snapshot(), clock() + int(longest_s * 1e9)
    while len(walls_ns) < most and (len(walls_ns) < LEAST_RUNS or clock() < end_ns):
        cpu_ns, start_ns = cpu_clock(), clock()
        session.run(inputs)
        walls_ns.append(clock() - start_ns)
        cpus_ns.append(cpu_clock() - cpu_ns)
    return TimedRuns(walls_ns, cpus_ns, first, machine_noise.snapshot())


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
