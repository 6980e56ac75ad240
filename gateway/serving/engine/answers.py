"""Answers from runs, on the event loop: each ticket gets its own rows; every run and refusal is counted once."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from gateway.common.domain.errors import Fault, RequestError, VariantError, lacks_memory
from gateway.common.domain.events import Publish, RunFailed
from gateway.common.domain.manifest import ModelManifest
from gateway.common.domain.statistics import RunTimes, ServableStatistics
from gateway.common.domain.tensor import Datatype, Raw, Tensor, Tensors
from gateway.serving.domain.infer import InferResponse, Parameter, RequestedOutput, ResponseForm
from gateway.serving.domain.ports import RawSink, Sink
from gateway.serving.domain.postprocess import classify
from gateway.serving.engine.run import Ran, RawRun, Results
from gateway.serving.engine.ticket import Ticket

WORDS_LIMIT_CHARS = 500
"""Most characters of a runtime's own message that a caller receives."""
UNCOUNTED_RUNS = 256
"""Raw runs that are counted together: a run's counters cost 7 µs by themselves, and 1 µs with others."""
NO_PARAMETERS: Mapping[str, Parameter] = MappingProxyType({})
"""Empty parameters, shared by all responses."""


class AnswerDelivery:
    """Delivery of the results of one servable. Completes every ticket exactly once unless it was cancelled."""

    def __init__(
        self,
        manifest: ModelManifest,
        variant: str,
        statistics: ServableStatistics,
        publish: Publish,
        retry_after_s: float,
    ) -> None:
        self._manifest, self.variant, self._statistics, self._publish = manifest, variant, statistics, publish
        self._retry_after_s = retry_after_s
        self._datatypes = {spec.name: spec.datatype for spec in manifest.outputs}
        self._uncounted: list[tuple[int, list[int], int, int, int, int, int]] = []
        self._served = manifest.name, manifest.version, variant
        only = len(manifest.outputs) == 1
        self._only = (manifest.outputs[0].name, manifest.outputs[0].datatype) if only else ("", Datatype.BYTES)

    def deliver(self, ran: Ran) -> None:
        """Answer the tickets of a run, then flush each sink."""
        if ran.plan.expired:
            self.refuse(ran.plan.expired, self.expired(), "expired")
        if ran.parts:
            for part in ran.parts:
                part.lane = ran.lane
                self.deliver(part)
            return
        batch = ran.plan.batch
        if not batch:
            return
        if ran.failure:
            self.refuse(batch, self._failure(ran))
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

    def part(self, ticket: Ticket, outputs: Tensors) -> None:
        """Send a ticket's caller the outputs that are new."""
        wanted = [output for output in ticket.form.outputs if output.name in outputs]
        if ticket.done or not wanted:
            return
        self._statistics.parts += 1
        own = {output.name: self._tensor(output, outputs, None) for output in wanted}
        try:
            ticket.sink.part(ticket.token, InferResponse(*self._served[:2], ticket.request.id, own, self.variant))
        except Exception as error:  # noqa: BLE001  as in `_answer`
            self.report_failure(f"answering: {type(error).__name__}: {error}")
        self._flush((ticket.sink,))

    def deliver_raw(self, run: RawRun, form: ResponseForm, contents: Sequence[Sequence[Raw]]) -> None:
        """Answer the requests of a raw run, each with its contents, then flush each sink."""
        sinks: dict[RawSink, None] = {}
        came_ns = []
        for (sink, token, _, came), outputs in zip(run[1], contents):  # noqa: B905  as many as requests
            sinks[sink] = None
            came_ns.append(came)
            try:
                sink.answer_raw(token, form, outputs)
            except Exception as error:  # noqa: BLE001  as in `_answer`
                self.report_failure(f"answering: {type(error).__name__}: {error}")
        uncounted = self._uncounted
        uncounted.append((run[0], came_ns, run[2], run[3], run[4], run[5], time.monotonic_ns()))
        if len(uncounted) >= UNCOUNTED_RUNS:
            self.count_raw()
        for sink in sinks:
            try:
                sink.flush()
            except Exception as error:  # noqa: BLE001  as in `_answer`
                self.report_failure(f"flushing: {type(error).__name__}: {error}")

    def count_raw(self) -> None:
        """Add the raw runs since the last call to the statistics."""
        uncounted, self._uncounted = self._uncounted, []
        if uncounted:
            self._statistics.count_inline(uncounted, time.time_ns() - time.monotonic_ns())

    def submit_again(self, requests: Iterable[tuple[RawSink, Any]]) -> None:
        """Return raw requests to their sinks, then flush each sink: it may have been refused at once."""
        sinks: set[RawSink] = set()
        for sink, token in requests:
            sinks.add(sink)
            try:
                sink.submit_again(token)
            except Exception as error:  # noqa: BLE001  as in `_answer`
                self.report_failure(f"submitting again: {type(error).__name__}: {error}")
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

    def full(self, waiting: int) -> RequestError:
        """Return the refusal of a newcomer at a full queue."""
        self._statistics.drop("queue_full")
        model = self._manifest.name
        return self._overloaded(
            f"model '{model}' has {waiting} requests waiting, the most it may; come back later (EG-506)"
        )

    def displace(self, displaced: Ticket, newcomer: Ticket, policy: str) -> None:
        """Refuse a ticket that lost its place to `newcomer`."""
        if displaced.request.caller != newcomer.request.caller and policy != "oldest":
            words = (
                f"the queue of model '{self._manifest.name}' is full, and fewer requests of another caller were served"
            )
            self.refuse((displaced,), self._overloaded(f"{words}; try again later"), "share")
        elif policy == "latest":
            words = "a newer request of the same stream took this one's place"
            self.refuse((displaced,), self._overloaded(words), "superseded")
        else:
            words = f"model '{self._manifest.name}' has more requests than it may keep waiting; the oldest was dropped"
            self.refuse((displaced,), self._overloaded(words), "oldest")

    def threadless(self, tickets: Iterable[Ticket], error: RuntimeError) -> None:
        """Refuse tickets whose run gets no thread."""
        self.report_failure(f"no thread for a run: {error}")
        words = f"model '{self._manifest.name}' gets no thread for its runs ({error}); come back later"
        self.refuse(tickets, self._overloaded(words))

    def unloaded(self) -> RequestError:
        """Return the refusal of requests to a model that is unloaded."""
        words = f"model '{self._manifest.name}' was unloaded"
        return RequestError(Fault.UNAVAILABLE, words, retry_after_s=self._retry_after_s)

    def expired(self, *, begun: bool = False) -> RequestError:
        """Return the refusal of requests whose deadline passed while they waited, or once their run had `begun`."""
        what = "had answered it whole" if begun else "could run it"
        words = f"the request's time was over before model '{self._manifest.name}' {what}"
        return RequestError(Fault.EXPIRED, words)

    def overlong(self) -> RequestError:
        """Return the refusal of requests whose run took too long."""
        what = f"model '{self._manifest.name}' took longer than a run may ([limits] run_limit_s)"
        return RequestError(Fault.EXPIRED, f"{what}; send a smaller input")

    def report_failure(self, problem: str) -> None:
        """Report a run that failed, or another problem of the model."""
        self._publish(RunFailed(self._manifest.name, self._manifest.version, self.variant, problem))

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
                    output.name: Tensor(self._datatypes[output.name], results[output.name])
                    if results and output.name in results
                    else self._tensor(output, outputs, rows)
                    for output in ticket.form.outputs
                }
            model, version, variant = self._served
            ticket.sink.answer(
                ticket.token, InferResponse(model, version, ticket.request.id, own, variant, NO_PARAMETERS)
            )
        except Exception as error:  # noqa: BLE001  one caller's boundary: the others of the batch still get answers
            self.report_failure(f"answering: {type(error).__name__}: {error}")
            self._refuse(ticket, self._failed())

    def _refuse(self, ticket: Ticket, error: RequestError) -> None:
        try:
            ticket.sink.refuse(ticket.token, error)
        except Exception as defect:  # noqa: BLE001  as in `_answer`
            self.report_failure(f"refusing: {type(defect).__name__}: {defect}")

    def _flush(self, sinks: Iterable[Sink | RawSink]) -> None:
        for sink in sinks:
            try:
                sink.flush()
            except Exception as error:  # noqa: BLE001  as in `_answer`
                self.report_failure(f"flushing: {type(error).__name__}: {error}")

    def _tensor(self, wanted: RequestedOutput, outputs: Tensors, rows: slice | None) -> Tensor:
        array = outputs[wanted.name]
        if rows is not None:
            array = array[rows]
        if not wanted.classification:
            return Tensor(self._datatypes[wanted.name], array)
        named = classify(array, wanted.classification, self._manifest.labels, batched=self._manifest.batched)
        return Tensor(Datatype.BYTES, named)

    def _failure(self, ran: Ran) -> RequestError:
        """Count a run that failed, and return what its callers get."""
        if ran.overlong:
            return self.overlong()
        if ran.by_caller:
            self._statistics.rejected_runs += 1
            what = f"model '{self._manifest.name}' refuses this input: {ran.failure:.{WORDS_LIMIT_CHARS}}"
            return RequestError(Fault.INVALID, what, in_run=True)
        self._statistics.failed_runs += 1
        if ran.away:
            self.report_failure(ran.failure)
            words = f"model '{self._manifest.name}' cannot run now: {ran.failure:.{WORDS_LIMIT_CHARS}}; try again later"
            return RequestError(Fault.UNAVAILABLE, words, retry_after_s=self._retry_after_s)
        return self._reported(ran.failure)

    def _reported(self, words: str) -> RequestError:
        """Report a failure of the model or of its task, and return what its callers get."""
        self.report_failure(words)
        if not lacks_memory(words):
            return self._failed()
        what = f"the device lacks the memory for this run of model '{self._manifest.name}'"
        remedy = "send less at once, try again later, or raise [gateway] memory_mib"
        return RequestError(Fault.OVERLOADED, f"{what}; {remedy}: {words:.{WORDS_LIMIT_CHARS}}")

    def _failed(self) -> RequestError:
        what = f"model '{self._manifest.name}' failed in variant {self.variant}; see the gateway's log"
        return RequestError(Fault.INTERNAL, what)

    def _overloaded(self, words: str) -> RequestError:
        return RequestError(Fault.OVERLOADED, words, retry_after_s=self._retry_after_s)

    def _count(self, run: Ran, came_ns: Sequence[int], rows: int, lane: str) -> None:
        times = RunTimes(
            run.began_ns * len(came_ns) - sum(came_ns),
            run.gathered_ns - run.began_ns,
            run.ran_ns - run.gathered_ns,
            run.ended_ns - run.ran_ns,
            (time.time_ns() - time.monotonic_ns() + run.ended_ns) // 1_000_000,
        )
        self._statistics.executed(len(came_ns), rows, times, lane)
