"""Answers from runs, on the event loop: each ticket gets its own rows; every run and refusal is counted once."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from gateway.domain.errors import Fault, RequestError, VariantError, lacks_memory
from gateway.domain.events import Publish, RunFailed
from gateway.domain.infer import InferResponse, Parameter, RequestedOutput, ResponseForm
from gateway.domain.manifest import ModelManifest
from gateway.domain.ports import RawSink, Sink
from gateway.domain.postprocess import classify
from gateway.domain.statistics import RunTimes, ServableStatistics
from gateway.domain.tensor import Datatype, Raw, Tensor, Tensors
from gateway.engine.run import Entry, Ran, RawRun, Results
from gateway.engine.ticket import Ticket

WORDS_LIMIT_CHARS = 500
"""Most characters of a runtime's own message that a caller receives."""
UNCOUNTED_RUNS = 64
"""Raw runs that are counted together: a run's counters cost 3 µs by themselves, and 1 µs with others."""
NO_PARAMETERS: Mapping[str, Parameter] = MappingProxyType({})
"""Empty parameters, shared by all responses."""


class AnswerDelivery:
    """Delivery of the results of one servable. Completes every ticket exactly once unless it was cancelled."""

    def __init__(self, manifest: ModelManifest, variant: str, statistics: ServableStatistics, publish: Publish) -> None:
        self._manifest, self.variant, self._statistics, self._publish = manifest, variant, statistics, publish
        self._datatypes = {spec.name: spec.datatype for spec in manifest.outputs}
        self._uncounted: list[tuple[RawRun, int]] = []
        self._served = manifest.name, manifest.version, variant
        only = len(manifest.outputs) == 1
        self._only = (manifest.outputs[0].name, manifest.outputs[0].datatype) if only else ("", Datatype.BYTES)

    def deliver(self, ran: Ran) -> None:
        """Answer the tickets of a run, then flush each sink."""
        if ran.plan.expired:
            self.refuse(ran.plan.expired, expired(self._manifest.name), "expired")
        if ran.parts:
            for part in ran.parts:
                part.lane = ran.lane
                self.deliver(part)
            return
        batch = ran.plan.batch
        if not batch:
            return
        if ran.failure:
            self._fail(ran)
            return
        now_ns, began_ns, stop = time.monotonic_ns(), [], 0
        sinks: set[Sink] = set()
        joined = len(batch) > 1
        for index, ticket in enumerate(batch):
            start, stop = stop, stop + ticket.form.rows
            if not ticket.done:
                began_ns.append(ticket.queued_ns)
                sinks.add(ticket.sink)
                rows = slice(start, stop) if joined else None
                self._answer(ticket, ran.outputs, rows, ran.results[index] if ran.results else None)
        if began_ns:
            self._statistics.answered(began_ns, now_ns)
        self._count(ran, [ticket.queued_ns for ticket in batch], ran.plan.rows, ran.lane)
        self._statistics.ignored_parameters += sum([ticket.request.ignored_parameters for ticket in batch])
        self._flush(sinks)

    def deliver_raw(
        self, run: RawRun, entries: Sequence[Entry], form: ResponseForm, contents: Iterable[Sequence[Raw]]
    ) -> None:
        """Answer the requests of a raw run, each with its contents, then flush each sink."""
        sinks: set[RawSink] = set()
        for (sink, token, _, _), outputs in zip(entries, contents, strict=True):
            sinks.add(sink)
            try:
                sink.answer_raw(token, form, outputs)
            except Exception as error:  # noqa: BLE001  as in `_answer`
                self._tell(f"answering: {type(error).__name__}: {error}")
        self._uncounted.append((run, time.monotonic_ns()))
        if len(self._uncounted) >= UNCOUNTED_RUNS:
            self.count_raw()
        self._flush(sinks)

    def count_raw(self) -> None:
        """Add the raw runs since the last call to the statistics."""
        uncounted, self._uncounted = self._uncounted, []
        for run, answered_ns in uncounted:
            self._statistics.answered(run.came_ns, answered_ns)
            self._count(run, run.came_ns, run.form.rows * len(run.came_ns), "inline")

    def submit_again(self, requests: Iterable[tuple[RawSink, Any]]) -> None:
        """Return raw requests to their sinks, then flush each sink: it may have been refused at once."""
        sinks: set[RawSink] = set()
        for sink, token in requests:
            sinks.add(sink)
            try:
                sink.submit_again(token)
            except Exception as error:  # noqa: BLE001  as in `_answer`
                self._tell(f"submitting again: {type(error).__name__}: {error}")
        self._flush(sinks)

    def refuse(self, tickets: Iterable[Ticket], error: RequestError, reason: str = "") -> None:
        """End tickets with an error, and count them as dropped if a `reason` is given."""
        now_ns = time.monotonic_ns()
        sinks: set[Sink] = set()
        for ticket in tickets:
            if not ticket.done:
                ticket.end()
                self.count_refusal(now_ns - ticket.queued_ns, reason)
                self._refuse(ticket, error)
                sinks.add(ticket.sink)
        self._flush(sinks)

    def count_refusal(self, took_ns: int, reason: str = "") -> None:
        """Count a request that failed."""
        self._statistics.fail.add(took_ns)
        if reason:
            self._statistics.drop(reason)

    def _answer(self, ticket: Ticket, outputs: Tensors, rows: slice | None, results: Results = None) -> None:
        """Answer one ticket. `rows` is None if the run was this ticket's alone."""
        ticket.end()
        if isinstance(results, RequestError):
            self._refuse(ticket, results)
            return
        if isinstance(results, VariantError):
            self._refuse(ticket, self._reported(results.reason))
            return
        try:
            name, datatype = self._only
            if name and ticket.form.plain:
                array = outputs[name]
                own = {name: Tensor(datatype, array if rows is None else array[rows])}
            else:
                own = {
                    output.name: self._result(output.name, results)
                    if results and output.name in results
                    else self._tensor(output, outputs, rows)
                    for output in ticket.form.outputs
                }
            model, version, variant = self._served
            ticket.sink.answer(
                ticket.token, InferResponse(model, version, ticket.request.id, own, variant, NO_PARAMETERS)
            )
        except Exception as error:  # noqa: BLE001  one caller's boundary: the others of the batch still get answers
            self._tell(f"answering: {type(error).__name__}: {error}")
            self._refuse(ticket, self._failed())

    def _refuse(self, ticket: Ticket, error: RequestError) -> None:
        try:
            ticket.sink.refuse(ticket.token, error)
        except Exception as defect:  # noqa: BLE001  as in `_answer`
            self._tell(f"refusing: {type(defect).__name__}: {defect}")

    def _flush(self, sinks: Iterable[Sink | RawSink]) -> None:
        for sink in sinks:
            try:
                sink.flush()
            except Exception as error:  # noqa: BLE001  as in `_answer`
                self._tell(f"flushing: {type(error).__name__}: {error}")

    def _result(self, name: str, results: Tensors) -> Tensor:
        return Tensor(self._datatypes[name], results[name])

    def _tensor(self, wanted: RequestedOutput, outputs: Tensors, rows: slice | None) -> Tensor:
        array = outputs[wanted.name]
        if rows is not None:
            array = array[rows]
        if not wanted.classification:
            return Tensor(self._datatypes[wanted.name], array)
        named = classify(array, wanted.classification, self._manifest.labels, batched=self._manifest.batched)
        return Tensor(Datatype.BYTES, named)

    def _fail(self, ran: Ran) -> None:
        if ran.overlong:
            self.refuse(ran.plan.batch, overlong(self._manifest.name))
            return
        if ran.by_caller:
            self._statistics.rejected_runs += 1
            self.refuse(ran.plan.batch, self._rejected(ran.failure))
            return
        self._statistics.failed_runs += 1
        self.refuse(ran.plan.batch, self._reported(ran.failure))

    def _reported(self, words: str) -> RequestError:
        """Report a failure of the model or of its task, and return what its callers get."""
        self._tell(words)
        return self._without_memory(words) if lacks_memory(words) else self._failed()

    def _rejected(self, words: str) -> RequestError:
        what = f"model '{self._manifest.name}' refuses this input: {words:.{WORDS_LIMIT_CHARS}}"
        return RequestError(Fault.INVALID, what)

    def _without_memory(self, words: str) -> RequestError:
        what = f"the device lacks the memory for this run of model '{self._manifest.name}'"
        remedy = "send less at once, try again later, or raise [gateway] memory_mib"
        return RequestError(Fault.OVERLOADED, f"{what}; {remedy}: {words:.{WORDS_LIMIT_CHARS}}")

    def _failed(self) -> RequestError:
        what = f"model '{self._manifest.name}' failed in variant {self.variant}; see the gateway's log"
        return RequestError(Fault.INTERNAL, what)

    def _tell(self, problem: str) -> None:
        self._publish(RunFailed(self._manifest.name, self._manifest.version, self.variant, problem))

    def _count(self, run: Ran | RawRun, came_ns: Sequence[int], rows: int, lane: str) -> None:
        times = RunTimes(
            run.began_ns * len(came_ns) - sum(came_ns),
            run.gathered_ns - run.began_ns,
            run.ran_ns - run.gathered_ns,
            run.ended_ns - run.ran_ns,
            (time.time_ns() - time.monotonic_ns() + run.ended_ns) // 1_000_000,
        )
        self._statistics.executed(len(came_ns), rows, times, lane)


def overlong(model: str) -> RequestError:
    """Return the refusal of requests whose run took too long."""
    words = f"model '{model}' took longer than a run may ([limits] run_limit_s); send a smaller input"
    return RequestError(Fault.EXPIRED, words)


def expired(model: str) -> RequestError:
    """Return the refusal of requests whose deadline passed while they waited."""
    return RequestError(Fault.EXPIRED, f"the request's time was over before model '{model}' could run it")
