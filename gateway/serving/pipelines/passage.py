"""One request's way through a pipeline: each step runs as soon as those that it needs are over. On the event loop.

A step with a model submits rows to the model's own queue, next to all other callers, and receives them as a sink.
Tensors are passed by reference. Images are decoded and prepared, and large galleries compared, on the threads of
pipelines, in slices.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.pipeline import IMAGE, REQUEST_ROWS_LIMIT, TEXT, ModelStep, PythonStep
from gateway.common.domain.statistics import StepStatistics
from gateway.common.domain.tensor import Array, Datatype, Tensor
from gateway.serving.domain.infer import END, START, InferRequest, InferResponse, SequenceState
from gateway.serving.domain.ports import Pending
from gateway.serving.engine.settings import EngineSettings
from gateway.serving.engine.split import Split
from gateway.serving.engine.threads import Threads
from gateway.serving.engine.ticket import Ticket
from gateway.serving.pipelines.columns import RowSet, StepError, Values, spread
from gateway.serving.pipelines.plan import Plan
from gateway.serving.pipelines.python_steps import StepTarget
from gateway.serving.pipelines.runs import PLACES, Column, DecodeRun, LocalRun, ModelRun
from gateway.serving.pipelines.slices import Slices, begin_slices, whole_of
from gateway.serving.pipelines.tensors import (
    cast,
    decoded_views,
    fed_all,
    filled,
    joined_rows,
    prepared,
    row_bytes,
    shaped,
)
from gateway.serving.tasks.frame import Frame
from gateway.serving.tasks.interpreter import ABSENT, PREFIX
from gateway.serving.tasks.views import View

PARTS_AT_ONCE = 8
"""Most parts of one step's rows in the queue of a model: the others wait, so that they take no place from others."""
LOOP_VIEWS = 16
"""Most parts of images that are cut out on the event loop; one between corners takes 0.1 ms."""
PREPARED_BYTES = 2**28
"""Most bytes of one step's images as tensors, in parts that are prepared, wait or run; two parts of a row at least."""

NO_STATE = SequenceState()
CALLERS_FAULTS = frozenset({Fault.INVALID, Fault.TOO_LARGE})
"""Refusals of what the request has, for which no fallback answers unless a model failed in its run."""


@dataclass(slots=True)
class Under:
    """Model's step under way: the rows that run, their parts that are answered, and how many are not.

    `most`: rows of a part. `sent`: how many parts were begun, `at_once` of them may be under way. `columns`: what all
    parts are made of; `images`: those of them that are prepared part by part. `state`: that of a model with sequences
    after the parts that are answered; it is the stream's when the step is over.
    """

    run: ModelRun
    began_ns: int
    chosen: Array | None = None
    parts: list[InferResponse | None] = field(default_factory=list)
    left: int = 0
    most: int = 1
    sent: int = 0
    at_once: int = 1
    timer: asyncio.TimerHandle | None = None
    images: Sequence[View] | Array = ()
    columns: Sequence[Array] = ()
    state: SequenceState | None = None

    def stop_timer(self) -> None:
        """Forget the step's deadline: it is over."""
        if self.timer is not None:
            self.timer.cancel()


class PassageOwner(Protocol):
    """Pipeline of a passage; a `PipelineTarget` is one. `steps`: counters in the order of the plan's runs."""

    settings: EngineSettings
    preparing: Threads
    steps: list[StepStatistics]

    def target_of(self, step: ModelStep) -> StepTarget:
        """Return what the rows of a step are given to. Raises RequestError."""

    def linger(self, future: Future[Any]) -> None:
        """Count work on a thread that goes on although its request is over toward the limit of requests."""

    def finished(self, passage: RequestPassage) -> None:
        """Answer a request all of whose steps are over."""

    def refused(self, passage: RequestPassage, error: RequestError) -> None:
        """Refuse a request one of whose steps failed."""


