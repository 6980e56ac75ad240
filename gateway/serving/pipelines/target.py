"""Pipeline as a target of requests: it answers to a name as a model does."""

from __future__ import annotations

import asyncio
import hashlib
import time
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gateway.common.domain.errors import ConfigurationError, Fault, RequestError, VariantError
from gateway.common.domain.events import ServableChanged
from gateway.common.domain.manifest import LEVELS, Golden, ModelManifest, StreamLimits
from gateway.common.domain.pipeline import RUNTIME, ModelStep, Pipeline, PythonStep
from gateway.common.domain.release import Release
from gateway.common.domain.statistics import Placement, RunTimes, ServableStatistics, StepStatistics
from gateway.common.domain.tensor import Array, Datatype, Tensor
from gateway.common.timeouts import wait_for
from gateway.serving.domain.infer import InferRequest, InferResponse
from gateway.serving.domain.lifecycle import ServableState
from gateway.serving.domain.ports import Sink
from gateway.serving.domain.postprocess import classify
from gateway.serving.domain.sizes import request_sizes
from gateway.serving.engine.admission import Admission, Form
from gateway.serving.engine.context import EngineContext
from gateway.serving.engine.cost import Cost
from gateway.serving.engine.quotas import QuotaUse
from gateway.serving.engine.repository import Find
from gateway.serving.engine.run import Ran
from gateway.serving.engine.split import ROUTED
from gateway.serving.engine.streams import RequestRoom, Streams
from gateway.serving.engine.target import ModelTarget
from gateway.serving.engine.ticket import Ticket
from gateway.serving.pipelines.golden import check_golden
from gateway.serving.pipelines.lists import unit_vectors
from gateway.serving.pipelines.passage import RequestPassage
from gateway.serving.pipelines.plan import Plan, plan
from gateway.serving.pipelines.planner import Gallery
from gateway.serving.pipelines.python_process import read_code
from gateway.serving.pipelines.python_steps import PythonWorker, StepTarget, python_words, refuse_python
from gateway.serving.pipelines.runs import ModelRun
from gateway.serving.pipelines.settings import DEFAULTS, PipelineSettings
from gateway.serving.pipelines.slices import Slices
from gateway.serving.pipelines.streams import StreamPassage
from gateway.serving.tasks.frame import Frame

GALLERY_LIMIT_BYTES = 2**30
GALLERY_ENTRIES_LIMIT = 1_000_000


async def open_pipeline(
    release: Release,
    find: Find,
    context: EngineContext,
    old: ModelTarget | None,
    settings: PipelineSettings = DEFAULTS,
) -> ModelTarget:
    """Return the target of a pipeline. It continues the counters of `old` if that has the same inputs and outputs.

    Raises VariantError, transient if a model that it runs does not serve now, and ConfigurationError.
    """
    pipeline = release.pipeline
    if pipeline is None:
        raise VariantError("is no pipeline")
    refuse_python(pipeline, settings)
    codes = {step.file: await asyncio.to_thread(read_code, release.folder / step.file) for step in pipeline.python}
    galleries = {file: await asyncio.to_thread(read_gallery, release.folder / file) for file in pipeline.galleries}
    try:
        own = (release.digest, *[await asyncio.to_thread(gallery_digest, *each) for each in galleries.values()])
        own += tuple(hashlib.sha256(code).hexdigest() for code in codes.values())
        target = PipelineTarget(pipeline, find, galleries.__getitem__, context, own=own, signed=release.signed)
    except RequestError as error:
        words, remedy = f"a model that it runs does not serve: {error.message}", "add or mend that model"
        raise VariantError(words, remedy=remedy, transient=True) from error
    try:
        await target.begin(release.folder, codes)
        if pipeline.golden is not None:
            await _check(target, pipeline.golden, release.folder, old)
    except BaseException:
        await target.end()
        raise
    target.take_streams()
    is_same = old is not None and old.manifest == target.manifest
    target.count_in(old.statistics if old and is_same else ServableStatistics(pipeline.name, pipeline.version))
    target.publish_state(ServableState.AVAILABLE)
    return target


