"""Process of a trial: it does one job and reports its result.

`runtimes.trial_server` forks it. It dies with the server, leaves no core file, and waits to be killed after its
answer: an engine that crashes during its teardown does no harm here.
"""

from __future__ import annotations

import ctypes
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from gateway.common.domain.errors import ConfigurationError, RequestError, VariantError, is_temporary
from gateway.common.domain.inventory import CPU
from gateway.common.domain.manifest import INDEPENDENT, LEVELS, ModelManifest
from gateway.common.domain.runtimes import RUNTIMES
from gateway.common.domain.selection import TIE_LEAD
from gateway.common.domain.tensor import Tensor, Tensors
from gateway.common.domain.text_model import WRITTEN, is_generative
from gateway.common.domain.verdict import (
    Joining,
    Measurement,
    Parallel,
    SessionBudget,
    Verdict,
    signature_document,
    verdict_document,
)
from gateway.serving.domain.golden import GoldenSet, read_golden
from gateway.serving.domain.joining import UNREADABLE, has_state, unbounded, worst
from gateway.serving.domain.ports import RowProof, Session
from gateway.serving.runtimes import measure
from gateway.serving.runtimes.catalog import get_runtime
from gateway.serving.runtimes.exercise import Exercised, exercise
from gateway.serving.runtimes.generate import extreme_rows
from gateway.serving.runtimes.job import ChildLine, ChildTask, Inspection, Listing, Trial, read_job
from gateway.serving.runtimes.joining import decided, difference, row_runs, widened
from gateway.serving.runtimes.sandbox import SandboxError, SandboxLimits, enter
from gateway.serving.runtimes.settings import TrialSettings
from gateway.serving.tasks.image_input import own_frame
from gateway.serving.tasks.interpreter import interpreter_of

PR_SET_PDEATHSIG = 1  # linux/prctl.h
REMARK_LIMIT_CHARS = 500
"""Most characters of an engine's message that a remark keeps."""
DECLARE = f'if no row depends on others, declare rows = "{INDEPENDENT}" in its manifest.toml'
"""Remedy for a graph that proves nothing."""
CORRECT_TASK = "correct the table [task] in the manifest (docs/pages/reference/tasks.md)"
"""Remedy for a task that cannot read the outputs of its model."""
HOPELESS = 2.0
"""Time of a run with several threads, as a multiple of that with one, from which llama.cpp's are not evaluated.

Threads that wait for each other by spinning take ten times as long on busy cores, and the trial's deadline with it.
"""
JOINING = "joining"
"""Name of the joining proof among the parts of a trial that may be left out."""
Say = Callable[[ChildLine], None]


def main() -> None:
    """Read the job from stdin, and answer on the original stdout."""
    answers = private_stdout()
    with open(0, "rb", closefd=False) as stdin:
        job = read_job(stdin)
        confine(job)
        if isinstance(job.task, Trial):  # for an engine that loads OpenMP when it opens a model
            os.environ["OMP_NUM_THREADS"] = str(job.task.budget.threads)
        answer(job, lambda line: _write(answers, line.encode()))
        stdin.read()  # until the caller closes its end and this process is killed
    os._exit(0)


def confine(job: ChildTask) -> None:
    """Refuse this process what no engine needs on the CPU: other processes, the network, writing (decision 0108).

    Drivers and plugins of accelerators need more. A kernel that cannot confine it runs the trial all the same.
    """
    task = job.task
    on_cpu = isinstance(task, Inspection) or (
        isinstance(task, Trial) and task.budget.accelerator == CPU and not task.budget.provider
    )
    if not on_cpu:
        os.nice(job.settings.nice)
        return
    with suppress(SandboxError):
        runtime = task.variant.runtime if isinstance(task, Trial) else task.runtime
        enter(SandboxLimits(readable=None, nice=job.settings.nice, listens=RUNTIMES[runtime].isolated))


def private_stdout() -> int:
    """Return a descriptor of the original stdout, and redirect stdout to stderr, because engines print."""
    answers = os.dup(1)
    os.set_inheritable(answers, False)
    os.dup2(2, 1)
    return answers


