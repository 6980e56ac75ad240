"""A loaded model version: admits requests, queues them for its worker, turns answers into responses, counts it all.

Everything here runs on the loop; only the worker's thread touches the session.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Executor

from gateway.domain.errors import Fault, RequestError
from gateway.domain.events import Publish, RunFailed, ServableChanged
from gateway.domain.infer import InferRequest, InferResponse, RequestedOutput
from gateway.domain.lifecycle import State, advance
from gateway.domain.manifest import ModelManifest, TensorSpec
from gateway.domain.ports import Session
from gateway.domain.postprocess import classify
from gateway.domain.statistics import Placement, ServableStatistics
from gateway.domain.tensor import Array, Datatype, Tensor, Tensors
from gateway.engine.admission import Admitted, admit, encoded_images
from gateway.engine.batching import Answer, Ticket, row_signature
from gateway.engine.images import decode_images
from gateway.engine.settings import EngineSettings
from gateway.engine.worker import Outcome, Worker


class Servable:
    """One version of one model behind one session. Create it on the loop; `close` drains and frees it."""

    def __init__(
        self,
        manifest: ModelManifest,
        placement: Placement,
        session: Session,
        *,
        joined_rows: int,
        settings: EngineSettings,
        decoders: Executor,
        publish: Publish,
        statistics: ServableStatistics | None = None,
    ) -> None:
        self.manifest, self.placement = manifest, placement
        self.statistics = statistics or ServableStatistics(manifest.name, manifest.version)
        self.state = State.START
        self._settings, self._decoders, self._publish = settings, decoders, publish
        self._loop = asyncio.get_running_loop()
        self._preparing = 0
        self._prepared = asyncio.Event()
        self._prepared.set()
        self._worker = Worker(session, manifest, joined_rows, self._deliver, self._loop)
        self.move(State.LOADING)

    def move(self, to: State, reason: str = "") -> None:
        """Go to another state of the table and say so."""
        self.state = advance(self.state, to)
        self._publish(ServableChanged(self.manifest.name, self.manifest.version, to.value, reason))

    @property
    def pending(self) -> int:
        """Requests admitted and not yet taken into a run."""
        return self._worker.waiting + self._preparing

    async def answer(self, request: InferRequest) -> InferResponse:
        """Admit, queue, await the run. Raises RequestError; cancelling abandons the ticket."""
        began_ns = time.monotonic_ns()
        try:
            admitted = admit(request, self.manifest, self._settings.max_batch_rows)
            self._check_room(request)
            answer = await self._run(await self._tensors(admitted), admitted.rows, request.deadline_ns)
            outputs = self._outputs(answer, admitted.outputs)
        except RequestError:
            self.statistics.fail.add(time.monotonic_ns() - began_ns)
            raise
        except asyncio.CancelledError:
            self.statistics.drop("cancelled")
            raise
        self.statistics.ignored_parameters += request.ignored_parameters
        took_ns = time.monotonic_ns() - began_ns
        self.statistics.success.add(took_ns)
        self.statistics.latency.add(took_ns)
        manifest = self.manifest
        return InferResponse(manifest.name, manifest.version, request.id, outputs, self.placement.variant)

    async def close(self, drain_s: float) -> None:
        """Finish the queue (longer than `drain_s`: refuse the rest), then free the session.

        A run that hangs for another `drain_s` is left behind with its thread: nothing in Python can end it.
        """
        self.move(State.UNLOADING)
        closing = asyncio.ensure_future(self._drain())
        _, late = await asyncio.wait({closing}, timeout=drain_s)
        if late:
            self._worker.abandon(self._unloaded())
            _, hanging = await asyncio.wait({closing}, timeout=drain_s)
            if hanging:
                self._leave_behind(closing)
        self.move(State.END)

    def _leave_behind(self, closing: asyncio.Future[None]) -> None:
        closing.cancel()
        manifest, variant = self.manifest, self.placement.variant
        self._publish(RunFailed(manifest.name, manifest.version, variant, "a run hangs; its thread is left behind"))

    async def _drain(self) -> None:
        """Images still being decoded join the queue before it closes."""
        await self._prepared.wait()
        await self._worker.close()

    def _unloaded(self) -> RequestError:
        return RequestError(
            Fault.UNAVAILABLE,
            f"model '{self.manifest.name}' was unloaded",
            retry_after_s=self._settings.retry_after_s,
        )

    def _check_room(self, request: InferRequest) -> None:
        if request.deadline_ns is not None and request.deadline_ns <= time.monotonic_ns():
            self.statistics.drop("expired")
            raise _expired(self.manifest.name)
        if self.pending >= self._settings.queue_requests:
            self.statistics.drop("queue_full")
            raise RequestError(
                Fault.OVERLOADED,
                f"model '{self.manifest.name}' has {self.pending} requests waiting, the most it may; come back later",
                retry_after_s=self._settings.retry_after_s,
            )

    async def _tensors(self, admitted: Admitted) -> Tensors:
        self._preparing += 1
        self._prepared.clear()
        try:
            return {spec.name: await self._array(spec, admitted.tensors[spec.name]) for spec in self.manifest.inputs}
        finally:
            self._preparing -= 1
            if not self._preparing:
                self._prepared.set()

    async def _array(self, spec: TensorSpec, tensor: Tensor) -> Array:
        if not encoded_images(spec, tensor):
            return tensor.array
        return await self._loop.run_in_executor(self._decoders, decode_images, tensor.array, spec, self._settings)

    async def _run(self, inputs: Tensors, rows: int, deadline_ns: int | None) -> Answer:
        future: asyncio.Future[Answer] = self._loop.create_future()
        ticket = Ticket(inputs, rows, future, time.monotonic_ns(), deadline_ns, row_signature(inputs))
        if not self._worker.put(ticket):
            raise self._unloaded()
        timer = None if deadline_ns is None else self._loop.call_at(deadline_ns / 1e9, self._expire, ticket)
        try:
            return await future
        except asyncio.CancelledError:
            self._worker.withdraw(ticket)
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def _expire(self, ticket: Ticket) -> None:
        if not ticket.future.done():
            self.statistics.drop("expired")
            ticket.future.set_exception(_expired(self.manifest.name))
            self._worker.withdraw(ticket)

    def _deliver(self, outcome: Outcome) -> None:
        for ticket in outcome.plan.expired:
            self._expire(ticket)
        if outcome.failure:
            self._fail(outcome)
        for ticket, answer in zip(outcome.plan.batch, outcome.answers, strict=False):
            self._count(answer, ticket.rows)
            if not ticket.future.done():
                ticket.future.set_result(answer)

    def _fail(self, outcome: Outcome) -> None:
        manifest = self.manifest
        error = RequestError(
            Fault.INTERNAL, f"model '{manifest.name}' failed in variant {self.placement.variant}; see the gateway's log"
        )
        for ticket in outcome.plan.batch:
            if not ticket.future.done():
                ticket.future.set_exception(error)
        self._publish(RunFailed(manifest.name, manifest.version, self.placement.variant, outcome.failure))

    def _count(self, answer: Answer, rows: int) -> None:
        counted = self.statistics
        counted.inferences += rows
        counted.queue.add(answer.queue_ns)
        for total, ns in (
            (counted.compute_input, answer.gather_ns),
            (counted.compute_infer, answer.run_ns),
            (counted.compute_output, answer.scatter_ns),
        ):
            total.add(ns)
        if answer.leader:
            counted.executions += 1
            counted.last_inference_ms = time.time_ns() // 1_000_000
            batch = counted.batch(answer.batch_rows)
            batch.compute_input.add(answer.gather_ns)
            batch.compute_infer.add(answer.run_ns)
            batch.compute_output.add(answer.scatter_ns)

    def _outputs(self, answer: Answer, wanted: tuple[RequestedOutput, ...]) -> dict[str, Tensor]:
        return {output.name: self._output(output, answer.outputs[output.name]) for output in wanted}

    def _output(self, wanted: RequestedOutput, array: Array) -> Tensor:
        spec = self.manifest.output(wanted.name)
        datatype = spec.datatype if spec else Datatype.FP32
        if not wanted.classification:
            return Tensor(datatype, array)
        named = classify(array, wanted.classification, self.manifest.labels, batched=self.manifest.batched)
        return Tensor(Datatype.BYTES, named)


def _expired(model: str) -> RequestError:
    return RequestError(Fault.EXPIRED, f"the request's time was over before model '{model}' could run it")