class RequestPassage:
    """Request under way. It is the sink of the requests that it makes, whose tokens are step and part."""

    __slots__ = (
        "_answering",
        "_left",
        "_needed",
        "_pending",
        "_pixels",
        "_ready",
        "_shared",
        "_target",
        "_threaded",
        "_under",
        "_unsent",
        "plan",
        "ticket",
        "values",
    )

    def __init__(self, target: PassageOwner, plan: Plan, ticket: Ticket) -> None:
        self._target, self.plan, self.ticket = target, plan, ticket
        self.values: Values = [None] * plan.slots
        self._needed = [len(run.needs) for run in plan.runs]
        self._left, self._answering = len(plan.runs), False
        self._under = dict[int, Under]()
        self._unsent = set[int]()
        self._pixels = [target.settings.image_pixels]
        self._shared = dict[object, Future[Any]]()
        self._threaded = dict[Future[Any], int]()
        self._pending = dict[tuple[int, int], Pending]()
        self._ready = [index for index, count in enumerate(self._needed) if not count]

    # ---- as the sink of its parts ------------------------------------------------------------------------------------
    def part(self, token: tuple[int, int], response: InferResponse) -> None:
        """Implement `Sink.part`: steps ask for none."""

    def answer(self, token: tuple[int, int], response: InferResponse) -> None:
        """Implement `Sink.answer`."""
        index, part = token
        self._pending.pop(token, None)
        under = self._under.get(index)
        if under is not None:
            under.parts[part] = response
            under.state = response.state
            under.left -= 1
            if not under.left:
                del self._under[index]
                self._step(index, partial(self._finish, index, under))
            elif under.sent < len(under.parts):
                self._unsent.add(index)

    def refuse(self, token: tuple[int, int], error: RequestError) -> None:
        """Implement `Sink.refuse`."""
        self._pending.pop(token, None)
        if (under := self._under.pop(token[0], None)) is not None:
            self._step(token[0], partial(self._failed, token[0], under, error))

    def flush(self) -> None:
        """Implement `Sink.flush`: go on with the steps that had waited."""
        self.advance()

    # ---- the way -----------------------------------------------------------------------------------------------------
    def begin(self) -> None:
        """Begin with the first steps, whose answers come later."""
        self._bounded(self._read_inputs)
        self.advance()

    def advance(self) -> None:
        """Run every step that waits for none, and submit the parts that there is room for."""
        self._bounded(self._advance)

    def _bounded(self, call: Callable[[], None]) -> None:
        """Call a part of the way outside of any step. Its failure is that of the request: each gets an answer."""
        try:
            call()
        except Exception as error:
            if self.ticket.done:
                raise
            words = f"pipeline '{self.plan.pipeline.name}': failed: {type(error).__name__}: {error}"
            self._target.refused(self, RequestError(Fault.INTERNAL, words))

    def _read_inputs(self) -> None:
        values, count = self.values, self.ticket.form.rows
        values[self.plan.root.count] = count
        for declared, slot in self.plan.inputs:
            array = self.ticket.request.inputs[declared.name].array
            values[slot] = array.reshape(count) if declared.kind in {IMAGE, TEXT} else array

    def _advance(self) -> None:
        while (self._ready or self._unsent) and not self.ticket.done:
            if self._unsent:
                index = self._unsent.pop()
                if (under := self._under.get(index)) is not None:
                    self._step(index, partial(self._send, index, under))
                continue
            index = self._ready.pop()
            run = self.plan.runs[index]
            if isinstance(run, LocalRun):
                self._step(index, partial(self._local, index, run))
            elif isinstance(run, DecodeRun):
                work = decoded_views(self.values[run.slot], run.name, self._target.settings, self._pixels)
                done = partial(self._decoded, index, run, time.monotonic_ns())
                self._step(index, partial(self._apart, index, work, done))
            else:
                self._step(index, partial(self._submit, index, run))
        if not self._left and not self._answering and not self.ticket.done:
            self._answering = True
            self._shared.clear()
            self._target.finished(self)

    def answer_apart(self, outputs: Slices[Any], done: Callable[[Future[Any]], None]) -> None:
        """Make the outputs on a thread, then call `done` here."""
        loop = asyncio.get_running_loop()
        future = begin_slices(self._target.preparing, self.ticket.request.caller, outputs, self._is_over)
        self._threaded[future] = len(self.plan.runs) - 1

        def ended(made: Future[Any]) -> None:
            self._threaded.pop(made, None)  # which holds the outputs
            done(made)

        future.add_done_callback(lambda made: loop.call_soon_threadsafe(ended, made))

    def cancel(self) -> None:
        """Cancel what is under way."""
        pending, self._pending = self._pending, {}
        for under in self._under.values():
            under.stop_timer()
        self._under.clear()
        self._unsent.clear()
        for each in pending.values():
            each.cancel()
        threaded, self._threaded = self._threaded, {}
        self._shared.clear()
        for future in threaded:
            if not (future.cancel() or future.done()):
                self._target.linger(future)

    def expire(self) -> None:
        """Fail at the request's deadline, in the first step that is not over."""
        late = RequestError(Fault.EXPIRED, "the request's time is over")
        begun = next(iter(self._under), next(iter(self._threaded.values()), next(iter(self.plan.states), 0)))
        self._fail(begun, late)

    def _late(self, index: int, under: Under) -> None:
        """End a step at its own deadline."""
        if self._under.get(index) is under:
            words = f"took longer than its deadline_s of {under.run.step.deadline_s:g} s"
            del self._under[index]
            self._step(index, partial(self._failed, index, under, RequestError(Fault.EXPIRED, words)))
            self.advance()

    def _step(self, index: int, call: Callable[[], None]) -> None:
        """Call a part of a step. Its failure is that of the request, unless a model's step has a fallback."""
        try:
            call()
        except Exception as error:  # noqa: BLE001  one request's boundary: the error of one step must not end the daemon
            if isinstance(error, RequestError):
                refusal = error
            elif isinstance(error, StepError):
                refusal = RequestError(Fault.INVALID, str(error))
            else:
                refusal = RequestError(Fault.INTERNAL, f"failed: {type(error).__name__}: {error}")
            if (under := self._under.pop(index, None)) is not None:
                self._step(index, partial(self._failed, index, under, refusal))
            else:
                self._fail(index, refusal)

    def _fail(self, index: int, error: RequestError) -> None:
        run = self.plan.runs[index]
        self._target.steps[index].failures += 1
        words = f"pipeline '{self.plan.pipeline.name}', step '{run.name}': {error.message}"
        refusal = RequestError(
            error.fault,
            words,
            retry_after_s=error.retry_after_s,
            is_loading=error.is_loading,
            in_run=error.in_run,
        )
        self._target.refused(self, refusal)

    def _over(self, index: int) -> None:
        """Note the end of a step. The steps that waited for it are ready."""
        self._left -= 1
        for follower in self.plan.followers[index]:
            self._needed[follower] -= 1
            if not self._needed[follower]:
                self._ready.append(follower)

    def _local(self, index: int, run: LocalRun) -> None:
        began_ns = time.perf_counter_ns()

        def applied(_: None = None) -> None:
            statistics = self._target.steps[index]
            statistics.runs += 1
            statistics.took(time.perf_counter_ns() - began_ns)
            self._over(index)

        if run.is_long(self.values):
            self._apart(index, run.slices(self.values), applied)
        else:
            run.apply(self.values)
            applied()

    def _is_over(self, index: int = 0, under: Under | None = None) -> bool:
        """Return True if none waits for the work of a model's step; without one: of the request. On any thread."""
        return self.ticket.done or (under is not None and self._under.get(index) is not under)

    def _apart(
        self,
        index: int,
        work: Slices[Any],
        done: Callable[[Any], None],
        key: object = None,
        under: Under | None = None,
    ) -> None:
        """Do work on a thread, then `done` with its result here. Work of one `key` is done once for all steps."""
        is_over = partial(self._is_over, index, under)
        loop = asyncio.get_running_loop()
        future = self._shared.get(key)
        if future is None:
            try:
                caller = self.ticket.request.caller
                future = begin_slices(self._target.preparing, caller, work, self._is_over if key else is_over)
            except RuntimeError as error:
                raise RequestError(Fault.OVERLOADED, f"no thread prepares its images now ({error})") from error
            self._threaded[future] = index
            if key is not None:
                self._shared[key] = future

        def ended(made: Future[Any]) -> None:
            self._threaded.pop(made, None)
            if not is_over():
                self._step(index, lambda: done(made.result()))
                self.advance()

        future.add_done_callback(lambda made: loop.call_soon_threadsafe(ended, made))  # it must not hold itself

    def _decoded(self, index: int, run: DecodeRun, began_ns: int, views: Array) -> None:
        self.values[run.slot], statistics = views, self._target.steps[index]
        statistics.runs, statistics.rows = statistics.runs + 1, statistics.rows + len(views)
        statistics.took(time.monotonic_ns() - began_ns)
        self._over(index)

    # ---- steps with a model ------------------------------------------------------------------------------------------
    def _submit(self, index: int, run: ModelRun) -> None:
        values, statistics = self.values, self._target.steps[index]
        count, chosen = values[run.rows.count], None
        if run.when is not None:
            flags = spread(run.when, values, count)
            values[run.ran] = flags
            if not flags.all():
                chosen = np.flatnonzero(flags)
        running = count if chosen is None else len(chosen)
        statistics.rows += running
        statistics.skipped_rows += count - running
        under = Under(run, time.monotonic_ns(), chosen)
        if run.keeps_state:
            under.state = values[self.plan.turn].states.get(run.name, NO_STATE)
        if not running:
            self._finish(index, under)
            return
        self._under[index] = under
        if running > REQUEST_ROWS_LIMIT:
            raise StepError(f"has {running} rows, at most {REQUEST_ROWS_LIMIT} run; use select with top before it")
        if run.step.deadline_s:
            under.timer = asyncio.get_running_loop().call_later(run.step.deadline_s, self._late, index, under)
        statistics.runs += 1
        fed = fed_all(run.feeds, values, count, chosen)
        if running > LOOP_VIEWS and any(feed.shows for feed in run.feeds):
            self._apart(index, fed, partial(self._received, index, under), under=under)
        else:
            self._received(index, under, whole_of(fed))

    def _received(self, index: int, under: Under, columns: list[Array]) -> None:
        run = under.run
        shown = (column for feed, column in zip(run.feeds, columns, strict=True) if feed.shows)
        views = next((column for column in shown if isinstance(column[0], View)), None)
        if views is not None:
            under.images = views
        self._begin(index, under, columns)

    def _begin(self, index: int, under: Under, columns: Sequence[Array]) -> None:
        rows, most, run = len(columns[0]), 1, under.run
        under.columns = columns
        size = max(1, sum(row_bytes(feed, column) for feed, column in zip(run.feeds, columns, strict=True)))
        if rows > 1 and run.batched:
            most = self._target.target_of(run.step).rows_together(size)
        if len(under.images):
            most = max(1, min(most, PREPARED_BYTES // (2 * size)))
        under.most = most
        under.left = 1 if rows <= most else -(-rows // most)
        under.parts = [None] * under.left
        if under.left > 1:
            under.at_once = min(PARTS_AT_ONCE, self._target.settings.queue_of(run.step.model).requests)
            if len(under.images):
                under.at_once = min(under.at_once, max(2, PREPARED_BYTES // (most * size)))
            if run.keeps_state:
                under.at_once = 1
        self._send(index, under)

    def _send(self, index: int, under: Under) -> None:
        """Begin the next parts of a step."""
        parts, run = len(under.parts), under.run
        while under.sent < parts and under.sent - (parts - under.left) < under.at_once:
            part = under.sent
            under.sent += 1
            places = slice(part * under.most, (part + 1) * under.most)
            columns = under.columns if parts == 1 else [column[places] for column in under.columns]
            if not len(under.images):
                self._submit_part(index, under, part, columns, ())
                continue
            is_shared = parts == len(run.feeds) == 1 and under.chosen is None
            done = partial(self._prepared, index, under, part)
            self._apart(index, prepared(run.feeds, columns), done, run.feeds[0].key if is_shared else None, under)

    def _prepared(self, index: int, under: Under, part: int, prepared: tuple[Sequence[Array], Sequence[Frame]]) -> None:
        if self._under.get(index) is under:  # else another part failed
            self._submit_part(index, under, part, *prepared)

    def _submit_part(
        self, index: int, under: Under, part: int, columns: Sequence[Array], frames: Sequence[Frame]
    ) -> None:
        run, sent = under.run, self.ticket.request
        target = self._target.target_of(run.step)
        if not run.fits(target.manifest):
            words = f"model '{run.step.model}' was replaced by one of another signature"
            raise RequestError(Fault.UNAVAILABLE, words, retry_after_s=self._target.settings.retry_after_s)
        if isinstance(target, Split):
            target = target.narrowed(run.fits)  # a version with other labels or outputs would answer something else
        deadline_ns = sent.deadline_ns
        if run.step.deadline_s:
            own_ns = under.began_ns + int(run.step.deadline_s * 1e9)
            deadline_ns = own_ns if deadline_ns is None else min(deadline_ns, own_ns)
        inputs = {
            feed.spec.name: Tensor(
                Datatype.BYTES if column.dtype == object else feed.spec.datatype,
                shaped(column, feed, batched=run.batched),
            )
            for feed, column in zip(run.feeds, columns, strict=True)
        }
        stream, place = f"{sent.stream}/{run.name}", 0
        if isinstance(run.step, PythonStep):
            ends = (START if part == 0 else 0) | (END if part == len(under.parts) - 1 else 0)
            stream, place = sent.stream, sent.place & ends
        elif not run.keeps_state:  # else a queue with the policy "latest" keeps one part only
            stream = f"{stream}/{part}"
        request = InferRequest(
            run.step.model,
            inputs,
            run.step.version,
            sent.id,
            run.wanted,
            deadline_ns,
            sent.priority,
            sent.caller,
            stream,
            place=place,
            state=under.state,
        )
        account = self.ticket.account and self.ticket.account.of_step()
        self._pending[index, part] = target.submit(request, self, (index, part), account, frames)

    def _failed(self, index: int, under: Under, error: RequestError) -> None:
        """Use the values of the step's fallback, or let the request fail."""
        run, deadline_ns = under.run, self.ticket.request.deadline_ns
        under.stop_timer()
        for token in [token for token in self._pending if token[0] == index]:
            self._pending.pop(token).cancel()
        is_late = deadline_ns is not None and deadline_ns <= time.monotonic_ns()
        is_bad_input = error.fault in CALLERS_FAULTS and not error.in_run
        if run.step.fallback is None or is_late or is_bad_input:
            self._target.steps[index].took(time.monotonic_ns() - under.began_ns)
            self._fail(index, error)
            return
        self._target.steps[index].fallbacks += 1
        under.parts = []
        running = self.values[run.rows.count] if under.chosen is None else len(under.chosen)
        self._end(index, under, lambda column: filled(running, column, column.fallback))

    def _finish(self, index: int, under: Under) -> None:
        if under.run.keeps_state:
            self.values[self.plan.turn].states[under.run.name] = under.state
        parts = [part for part in under.parts if part is not None]
        step = under.run.step
        source = step.file if isinstance(step, PythonStep) else f"model '{step.model}'"
        try:
            self._end(index, under, lambda column: joined_rows(parts, column, source))
        except RequestError as error:  # a text that is no answer to the step's question
            self._failed(index, under, error)

    def _end(self, index: int, under: Under, rows_of: Callable[[Column], Array]) -> None:
        """Keep the columns of a step; `rows_of` returns those of the rows that ran."""
        run, values, chosen = under.run, self.values, under.chosen
        under.stop_timer()
        count = values[run.rows.count]
        if run.made is not None:
            self._keep_objects(run, run.made, under)
        else:
            for column in run.columns.values():
                rows = rows_of(column)
                values[column.slot] = rows if chosen is None else self._with_skipped(column, rows, chosen, count)
        if count and (chosen is None or chosen.size):
            self._target.steps[index].took(time.monotonic_ns() - under.began_ns)
        self._over(index)

    def _with_skipped(self, column: Column, rows: Array, chosen: Array, count: int) -> Array:
        """Return a column of all rows of a step of which those of `chosen` ran."""
        if column.other is not None:
            other = spread(column.other, self.values, count)
            full = np.array(other if other.dtype == object else cast(other, column.type.datatype))
        else:
            full = filled(count, column, None)
        if not len(rows):
            return full
        if full.shape[1:] != rows.shape[1:]:
            if column.other is not None:
                sizes = f"{list(rows.shape[1:])}, those of the step named by else {list(full.shape[1:])}"
                raise StepError(f"its values have the shape {sizes}")
            full = np.zeros((count, *rows.shape[1:]), rows.dtype)
        full[chosen] = rows
        return full

    def _keep_objects(self, run: ModelRun, made: RowSet, under: Under) -> None:
        parts = [part for part in under.parts if part is not None]
        values, owners, flags, begin = self.values, list[Array](), list[Array](), 0
        for part in parts:
            there = part.outputs[run.counted].array != ABSENT
            flags.append(there)
            owners.append(np.nonzero(there)[0] + begin)
            begin += len(there)
        owned = np.concatenate(owners) if owners else np.zeros(0, int)
        for column in run.columns.values():
            rows = [part.outputs[column.output].array[there] for part, there in zip(parts, flags, strict=True)]
            made_of = column.make(np.concatenate(rows)) if rows else filled(0, column, None)
            if len(under.images) and column.output.removeprefix(PREFIX) in PLACES and len(made_of):
                origins = np.array([view.origin for view in under.images], np.float32)[owned]
                made_of = made_of.copy()
                if column.type.shape == (4,):
                    made_of += np.tile(origins, 2)
                else:
                    made_of[..., :2] += origins[:, np.newaxis]
            values[column.slot] = made_of
        values[made.index] = owned if under.chosen is None else under.chosen[owned]
        values[made.count] = len(owned)