def answer(job: ChildTask, say: Say) -> None:
    """Do the job. The last line has its result or its problem."""
    try:
        line = ChildLine(result=_do(job, say))
    except VariantError as error:
        transient = error.transient or is_temporary(error.reason)
        line = ChildLine(problem=error.reason, remedy=error.remedy, transient=transient)
    except MemoryError:
        line = ChildLine(problem="there is not enough memory", remedy="free memory", transient=True)
    except Exception as error:  # noqa: BLE001 - the process boundary: any error of an engine is the answer
        problem = f"{type(error).__name__}: {error}"
        line = ChildLine(problem=problem, transient=is_temporary(problem))
    say(line)


def _do(job: ChildTask, say: Say) -> dict[str, Any]:
    match job.task:
        case Trial():
            return verdict_document(_try(job.task, job, say))
        case Inspection():
            say(ChildLine(stage="reading the model"))
            return signature_document(get_runtime(job.task.runtime).inspect(job.task.file))
        case Listing():
            say(ChildLine(stage="listing its devices"))
            return {"devices": list(get_runtime(job.task.runtime).devices(*filter(None, [job.task.plugin])))}


def _try(trial: Trial, job: ChildTask, say: Say) -> Verdict:
    """Return the verdict with one thread or, if a model is slow enough to gain by it, with all allowed threads.

    A run shorter than `one_thread_below_us` keeps one thread: more threads cost energy and save no time. A slow model
    is evaluated with several first: with one thread its golden set alone could exceed the deadline. As many runs as
    the cores allow are measured with one thread each, and decide as well.
    """
    began_s, exam = time.monotonic(), _Exam(trial, job.settings, _golden(trial), say)
    if trial.budget.threads == 1 or trial.budget.accelerator != CPU:
        return exam.held(1)
    with exam.opened(1) as session:
        if not exam.prepare(session):
            return exam.unverified(session)
        single_us = exam.once_us(session)
        if single_us < job.settings.one_thread_below_us:
            return exam.judged(session, 1)
        one = exam.chosen(session, 1, single_us)
    several = None
    with suppress(VariantError):  # the engine refuses so many threads: one may still work
        most_us = HOPELESS * single_us if joins(trial.variant.runtime) else math.inf
        several = exam.faster(trial.budget.threads, most_us)
    if several is not None and several.measured:
        many = Parallel(several.threads, several.runs, several.measured.run_us, several.measured.busy_us)
        if exam.cost_us(many) < exam.cost_us(one) * (1.0 - TIE_LEAD):
            return several
    if several is not None and several.passed and time.monotonic() - began_s > job.settings.deadline_s / 2:
        return several  # another round might exceed the deadline, and lose this verdict
    return exam.held(1)