async def _check(target: PipelineTarget, golden: Golden, folder: Path, old: ModelTarget | None) -> None:
    """Run a pipeline's golden set. If it fails, `old` of the same contents refuses requests: it would fail, too.

    Nothing is decided if a model changed meanwhile, or if one of several versions under a route may have failed.
    Raises VariantError, ConfigurationError, OSError.
    """
    contents = target.contents
    try:
        target.proof = await check_golden(target, golden, folder)
    except VariantError as error:
        if ROUTED in (*contents, *target.contents):
            raise VariantError(f"{error}, with several versions of a model under a route", transient=True) from error
        is_compared = not error.transient and error.__cause__ is None  # else a run failed, which the next may not
        if is_compared and isinstance(old, PipelineTarget) and old.contents == contents:
            old.failure, old.failed = str(error), contents
        raise
    if target.contents != contents:
        raise VariantError("a model was replaced while its golden set ran", transient=True)
    target.proven = contents


def read_gallery(file: Path) -> tuple[Array, tuple[bytes, ...]]:
    """Return `vectors` [n, d], made as long as 1, and `labels` [n] of a gallery. Raises ConfigurationError."""
    try:
        vectors, labels = _arrays_of(file)
    except ConfigurationError:
        raise
    except Exception as error:  # noqa: BLE001  numpy and zipfile raise whatever a damaged file leads them to
        words = f"is no gallery: {str(error) or type(error).__name__}"
        words += "; write one with numpy.savez(file, vectors=…, labels=…)"
        raise ConfigurationError(words, file=str(file)) from None
    if vectors.dtype.kind not in "fiu" or vectors.ndim != 2:
        words = f"needs vectors [n, d] of numbers, not {list(vectors.shape)} of {vectors.dtype}"
        raise ConfigurationError(words, file=str(file))
    with np.errstate(over="ignore"):
        vectors = vectors.astype(np.float32)
    if labels.shape != vectors.shape[:1] or labels.dtype.kind != "U":
        words = f"needs vectors [n, d] and n labels (texts), not {list(vectors.shape)} and {list(labels.shape)}"
        raise ConfigurationError(words, file=str(file))
    if len(vectors) > GALLERY_ENTRIES_LIMIT or not np.isfinite(vectors).all():
        words = f"must have at most {GALLERY_ENTRIES_LIMIT} entries, and finite numbers"
        raise ConfigurationError(words, file=str(file))
    return unit_vectors(vectors), tuple(label.encode(errors="replace") for label in labels.tolist())


def gallery_digest(vectors: Array, labels: Sequence[bytes]) -> str:
    """Return a digest of what was read of a gallery: its file may be another one since its release was found."""
    return hashlib.sha256(np.ascontiguousarray(vectors).tobytes() + b"\0".join(labels)).hexdigest()


def _arrays_of(file: Path) -> tuple[Array, Array]:
    with zipfile.ZipFile(file) as archive:
        size = sum(member.file_size for member in archive.infolist())
    if size > GALLERY_LIMIT_BYTES:
        raise ConfigurationError(f"has more than {GALLERY_LIMIT_BYTES} bytes; divide it", file=str(file))
    with np.load(file, allow_pickle=False) as content:
        return np.asarray(content["vectors"]), np.asarray(content["labels"])


def reached(models: Iterable[tuple[str, str]], find: Find) -> set[str]:
    """Return the names of the models that a pipeline runs, and of those that its pipelines run."""
    found, left = set[str](), list(models)
    while left:
        model, version = left.pop()
        if model not in found:
            found.add(model)
            target = find(model, version)
            left += target.models if isinstance(target, PipelineTarget) else ()
    return found


