"""A loaded model version: admits and queues requests, selects the thread of each run, and closes without loss.

Everything here runs on the event loop. The queue's owner uses the session: the event loop, or the worker's thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.events import ImagesDecoded, PriorityRefused, RunHung, RunOverlong, ServableChanged
from gateway.common.domain.inventory import CPU
from gateway.common.domain.manifest import LEVELS, ModelManifest
from gateway.common.domain.statistics import Placement, ServableStatistics
from gateway.common.domain.tensor import Tensor, Tensors
from gateway.serving.domain.infer import InferRequest
from gateway.serving.domain.lifecycle import ServableState, advance
from gateway.serving.domain.ports import Session, Sink
from gateway.serving.domain.sizes import request_sizes
from gateway.serving.engine.admission import Admission, Form
from gateway.serving.engine.answers import AnswerDelivery
from gateway.serving.engine.context import EngineContext
from gateway.serving.engine.cost import Cost
from gateway.serving.engine.cost_in_use import CostInUse
from gateway.serving.engine.decoding import Decoded, ImageDecoding
from gateway.serving.engine.limiter import Share
from gateway.serving.engine.parts import PartsRunner
from gateway.serving.engine.queue import Queue, RunPlan
from gateway.serving.engine.quotas import QuotaUse
from gateway.serving.engine.raw_batches import OpenRawBatch, RawBatches
from gateway.serving.engine.run import Ran, Runner
from gateway.serving.engine.ticket import NO_CALLER, Ticket
from gateway.serving.engine.worker import Calls, RunThread, RunWatch, SessionWorker
from gateway.serving.tasks.frame import Frame

if TYPE_CHECKING:
    from gateway.serving.tasks.interpreter import Interpreter


@dataclass(frozen=True, slots=True, kw_only=True)
class ServableParts:
    """Parts of one version: its session, what callers see of it, and what its runs cost.

    `declared` is the manifest as it was tried; `manifest` is the part that callers see. `contents`: digest of its
    release. `threads`: processor threads that a run takes. `runs`: runs that take place at a time.
    """

    manifest: ModelManifest
    declared: ModelManifest
    contents: tuple[str, ...]
    placement: Placement
    session: Session
    interpreter: Interpreter | None
    witness: Callable[[], Tensors | None] | None
    cost: Cost
    threads: int
    runs: int = 1


class Servable:
    """One version of one model with one compiled session. Create it on the event loop; `close` drains and frees it.

    It has fewer than 30 attributes: with 30, CPython 3.11 looks them up so slowly that a request takes 0.2 µs longer.
    """

    def __init__(
        self, parts: ServableParts, context: EngineContext, statistics: ServableStatistics | None = None
    ) -> None:
        manifest, cost, settings, publish = parts.manifest, parts.cost, context.settings, context.publish
        if parts.session.in_parts:  # steps of a run: the event loop must not wait for them, nor join them
            cost = cost.off_loop().apart()
        name, version, variant = manifest.name, manifest.version, parts.placement.variant
        self.manifest, self.declared, self.parallel = manifest, parts.declared, (parts.threads, parts.runs)
        self.contents = parts.contents
        self.statistics = statistics or ServableStatistics(name, version)
        self.state, self.used_ns = ServableState.START, time.monotonic_ns()
        self.comparing, self._context, self._batch_pass = context.comparing, context, context.batch_pass
        rows, waits = manifest.rows_limit(settings.max_batch_rows), settings.queue_of(name)
        self._rows_limit = rows if manifest.batched else 1
        self.sizes = request_sizes(manifest, rows, settings.request_slack_bytes)
        self._admission = Admission(manifest, cost, max_batch_rows=rows, forms=settings.forms)
        self.check = self._admission.check
        self._usage = CostInUse(cost, parts.placement, context, self.statistics)
        self._answers = AnswerDelivery(manifest, variant, self.statistics, publish, settings.retry_after_s)
        runs = manifest if parts.interpreter is None else parts.interpreter.manifest
        sessions = [parts.session, *(parts.session.peers if parts.runs > 1 else ())]
        checks = parts.placement.level == LEVELS[-1] and parts.placement.accelerator not in {"", CPU}
        in_parts = parts.session.in_parts
        made = partial(PartsRunner, deliver=self._answers.part) if in_parts else Runner
        runners = [made(session, runs, parts.witness, parts.interpreter, checks=checks) for session in sessions]
        self._runner = runners[0]
        self._queue = Queue(waits)
        self._raw = RawBatches(
            manifest, settings, self._answers, runner=self._runner, queue=self._queue, ready=self._take_turn
        )
        self._worker = SessionWorker(
            f"run {name}/{version}",
            runners,
            self._queue,
            cost,
            Calls(
                self._ran,
                self._beside_ended,
                self._queue_returned,
                self._answers.report_failure,
                lambda reason: publish(PriorityRefused(name, version, reason)),
            ),
            worker_settings=context.worker_settings,
            share=Share(0 if in_parts else parts.threads),  # for minutes, other models would have none
            delay_us=waits.delay_us,
        )
        self._watch = RunWatch(
            self._worker,
            self._usage.run_limit_ns,
            int(settings.run_end_s * 1e9),
            busy=lambda: self.busy,
            cancel=self._cancel_run,
            hung=self._run_hung,
        )
        self._decoding = ImageDecoding(context.decoders, settings, self._queue, self._image_decoded)
        self._on_turn = self._closed = False
        if not cost.limit_ns:
            self._worker.take_over()
        self.move(ServableState.LOADING)

    @property
    def placement(self) -> Placement:
        """Return the variant, the accelerator and the reason for them."""
        return self._usage.placement

    def degrade(self, reason: str) -> None:
        """Show why a better variant or accelerator does not serve now ("": none is out)."""
        self._usage.degrade(reason)

    def rows_together(self, row_bytes: int) -> int:
        """Implement `RequestTarget.rows_together`: all of a cheap model, else as many as its worker would join."""
        cost = self._usage.cost
        if cost.limit_ns and not cost.opened:
            return self._rows_limit
        return cost.worker_rows if cost.stacking_pays(row_bytes) else 1

    def move(self, to: ServableState, reason: str = "") -> None:
        """Change to another state of the table and publish it."""
        self.state = advance(self.state, to)
        self._context.publish(ServableChanged(self.manifest.name, self.manifest.version, to.value, reason))

    @property
    def pending(self) -> int:
        """Return the number of requests that are admitted and not yet in a run."""
        return self._queue.length + self._queue.reserved + sum([len(batch.entries) for batch in self._raw.waiting])

    @property
    def answered(self) -> int:
        """Return the number of requests that its version has answered."""
        self._answers.count_raw()
        return self.statistics.success.count

    @property
    def busy(self) -> bool:
        """Return True if a request is under way."""
        return self.pending > 0 or self._worker.busy

    def counted(self, weight: int) -> ServableStatistics:
        """Return the statistics as of now. `weight`: its share of the requests that name no version, in percent."""
        self._answers.count_raw()
        counted = self.statistics
        counted.queued, counted.busy, counted.weight = self.pending, self.busy, weight
        return counted

    @property
    def fits(self) -> bool:
        """Return True: it needs no other model."""
        return True

    @property
    def refusal(self) -> str:
        """Implement `RequestTarget.refusal`: admission control decides for each request."""
        return ""

    @property
    def ready(self) -> bool:
        """Implement `RequestTarget.ready`."""
        return True

    def close_batches(self) -> None:
        """Submit again the requests that collect as bytes: another target may answer them now."""
        self._raw.close()

    def submit(
        self,
        request: InferRequest,
        sink: Sink,
        token: Any,
        account: QuotaUse | None = None,
        frames: Sequence[Frame] = (),
    ) -> Ticket:
        """Implement `Submission.submit`. Raises RequestError if admission control refuses the request."""
        now_ns = time.monotonic_ns()
        try:
            request = self._admission.complete(request)
            form = self._admission.form(request)
            if (deadline_ns := request.deadline_ns) is not None and deadline_ns <= now_ns:
                self.statistics.drop("expired")
                raise self._answers.expired()
            if self._closed:
                self._check_held()
            ticket = Ticket(request, form, request.inputs, sink, token, self, now_ns, account, frames)
            if form.encoded:
                self._decode(ticket)
            else:
                self._wait(ticket)
        except RequestError:
            self.statistics.fail.add(time.monotonic_ns() - now_ns)
            raise
        return ticket

    def raw_batch(self, request: InferRequest) -> OpenRawBatch | None:
        """Implement `Submission.raw_batch`."""
        lacks_inputs = self._admission.complete(request) is not request  # raw contents are what was sent only
        if lacks_inputs or self._closed or self._worker.owns or not self._usage.cost.limit_ns:
            return None
        return self._raw.of(request, self._admission.form(request))

    def ask_beside(
        self,
        inputs: Mapping[str, Tensor],
        form: Form | None,
        ended: Callable[[Ran | None], None],
        frames: Sequence[Frame] = (),
    ) -> bool:
        """Run inputs without a caller on the worker once the device's threads are free; return False if busy or closed.

        Of the counters, only that of failed runs includes it. `ended` gets the result on the event loop; None if other
        requests came first and it never ran. `form` None: the inputs were not admitted yet. Raises RequestError INVALID
        if they are bad.
        """
        if self._closed or self.busy:
            return False
        request = self._admission.complete(InferRequest(self.manifest.name, dict(inputs)))
        form = form or self._admission.form(request)
        ticket = Ticket(request, form, request.inputs, NO_CALLER, ended, self, time.monotonic_ns(), frames=frames)
        self._watch.arm()
        return self._worker.offer_beside(ticket)

    def run_inline(self) -> bool:
        """Run once at the end of a pass of the event loop. Return True if there is more to run."""
        if self._raw.waiting:
            if self._worker.owns:  # its thread uses the session
                self._raw.close()
            now_ns, usage = time.monotonic_ns(), self._usage
            self._batch_pass.watch(now_ns)
            form = self._raw.waiting[0].form
            run = self._raw.run(now_ns, usage.cost.rows_at_once(form.cost_ns, form.rows))
            self._on_turn = bool(self._raw.waiting or (self._queue.length and not self._worker.owns))
            if run is not None:
                form, began_ns, cost_ns, self.used_ns = run
                self._learn(form, cost_ns)
                if self.used_ns >= usage.retry_ns:
                    self._retry(self.used_ns)
                if self.used_ns - began_ns > usage.overrun_ns and usage.overran():
                    self._reprice()
            return self._on_turn
        queue, usage = self._queue, self._usage
        head = None if self._worker.owns else queue.head()
        if head is None:
            self._on_turn = False
        elif head.form.costly or not usage.cost.limit_ns:
            self._on_turn = False
            self._raw.close()
            self._arm(self._queue)
            self._watch.arm()
            try:
                self._worker.take_over()
            except RuntimeError as error:
                self._answers.threadless(self._queue.clear(), error)
        else:
            now_ns = time.monotonic_ns()
            self._batch_pass.watch(now_ns)
            rows = usage.cost.rows_at_once(head.form.cost_ns, head.form.rows)
            ran = self._runner.run(queue.take(now_ns, rows))
            self._ran(ran)
            self._on_turn = queue.length > 0
            if ran.ended_ns - ran.began_ns > usage.overrun_ns and usage.overran():
                self._reprice()
        return self._on_turn

    def _learn(self, form: Form, cost_ns: int) -> None:
        cost = self._usage.cost
        form.cost_ns = cost.learned_ns(form.cost_ns, cost_ns)
        form.costly = cost.too_costly(form.cost_ns, before=form.costly)
        if form.costly:
            self._raw.close()

    def _cancel_run(self, thread: RunThread, plan: RunPlan) -> None:
        self.statistics.overlong_runs += 1
        limit_s = self._usage.run_limit_ns(plan.rows) / 1e9
        name, version = self.manifest.name, self.manifest.version
        self._context.publish(RunOverlong(name, version, self.placement.variant, plan.rows, limit_s))
        ends = thread.runner.cancel(plan)
        if not ends or thread.runner.in_parts:  # which may take no further step
            self._answers.refuse(plan.batch, self._answers.overlong())
        if not self._context.failures.gives_up(self):
            return
        if ends:
            self._context.failures.hung(self, f"a run took longer than {limit_s:g} s", ends=True)
        else:
            thread.hung = True
            self._run_hung(thread, plan)

    def _run_hung(self, thread: RunThread, plan: RunPlan) -> None:
        self.statistics.hung_runs += 1
        name, version = self.manifest.name, self.manifest.version
        self._context.publish(RunHung(name, version, self.placement.variant, plan.rows))
        self._answers.refuse(plan.batch, self._answers.overlong())
        self._worker.abandon_run(thread)
        self._context.failures.hung(self, f"a run of {plan.rows} rows did not end")

    def remeasured(self, cost: Cost, placement: Placement) -> None:
        """Use another measurement of the same variant with the same threads from now on."""
        self._usage.measured(cost.off_loop().apart() if self._runner.in_parts else cost, placement)
        self._reprice()

    def _reprice(self) -> None:
        self._raw.close()
        self._admission.reprice(self._usage.cost)
        self._worker.reprice(self._usage.cost)

    def leave(self, ticket: Ticket) -> None:
        """Free a cancelled ticket's place at once. A run that it is part of continues for the others."""
        self.statistics.abandoned(time.monotonic_ns() - ticket.queued_ns)
        self._forget(ticket)

    def suspend(self) -> list[Ticket]:
        """Begin no more runs, because they fail. Return the tickets that wait; `FailureHandler` holds later ones."""
        self._closed = True
        self._raw.give_back()
        waiting = self._worker.abandon()
        self._arm(waiting)
        return waiting

    def resume(self) -> None:
        """Begin runs again: nothing else can serve."""
        self._closed = False

    def refuse(self, tickets: Iterable[Ticket], error: RequestError) -> None:
        """Refuse tickets that waited for another servable of this version."""
        self._answers.refuse(tickets, error)

    def adopt(self, tickets: Iterable[Ticket]) -> None:
        """Queue tickets of another servable of this version."""
        for ticket in tickets:
            if ticket.done:
                continue
            if ticket.timer is not None:
                ticket.timer.cancel()
            ticket.home, ticket.timer = self, None
            try:
                ticket.form = self._admission.form(replace(ticket.request, inputs=dict(ticket.inputs)))
                self._wait(ticket)
            except RequestError as error:
                self._answers.refuse((ticket,), error)

    def _check_held(self) -> None:
        if not self._context.failures.waits(self):
            raise self._answers.unloaded()

    async def close(self, drain_s: float) -> None:
        """Finish the queue (longer than `drain_s`, or without a thread: refuse the rest), then free the session.

        A run that lasts longer is cancelled. A run that hangs for another `drain_s` is abandoned with its thread:
        nothing in Python can end it. A second call does nothing.
        """
        if self.state is not ServableState.AVAILABLE:
            return
        self.move(ServableState.UNLOADING)
        self._raw.close()
        self._answers.count_raw()
        closing = asyncio.ensure_future(self._drain())
        _, late = await asyncio.wait({closing}, timeout=drain_s)
        if late:
            self._closed = True
            self._answers.refuse([*self._decoding.abandon(), *self._worker.abandon()], self._answers.unloaded())
            self._answers.refuse(self._worker.begin_closing(), self._answers.unloaded())
            if self._runner.in_parts:  # they take minutes, and none of them took too long
                self._answers.refuse(self._worker.under_way(), self._answers.unloaded())
            self._worker.cancel_runs()
            _, hanging = await asyncio.wait({closing}, timeout=drain_s)
            if hanging:
                closing.cancel()
                self._answers.refuse(self._worker.abandon_runs(), self._answers.unloaded())
                self._answers.report_failure("a run hangs; its thread is left behind")
        self._watch.close()
        self.move(ServableState.END)

    async def _drain(self) -> None:
        """Wait until images still being decoded have joined the queue, then let the worker finish it."""
        while not self._decoding.none.is_set():  # another may have started before this wakes
            await self._decoding.none.wait()
        self._raw.give_back()
        self._closed = True
        if not self._worker.owns:
            self._arm(self._queue)
        self._answers.refuse(self._worker.begin_closing(), self._answers.unloaded())
        await self._worker.closed()

    def _wait(self, ticket: Ticket) -> None:
        """Enqueue a ticket with the queue's owner. Raises RequestError OVERLOADED if the queue is full."""
        if self._closed:
            self._check_held()
            if not self._context.failures.hold(self, ticket):
                raise self._answers.full(self._context.settings.queue_of(self.manifest.name).requests)
            self._arm((ticket,))
            return
        if self._worker.owns:
            displaced = self._worker.offer(ticket)
            self._watch.arm()
            if ticket.request.deadline_ns is not None and displaced is not ticket:
                self._arm((ticket,))
        else:
            displaced = self._queue.offer(ticket)
            self._take_turn()
        if displaced is not None:
            self._displace(displaced, ticket)

    def _take_turn(self) -> None:
        if not self._on_turn:
            self._on_turn = True
            self._batch_pass.add(self)

    def _displace(self, displaced: Ticket, newcomer: Ticket) -> None:
        """Refuse the ticket that lost its place: the newcomer at once, another one later, outside its submit."""
        if displaced is newcomer:
            raise self._answers.full(self.pending)
        asyncio.get_running_loop().call_soon(self._answers.displace, displaced, newcomer, self._queue.policy)

    def _decode(self, ticket: Ticket) -> None:
        displaced = self._decoding.begin(ticket)
        if ticket.request.deadline_ns is not None and displaced is not ticket:
            self._arm((ticket,))
        if displaced is not None:
            self._displace(displaced, ticket)

    def _image_decoded(self, ticket: Ticket, decoded: Future[Decoded]) -> None:
        """Admit decoded images as if they had been sent decoded. Their place is still reserved."""
        if ticket.done:
            return
        try:
            self._context.publish(ImagesDecoded())
            ticket.inputs, ticket.frames, turned = decoded.result()
            self.statistics.images_turned += turned
            ticket.form = self._admission.form(replace(ticket.request, inputs=ticket.inputs))
            self._queue.reserved -= 1
            try:
                self._wait(ticket)
            finally:
                self._queue.reserved += 1
        except RequestError as error:
            self._answers.refuse((ticket,), error)
        except Exception as error:  # noqa: BLE001  a thread's boundary: the caller gets an answer to any error
            self._answers.report_failure(f"decode: {type(error).__name__}: {error}")
            self._answers.refuse((ticket,), RequestError(Fault.INTERNAL, "the image could not be decoded"))

    def _forget(self, ticket: Ticket) -> bool:
        """Free the place of a ticket; return False if its run has begun."""
        return self._decoding.forget(ticket) or (self._worker if self._worker.owns else self._queue).remove(ticket)

    def _arm(self, tickets: Iterable[Ticket]) -> None:
        """Set timers for tickets that wait for a worker: they expire at their deadline, not when their turn comes."""
        for ticket in tickets:
            deadline_ns = ticket.request.deadline_ns
            if deadline_ns is not None and ticket.timer is None:
                ticket.timer = asyncio.get_running_loop().call_at(deadline_ns / 1e9, self._expire, ticket)

    def _expire(self, ticket: Ticket) -> None:
        waited = self._forget(ticket)
        self._answers.refuse((ticket,), self._answers.expired(begun=not waited), "expired" if waited else "")

    def _queue_returned(self) -> None:
        if self._queue.length and not self._worker.owns:
            self._take_turn()

    def _beside_ended(self, ticket: Ticket, ran: Ran | None) -> None:
        if ran is not None and ran.failure:  # the other version answered it: this version's fault
            self.statistics.failed_runs += 1
            self._answers.report_failure(ran.failure)
        ticket.token(ran)

    def _ran(self, ran: Ran) -> None:
        """Answer a run and learn its cost, unless it failed: bad data may end it early."""
        batch, usage = ran.plan.batch, self._usage
        if batch and any(ran.tokens):
            times_ns = batch[0].queued_ns, ran.gathered_ns, ran.first_ns, ran.ran_ns
            self.statistics.texts.add(*ran.tokens, times_ns)
            if (account := batch[0].account) is not None:
                account.texts.left -= sum(ran.tokens)
        if ran.failure and not (ran.by_caller or ran.overlong or ran.parts) and self._taken(ran):
            ran.plan.batch = []
        if batch and usage.cost.limit_ns and not ran.failure:
            self._learn(batch[0].form, ran.cost_ns)
        self._answers.deliver(ran)
        if ran.parts and not any(part.failure for part in ran.parts):
            usage.joined_run_failed(ran.failure)
            self._reprice()
        self.used_ns = now_ns = time.monotonic_ns()
        if now_ns >= usage.retry_ns:
            self._retry(now_ns)

    def _taken(self, ran: Ran) -> bool:
        """Return True if the requests of a run that failed run again. Those of a sequence, and in parts, do not."""
        if ran.shown and ran.away:  # one process served several: its end is one failure, of the run that caused it
            return False
        once = self.declared.sequence is not None or ran.shown
        batch = [] if once else ran.plan.batch
        if not self._context.failures.take(self, ran.failure, batch) or once:
            return False
        if self._context.failures.waits(self):
            self._arm(batch)
        self.statistics.failed_runs += 1
        self._answers.report_failure(ran.failure)
        return True

    def _retry(self, now_ns: int) -> None:
        """Try again what was left after faults. The end of a run leads here: no timer is needed."""
        self._usage.retry(now_ns)
        self._reprice()