class _Exam:
    """Trial of one variant, opened with the requested number of threads."""

    def __init__(self, trial: Trial, settings: TrialSettings, golden: GoldenSet | None, say: Say) -> None:
        self.trial, self._settings, self._golden, self._say = trial, settings, golden, say
        self._count = min(settings.batch_rows, trial.manifest.max_batch_rows or settings.batch_rows)
        self._rows = measure.golden_rows(trial.manifest, golden, self._count) if golden is not None else []
        self._exercised: Exercised | None = None
        self._unended = frozenset(trial.left_out) - {JOINING}
        self._before_bytes = measure.resident_bytes()
        self._single = True
        self._parallel: dict[tuple[int, int], Parallel] = {}

    @contextmanager
    def opened(self, threads: int) -> Iterator[Session]:
        """Open a session with `threads` threads; closing it is part of the trial, too."""
        trial, budget = self.trial, replace(self.trial.budget, threads=threads, runs=self._most_runs(threads))
        self._single = threads == 1 and budget.accelerator == CPU
        self._enter(f"opening it with {threads} threads" if threads > 1 else "opening it")
        session = get_runtime(trial.variant.runtime).open(trial.manifest, trial.variant, trial.files, budget)
        try:
            yield session
            self._enter("closing it")
        finally:
            session.close()  # a crash here would otherwise end the daemon at the next swap

    def prepare(self, session: Session) -> bool:
        """Find inputs that the model accepts; return False if there are none."""
        if not self._rows:
            self._enter("running it on generated inputs")
            manifest = self.trial.manifest
            run = partial(measure.finished, manifest, session)
            self._exercised = exercise(manifest, run, self._settings, self._begin, self._unended)
            if self._exercised.sample is not None:
                self._rows = measure.generated_rows(manifest, self._exercised.sample, self._count)
        return bool(self._rows)

    def unverified(self, session: Session) -> Verdict:
        """Return the verdict on a model that opens but accepted no generated input.

        Raises VariantError for a model that ended no run: it would never answer, and keep its thread.
        """
        assert self._exercised is not None  # noqa: S101 - prepare() has just returned False
        if self._unended and not self._exercised.tried:
            remedy = "add a golden set, or raise [trial] deadline_s if this device is that slow"
            raise VariantError(self._unended_words(), remedy=remedy)
        remark = f"the last of {self._exercised.tried} generated inputs was refused: {self._exercised.refusal}"
        reason = "no golden set, and no generated input was accepted; add a golden set to have it verified"
        operators = self._operators()
        remarks = (*session.remarks, *filter(None, [self._unended_words()]), remark[:REMARK_LIMIT_CHARS])
        return Verdict(True, reason, unbounded=unbounded(operators), remarks=remarks)

    def once_us(self, session: Session) -> float:
        """Return the approximate duration of a run in µs; see `measure.TimedRuns.quiet_ns`."""
        self._enter("running it once")
        return measure.once_us(session, self._rows[0], single=self._single)

    def held(self, threads: int) -> Verdict:
        """Open, evaluate and measure with `threads` threads."""
        with self.opened(threads) as session:
            return self.judged(session, threads) if self.prepare(session) else self.unverified(session)

    def faster(self, threads: int, most_us: float) -> Verdict | None:
        """Do as `held`; return None, without measuring, if a run takes longer than `most_us`."""
        with self.opened(threads) as session:
            if not self.prepare(session):
                return self.unverified(session)
            return None if most_us < math.inf and self.once_us(session) > most_us else self.judged(session, threads)

    def judged(self, session: Session, threads: int) -> Verdict:
        """Evaluate a session with `threads` threads. If it passes, prove joining and measure."""
        verdict = self._answers(session)
        if not verdict.passed:
            return verdict
        check_task(self.trial.manifest, session, self._rows[0])
        operators = self._operators()
        joining = self._joining(session, operators)
        self._enter("measuring it")
        joined = joining is not None and joining.allowed
        before_bytes, single = self._before_bytes, self._single
        cost = measure.measured(session, self._rows, self._settings, before_bytes, joined=joined, single=single)
        best = self.chosen(session, threads, cost.run_us, cost.memory_bytes)
        cost = replace(cost, busy_us=best.busy_us, memory_bytes=best.memory_bytes)
        if joining is not None:
            joining = self._widened(session, joining, cost)
        words = f"{verdict.reason}, p50 {cost.p50_us:.0f} µs" + (f" with {threads} threads" if threads > 1 else "")
        words += f", {best.runs} runs at a time" if best.runs > 1 else ""
        if is_generative(self.trial.manifest):
            written = int(session.run(self._rows[0])[WRITTEN].ravel()[0])
            words += f", {written / cost.run_us * 1e6:.3g} tokens/s alone"
        verdict = replace(verdict, runs=best.runs, parallel=tuple(self._parallel.values()))
        lacked = joining is not None and is_temporary(joining.reason)  # memory for a joined run
        verdict = replace(verdict, measured=cost, reason=words, threads=threads, joining=joining, transient=lacked)
        return replace(verdict, unbounded=unbounded(operators), remarks=(*session.remarks, *verdict.remarks))

    def chosen(self, session: Session, threads: int, run_us: float, memory_bytes: int = 0) -> Parallel:
        """Measure more and more runs at a time. Return the fewest that answer nearly as many requests as the most do.

        As many as Triton's configuration demands, if it does. A run takes as long as `run_us` alone.
        """
        demanded, most = self.trial.manifest.runs, self._most_runs(threads) if hasattr(session, "widen") else 1
        if joins(self.trial.variant.runtime):  # its engine joins them: more take less time, each and together
            return Parallel(threads, most, run_us, run_us, memory_bytes)
        found, before_bytes = [Parallel(threads, 1, run_us, run_us, memory_bytes)], measure.resident_bytes()
        steps = [runs for runs in (2, 4, 8, 16, 32) if runs < most and not demanded]
        for runs in [*steps, most] if most > 1 and (demanded or run_us >= self._settings.runs_above_us) else ():
            if run_us * (runs + 2 * measure.LEAST_TOGETHER) / 1e6 > self._settings.part_s / 2:
                break
            self._enter(f"running it {runs} times at once")
            timing, longest_s = None, self._settings.measure_s / 2
            with suppress(VariantError, MemoryError):  # the engine refuses so many runs: fewer work
                session.widen(runs)
                timing = measure.together(session, self._rows[0], runs, longest_s, single=self._single)
            if timing is None:
                break
            taken_bytes = memory_bytes + max(0, measure.resident_bytes() - before_bytes)
            if 0 < self.trial.budget.memory_bytes < taken_bytes:
                break
            found.append(Parallel(threads, runs, *timing, taken_bytes))
            if found[-1].busy_us > found[-2].busy_us * (1.0 - TIE_LEAD):
                break
        self._parallel |= {(each.threads, each.runs): each for each in found}
        least_us = min(each.busy_us for each in found)
        return found[-1] if demanded else next(each for each in found if each.busy_us * (1.0 - TIE_LEAD) <= least_us)

    def cost_us(self, measured: Parallel) -> float:
        """Return what the objective minimises when it decides between threads and runs.

        The latency of a device counts alone and under load alike: the geometric mean of a run's time alone, and of the
        time per run while all cores have runs.
        """
        alone_us = measured.run_us if self.trial.budget.objective != "throughput" else measured.busy_us
        return math.sqrt(alone_us * measured.busy_us)

    def _most_runs(self, threads: int) -> int:
        """Return the most runs of `threads` threads that may take place at a time."""
        runs = self.trial.budget.runs
        return runs if joins(self.trial.variant.runtime) else max(1, runs // threads)

    def _answers(self, session: Session) -> Verdict:
        trial, golden = self.trial, self._golden
        if golden is not None:
            self._enter("running its golden set")
            rows = self._settings.golden_batch_rows
            return measure.judged(trial.manifest, session, golden, trial.variant.runtime, rows)
        assert self._exercised is not None  # noqa: S101 - prepare() came before
        if trial.budget.provider and (differs := self._contradiction(session)):
            return Verdict(False, differs, answered=True)
        found = [*filter(None, [self._unended_words()]), *self._exercised.remarks]
        remarks = tuple(remark[:REMARK_LIMIT_CHARS] for remark in found)
        index, reason = self._exercised.index, "no golden set; ran on generated inputs"
        return Verdict(True, reason, answered=True, level=LEVELS[1], sample=index, remarks=remarks)

    def _contradiction(self, session: Session) -> str:
        """Return how the answers of a plugin differ from those of the runtime itself on the CPU, or ""."""
        trial = self.trial
        precision = trial.variant.precision if trial.variant.precision != "int8" else "fp16"  # kernels round otherwise
        self._enter("comparing its answers with those of the runtime itself")
        own = get_runtime(trial.variant.runtime).open(trial.manifest, trial.variant, trial.files, SessionBudget())
        with closing(own):
            answers = [measure.finished(trial.manifest, own, row) for row in self._rows]
        for row, answer in zip(self._rows, answers, strict=True):
            apart, output = worst(answer, measure.finished(trial.manifest, session, row), precision)
            if output:
                return f"answers differ by up to {apart:.3g} from those of the runtime itself (output {output!r})"
        return ""

    def _joining(self, session: Session, operators: frozenset[str]) -> Joining | None:
        """Return whether requests may share a run, or None for a model whose shapes do not count rows.

        The graph or the author permit it. Runs of sample rows cannot: they can only end what the graph proves.
        """
        trial = self.trial
        if not trial.manifest.batched:
            return None
        if self._count == 1:
            return Joining(reason="one row is the most that a run may have")
        basis, obstacle = self._permission(session, operators)
        if JOINING in trial.left_out:
            return Joining(basis, obstacle or "a run of several generated rows did not end")
        extremes = extreme_rows(trial.manifest, self._rows[0])
        taken_s = self.once_us(session) * row_runs(self._count, extremes) / 1e6
        if taken_s > self._settings.part_s:
            remedy = "raise [trial] deadline_s, then run explain --again"
            return Joining(basis, obstacle or f"runs of sample rows would take {taken_s:.0f} s; {remedy}")
        self._begin("running rows apart and together", JOINING, self._settings.part_s)
        run = partial(measure.finished, trial.manifest, session)
        found = difference(run, self._rows, extremes, trial.variant.precision)
        return decided(basis, obstacle, found, len(self._rows))

    def _permission(self, session: Session, operators: frozenset[str]) -> tuple[str, str]:
        """Return the basis of joining ("": none), and why requests may not share a run ("": they may)."""
        trial = self.trial
        if session.rows is None:
            return "", "its file takes one row at a time, so that a joined run would gain nothing"
        if state := has_state(operators):
            return "", state
        self._enter("following its rows through the graph")
        try:
            proof = get_runtime(trial.variant.runtime).prove_rows(trial.variant, trial.files, session.rows)
        except VariantError as error:
            proof = RowProof(reason=error.reason)
        if proof.is_proved:
            return "proved", ""
        if trial.manifest.rows == INDEPENDENT:
            return "declared", ""
        return "", f"{proof}; {DECLARE}"

    def _widened(self, session: Session, joining: Joining, cost: Measurement) -> Joining:
        """Return the proof extended to as many rows as the gateway may join, within the limits of the settings.

        This follows the measurement, because so many rows take memory that a run of one does not.
        """
        trial, settings, row = self.trial, self._settings, self._rows[0]
        row_bytes = sum(array.nbytes for array in row.values())
        most = min(trial.manifest.rows_limit(settings.joined_rows), settings.joined_bytes // max(1, row_bytes))
        if (cost.batch_row_us * most + cost.run_us * self._count) / 1e6 > settings.part_s:
            return joining
        self._enter("running many rows together")
        run = partial(measure.finished, trial.manifest, session)
        return widened(joining, run, self._rows, most, trial.variant.precision)

    def _enter(self, stage: str) -> None:
        self._say(ChildLine(stage=stage))

    def _begin(self, stage: str, part: str, longer_s: float = 0.0) -> None:
        """Enter a stage that may be left out.

        It is limited on the CPU only: a GPU's first run may compile for minutes.
        """
        bounded = self._golden is None and self.trial.budget.accelerator == CPU
        self._say(ChildLine(stage=stage, part=part, limit_s=self._settings.part_s + longer_s if bounded else None))

    def _unended_words(self) -> str:
        count, limit_s = len(self._unended), self._settings.part_s
        return f"runs on generated inputs did not end within {limit_s:g} s ({count} of them)" if count else ""

    def _operators(self) -> frozenset[str]:
        trial = self.trial
        self._enter("reading its graph")
        try:
            return get_runtime(trial.variant.runtime).operators(trial.variant, trial.files)
        except VariantError:
            return frozenset({UNREADABLE})


def joins(runtime: str) -> bool:
    """Return True if a runtime's engine joins the runs of a session by itself."""
    return runtime in RUNTIMES and RUNTIMES[runtime].runs > 0


def check_task(manifest: ModelManifest, session: Session, row: Tensors) -> None:
    """Apply the task of the model to the outputs of a run. Raises VariantError with their shapes if it refuses them."""
    interpreter = interpreter_of(manifest)
    if interpreter is None:
        return
    outputs, frame = measure.finished(manifest, session, row), own_frame(manifest, row)
    inputs = {spec.name: Tensor(spec.datatype, row[spec.name]) for spec in manifest.inputs}
    try:
        interpreter.interpret(outputs, None, inputs, (frame,) * len(next(iter(row.values()))) if frame else ())
    except RequestError as error:
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in outputs.items())
        problem = f"the task {manifest.task} cannot read what a run answered: {error}; the run gave {shapes}"
        raise VariantError(problem, remedy=CORRECT_TASK) from error


def _golden(trial: Trial) -> GoldenSet | None:
    if trial.manifest.golden is None:
        return None
    file = trial.files / trial.manifest.golden.file
    try:
        return read_golden(file.read_bytes(), trial.manifest, str(file))
    except (ConfigurationError, OSError) as error:
        raise VariantError(f"the golden set cannot be read: {error}") from error


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent ends."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _write(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]


if __name__ == "__main__":
    main()