class PipelineTarget:
    """One version of a pipeline. Implements ModelTarget. Create it on the event loop.

    Raises RequestError if a model that it needs does not serve, ConfigurationError if parts do not fit.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        find: Find,
        gallery: Gallery,
        context: EngineContext,
        *,
        own: tuple[str, ...],
        signed: bool = False,
    ) -> None:
        self._pipeline, self.find, self._gallery, self._context, self._own = pipeline, find, gallery, context, own
        self._workers = dict[str, PythonWorker]()
        self.settings, self.preparing, self.comparing = context.settings, context.preparing, context.comparing
        self._misfit: tuple[list[ModelManifest], str] = [], ""
        """Manifests of the models that did not fit any more, and why: a request does not plan for them again."""
        self._plan = self._planned()
        self.manifest = self.declared = self._plan.manifest
        self.count_in(ServableStatistics(pipeline.name, pipeline.version))
        rows = self.rows_of(self.manifest)
        self.sizes = request_sizes(self.manifest, rows, context.settings.request_slack_bytes)
        self._admission = Admission(self.manifest, Cost(), max_batch_rows=rows, forms=context.settings.forms)
        self.check = self._admission.check
        self.used_ns, self._signed = time.monotonic_ns(), signed
        self._queue = context.settings.queue_of(pipeline.name)
        if self._queue.policy != "reject":
            words = f"the queue of a pipeline has no policy {self._queue.policy!r}; give it to the queues of its models"
            raise ConfigurationError(words, table="limits.queue", key="policy")
        self._under_way = RequestRoom[RequestPassage](f"pipeline '{pipeline.name}'", self._queue, context.settings)
        self._lingering = set[Future[Any]]()
        self.streams, self.declared_as = Streams(pipeline.state or StreamLimits()), (pipeline.name, *own, pipeline.text)
        self._closed = False
        self.proven, self.proof = tuple[str, ...](), ""
        """Contents that reached its golden set, and how."""
        self.failed, self.failure = tuple[str, ...](), ""
        """Contents that did not reach it, and why; requests are refused as long as they serve."""

    @property
    def placement(self) -> Placement:
        """Return that it is a pipeline, and of which models."""
        named = ", ".join(f"{model}@{version}" if version else model for model, version in self._pipeline.models)
        rows = self.rows_of(self.manifest)
        proof = self.proof if self.contents == self.proven else ""
        runs, code = f", runs {named}" if named else "", python_words(self._pipeline)
        reason = "; ".join(filter(None, (f"{len(self._pipeline.steps)} steps{runs}", code, proof)))
        level, declared = LEVELS[-1] if proof else "", self._pipeline
        return Placement(RUNTIME, RUNTIME, "", "", reason, rows, self._signed, level, pipeline=declared)

    @property
    def models(self) -> tuple[tuple[str, str], ...]:
        """Return name and version of the models that it runs."""
        return self._pipeline.models

    @property
    def busy(self) -> bool:
        """Return True if a request is under way."""
        return bool(self._under_way)

    @property
    def fits(self) -> bool:
        """Return False if a model was replaced by one that makes other inputs or outputs, or fails the golden set.

        One with a golden set is opened again for other models, and runs it.
        """
        try:
            if self._pipeline.golden and "" not in (now := self.contents) and now != self.proven:
                return False
            self._current()
        except RequestError as error:
            return not isinstance(error.__cause__, ConfigurationError)
        return True

    @property
    def refusal(self) -> str:
        """Implement `RequestTarget.refusal`: why its golden set failed with what serves now."""
        if not self.failure:
            return ""
        now = self.contents
        return self.failure if now == self.failed or (ROUTED in now and set(self.failed) <= set(now)) else ""

    @property
    def ready(self) -> bool:
        """Implement `RequestTarget.ready`: whether each step without a fallback has a model that is."""
        try:
            steps = [run.step for run in self._current().models if run.step.fallback is None]
        except RequestError:
            return False
        return all(self.target_of(step).ready for step in steps)

    @property
    def contents(self) -> tuple[str, ...]:
        """Implement `RequestTarget.contents`: of its release and galleries, and of the models that it runs now."""
        found = list(self._own)
        for named in self.models:
            try:
                found += self.find(*named).contents
            except RequestError:
                found.append("")
        return tuple(found)

    def target_of(self, step: ModelStep) -> StepTarget:
        """Return what the rows of a step are given to. Raises RequestError."""
        return self._workers[step.model] if isinstance(step, PythonStep) else self.find(step.model, step.version)

    async def begin(self, folder: Path, codes: Mapping[str, bytes]) -> None:
        """Start the processes of its Python code. Raises VariantError."""
        for run in self._plan.models:
            if isinstance(step := run.step, PythonStep):
                code = folder, codes[step.file]
                worker = PythonWorker(self._pipeline, step, run.manifest, code=code, context=self._context)
                self._workers[step.model] = worker
                await worker.open()

    async def end(self) -> None:
        """End the processes of its Python code."""
        await asyncio.gather(*(worker.close() for worker in self._workers.values()))

    def rows_of(self, manifest: ModelManifest) -> int:
        """Return the most rows that one request for a model has; 1 for a model without rows."""
        return manifest.rows_limit(self.settings.max_batch_rows) if manifest.batched else 1

    def count_in(self, statistics: ServableStatistics) -> None:
        """Count from now on in `statistics`, with what it has of steps of the same names."""
        names = [run.name for run in self._plan.runs]
        self.statistics, self.steps = statistics, [statistics.steps.get(name) or StepStatistics() for name in names]
        statistics.steps = dict(zip(names, self.steps, strict=True))

    def take_streams(self) -> None:
        """Go on with the streams of the same contents and declaration, without those of its golden set."""
        limits = self._pipeline.state or StreamLimits()
        self.streams = self._context.streams.of(self.declared_as, limits, often=True)

    def counted(self, weight: int) -> ServableStatistics:
        """Implement `ModelTarget.counted`."""
        counted = self.statistics
        counted.queued, counted.busy, counted.weight = len(self._under_way), self.busy, weight
        for run, step in zip(self._plan.runs, self.steps, strict=True):
            if isinstance(run, ModelRun) and isinstance(run.step, PythonStep):
                step.row_cpu_ns = self._workers[run.step.model].row_cpu_ns
                continue
            with suppress(RequestError):  # it does not serve now
                if isinstance(run, ModelRun):
                    step.row_cpu_ns = round(self.find(run.step.model, run.step.version).placement.cpu_us * 1000)
        return counted

    def close_batches(self) -> None:
        """Implement `ModelTarget.close_batches`: there are none."""

    def rows_together(self, _row_bytes: int) -> int:
        """Implement `RequestTarget.rows_together`."""
        return self.rows_of(self.manifest)

    def raw_batch(self, _request: InferRequest) -> None:
        """Return None: each request goes its own way."""

    def ask_beside(
        self,
        _inputs: Mapping[str, Tensor],
        _form: Form | None,
        _ended: Callable[[Ran | None], None],
        _frames: Sequence[Frame] = (),
    ) -> bool:
        """Return False: its models are compared, each by itself."""
        return False

    def submit(
        self,
        request: InferRequest,
        sink: Sink,
        token: Any,
        account: QuotaUse | None = None,
        frames: Sequence[Frame] = (),
    ) -> Ticket:
        """Implement `Submission.submit`."""
        now_ns = time.monotonic_ns()
        try:
            form = self._admission.form(request)
            self._check_room(request, now_ns)
            plan = self._current()
            self._under_way.make_room(request, self.streams, self.statistics, self._displace, len(self._lingering))
        except RequestError:
            self.statistics.fail.add(time.monotonic_ns() - now_ns)
            raise
        ticket = Ticket(request, form, request.inputs, sink, token, self, now_ns, account, frames)
        passage = (StreamPassage if plan.states else RequestPassage)(self, plan, ticket)
        self._under_way.add(ticket, passage)
        loop = asyncio.get_running_loop()
        if request.deadline_ns is not None:
            ticket.timer = loop.call_at(request.deadline_ns / 1e9, self._expire, passage)
        loop.call_soon(passage.begin)
        return ticket

    def _check_room(self, request: InferRequest, now_ns: int) -> None:
        """Refuse a request that is late, or one too many."""
        if request.deadline_ns is not None and request.deadline_ns <= now_ns:
            self.statistics.drop("expired")
            words = f"the request's time was over before pipeline '{self.manifest.name}' could run it"
            raise RequestError(Fault.EXPIRED, words)
        if self._closed:
            raise self._unloaded()

    def _displace(self, passage: RequestPassage, error: RequestError) -> None:
        """Refuse a request that lost its place to another caller's."""
        passage.cancel()
        if not passage.ticket.done:
            self.statistics.drop("share")
            self.refused(passage, error)

    def _expire(self, passage: RequestPassage) -> None:
        if not passage.ticket.done:
            passage.expire()

    def linger(self, future: Future[Any]) -> None:
        """Count work on a thread that goes on although its request is over toward the limit of requests."""
        self._lingering.add(future)
        future.add_done_callback(self._lingering.discard)  # on its thread: it is atomic

    def leave(self, ticket: Ticket) -> None:
        """Implement `TicketOwner.leave`: cancel what its steps submitted."""
        self.statistics.abandoned(time.monotonic_ns() - ticket.queued_ns)
        if (passage := self._under_way.remove(ticket)) is not None:
            passage.cancel()

    def finished(self, passage: RequestPassage) -> None:
        """Answer a request all of whose steps are over."""
        wanted = [output.name for output in passage.ticket.form.outputs]
        if not passage.plan.is_long(passage.values, wanted):
            self._answer(passage)
            return
        try:
            passage.answer_apart(self._outputs_apart(passage), partial(self._answer, passage))
        except RuntimeError as error:
            words = f"pipeline '{self.manifest.name}': no thread makes its outputs now ({error}); come back later"
            retry_after_s = self.settings.retry_after_s
            self.refused(passage, RequestError(Fault.OVERLOADED, words, retry_after_s=retry_after_s))

    def _outputs_apart(self, passage: RequestPassage) -> Slices[dict[str, Tensor]]:
        yield
        return self._outputs(passage)

    def _answer(self, passage: RequestPassage, made: Future[dict[str, Tensor]] | None = None) -> None:
        ticket, manifest = passage.ticket, self.manifest
        if ticket.done:
            return
        try:
            outputs = self._outputs(passage) if made is None else made.result()
        except Exception as error:  # noqa: BLE001  one request's boundary
            words = f"pipeline '{manifest.name}': its outputs fail: {type(error).__name__}: {error}"
            self.refused(passage, RequestError(Fault.INTERNAL, words))
            return
        now_ns = self.used_ns = time.monotonic_ns()
        took_ns = now_ns - ticket.queued_ns
        self.statistics.answered((ticket.queued_ns,), now_ns)
        times = RunTimes(0, 0, took_ns, 0, time.time_ns() // 1_000_000)
        self.statistics.executed(1, ticket.form.rows, times, RUNTIME)
        self.statistics.ignored_parameters += ticket.request.ignored_parameters
        self._end(ticket)
        passage.cancel()  # it lets go of the work on threads, which holds it
        ticket.sink.answer(
            ticket.token, InferResponse(manifest.name, manifest.version, ticket.request.id, outputs, RUNTIME)
        )
        ticket.sink.flush()

    def _outputs(self, passage: RequestPassage) -> dict[str, Tensor]:
        """Return the outputs that a request asks for."""
        wanted = passage.ticket.form.outputs
        arrays = passage.plan.answers(passage.values, [output.name for output in wanted])
        specs = {spec.name: spec.datatype for spec in passage.plan.manifest.outputs}
        outputs = dict[str, Tensor]()
        for output in wanted:
            array, datatype = arrays[output.name], specs[output.name]
            if output.classification:
                array, datatype = classify(array, output.classification, (), batched=True), Datatype.BYTES
            outputs[output.name] = Tensor(datatype, array)
        return outputs

    def refused(self, passage: RequestPassage, error: RequestError) -> None:
        """Refuse a request one of whose steps failed, and cancel the others."""
        ticket = passage.ticket
        if ticket.done:
            return
        self.statistics.fail.add(time.monotonic_ns() - ticket.queued_ns)
        if error.fault is Fault.EXPIRED:
            self.statistics.drop("expired")
        self._end(ticket)
        passage.cancel()
        ticket.sink.refuse(ticket.token, error)
        ticket.sink.flush()

    async def close(self, drain_s: float) -> None:
        """Implement `ModelTarget.close`."""
        self.publish_state(ServableState.UNLOADING)
        self._closed = True
        with suppress(TimeoutError):
            await wait_for(self._under_way.none.wait(), drain_s)
        for passage in self._under_way.passages():
            self.refused(passage, self._unloaded())
        await self.end()
        self.publish_state(ServableState.END)

    def _end(self, ticket: Ticket) -> None:
        ticket.end()
        self._under_way.remove(ticket)

    def _unloaded(self) -> RequestError:
        return self._away("it was unloaded")

    def publish_state(self, state: ServableState) -> None:
        """Publish that it answers, or answers no more."""
        self._context.publish(ServableChanged(self.manifest.name, self.manifest.version, state.value, ""))

    def _planned(self) -> Plan:
        """Compile the pipeline against the models that serve now."""
        own, models = self._pipeline.name, self._pipeline.models
        if own in dict(models) or own in reached(models, self.find):
            raise ConfigurationError("runs itself, perhaps by a pipeline that it runs", file=self._pipeline.file)
        return plan(self._pipeline, lambda *named: self.find(*named).manifest, self._gallery)

    def _current(self) -> Plan:
        """Return the plan for the models that serve now. Raises RequestError UNAVAILABLE if they do not fit any more.

        A step with a fallback needs no model.
        """
        if words := self.refusal:
            raise self._away(f"a model was replaced: {words}")
        if all(self._fits(run) for run in self._plan.models):
            return self._plan
        try:
            manifests = [self.find(*named).manifest for named in self._pipeline.models]
            self._plan = self._replanned(manifests)
        except RequestError as error:
            raise self._away(error.message, error) from error
        except ConfigurationError as error:
            self._misfit = manifests, str(error)
            raise self._away(f"a model was replaced: {error}") from error
        return self._plan

    def _replanned(self, manifests: Sequence[ModelManifest]) -> Plan:
        """Return a plan for models that were replaced. Raises ConfigurationError if they do not fit."""
        known, words = self._misfit
        if len(known) == len(manifests) and all(a is b for a, b in zip(known, manifests, strict=True)):
            raise ConfigurationError(words)
        fresh = self._planned()
        if fresh.manifest != self.manifest:
            raise ConfigurationError("the inputs or outputs change; it is being loaded again")
        for run in fresh.models:
            if isinstance(run.step, PythonStep):
                self._workers[run.step.model].adopt(run.manifest)
        return fresh

    def _fits(self, run: ModelRun) -> bool:
        try:
            if isinstance(run.step, PythonStep):
                worker = self._workers[run.step.model]
                if not worker.ready:
                    raise worker.away()
                return True
            return run.fits(self.find(run.step.model, run.step.version).manifest)
        except RequestError as error:
            if run.step.fallback is not None:
                return True
            raise self._away(f"step '{run.name}': {error.message}", error) from error

    def _away(self, words: str, error: RequestError | None = None) -> RequestError:
        return RequestError(
            Fault.UNAVAILABLE,
            f"pipeline '{self.manifest.name}': {words}",
            retry_after_s=self.settings.retry_after_s,
            is_loading=error is not None and error.is_loading,
        )
