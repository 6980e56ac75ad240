"""Model with sequences, as Triton has them: each request runs with the state that the one before it left.

The requests of a sequence run one after the other, in the order in which they arrived. Those of different sequences
join like any others: states and controls are rows of inputs and outputs that callers do not see.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest import CONTROLS, CORRID, ROWS, ModelManifest, SequenceBatching, TensorSpec, fits
from gateway.common.domain.statistics import ServableStatistics
from gateway.common.domain.tensor import Array, Datatype, Tensor
from gateway.common.timeouts import wait_for
from gateway.serving.domain.infer import END, OPENS, START, InferRequest, InferResponse, RequestedOutput, SequenceState
from gateway.serving.domain.ports import Sink
from gateway.serving.domain.sizes import request_sizes
from gateway.serving.engine.admission import Admission, Form
from gateway.serving.engine.context import EngineContext
from gateway.serving.engine.cost import Cost
from gateway.serving.engine.quotas import QuotaUse
from gateway.serving.engine.run import Ran
from gateway.serving.engine.servable import Servable, ServableParts
from gateway.serving.engine.streams import STATE_LIMIT_BYTES, RequestRoom, StreamState
from gateway.serving.engine.ticket import Ticket
from gateway.serving.tasks.frame import Frame

ONE_STATE_BYTES = STATE_LIMIT_BYTES // 4
"""Most bytes of the states of one sequence: outputs may grow with each run."""
STATE = "state"


class SequenceServable(Servable):
    """Servable of a model with sequences. `manifest` is what callers see, `declared` what the model has."""

    def __init__(
        self, parts: ServableParts, context: EngineContext, statistics: ServableStatistics | None = None
    ) -> None:
        super().__init__(parts, context, statistics)
        self.tensors = SequenceTensors(parts.manifest, parts.contents)
        self.manifest, settings, self.expired = parts.manifest.seen, context.settings, self._answers.expired
        rows = self.manifest.rows_limit(settings.max_batch_rows)
        self.sizes = request_sizes(self.manifest, rows, settings.request_slack_bytes)
        self._seen = Admission(self.manifest, Cost(), max_batch_rows=rows, forms=settings.forms)
        self.check = self._seen.check
        limits = self.tensors.sequence.limits
        self.streams = context.streams.of(self.tensors.owner, limits)
        queue = settings.queue_of(self.manifest.name)
        self.under_way = RequestRoom[SequenceRequest](f"model '{self.manifest.name}'", queue, settings)

    @property
    def pending(self) -> int:
        """Return the number of requests that wait."""
        return super().pending + sum(entry.waits for entry in self.under_way.passages())

    def rows_together(self, _row_bytes: int) -> int:
        """Implement `RequestTarget.rows_together`: a request of a sequence has one row."""
        return 1

    def raw_batch(self, _request: InferRequest) -> None:
        """Return None: each request has its turn."""

    def ask_beside(
        self,
        inputs: Mapping[str, Tensor],
        form: Form | None,
        ended: Callable[[Ran | None], None],
        frames: Sequence[Frame] = (),
    ) -> bool:
        """Implement `ModelTarget.ask_beside`. Return False for inputs of a caller: their state is not there."""
        return self.tensors.sequence.inputs.keys() <= inputs.keys() and super().ask_beside(inputs, None, ended, frames)

    def submit(
        self,
        request: InferRequest,
        sink: Sink,
        token: Any,
        account: QuotaUse | None = None,
        frames: Sequence[Frame] = (),
    ) -> Ticket:
        """Implement `Submission.submit`. Raises RequestError."""
        now_ns = time.monotonic_ns()
        try:
            request = self._seen.complete(request)
            form = self._seen.form(request)
            self.tensors.check(request, form)
            if request.deadline_ns is not None and request.deadline_ns <= now_ns:
                self.statistics.drop("expired")
                raise self._answers.expired()
            if self._closed:
                self._check_held()
            self.under_way.make_room(request, self.streams, self.statistics, self._displace_request)
        except RequestError:
            self.statistics.fail.add(time.monotonic_ns() - now_ns)
            raise
        ticket = Ticket(request, form, request.inputs, sink, token, self, now_ns, account, frames)
        entry = ticket.home = SequenceRequest(self, ticket)
        self.under_way.add(ticket, entry)
        entry.enter()
        return ticket

    def _displace_request(self, entry: SequenceRequest, error: RequestError) -> None:
        if not entry.ticket.done:
            entry.fail(error, "share")

    def run(self, entry: SequenceRequest, state: SequenceState) -> Ticket:
        """Queue a request whose turn it is. Raises RequestError."""
        request, tensors = entry.ticket.request, self.tensors
        wanted = request.outputs or tuple(RequestedOutput(output.name) for output in entry.ticket.form.outputs)
        inputs = {**request.inputs, **tensors.inputs(request, state)}
        full = replace(request, inputs=inputs, outputs=(*wanted, *tensors.outputs), place=0, state=None)
        return super().submit(full, entry, None, None, entry.ticket.frames)

    def withdraw(self, ticket: Ticket) -> None:
        """Take a request out of the queue, or leave the rest of its run to others."""
        ticket.end()
        self._forget(ticket)

    async def close(self, drain_s: float) -> None:
        """Finish the requests that wait for their turn, then do as `Servable.close`."""
        until_s = time.monotonic() + drain_s
        with suppress(TimeoutError):
            await wait_for(self.under_way.none.wait(), drain_s)
        for entry in self.under_way.passages():
            if entry.waits:
                entry.fail(self._answers.unloaded())
        await super().close(max(until_s - time.monotonic(), min(drain_s, 1.0)))


class SequenceTensors:
    """Inputs and outputs of a model with sequences that callers do not see.

    `owner` of its states is equal for those that may go on with them: the same release, or a version that says so.
    """

    def __init__(self, manifest: ModelManifest, contents: tuple[str, ...]) -> None:
        self.sequence, self._name = manifest.sequence or SequenceBatching(), manifest.name
        specs = {spec.name: spec for spec in manifest.inputs}
        self.outputs = tuple(RequestedOutput(state.output) for state in self.sequence.states)
        self._states = [(state, specs[state.input]) for state in self.sequence.states]
        self._controls = [(each, specs[each.input]) for each in self.sequence.controls]
        self._batched = manifest.batched
        form = tuple((state.input, spec.datatype, spec.shape) for state, spec in self._states)
        own = (str(form),) if self.sequence.keep_state else (manifest.version, *contents)
        self.owner = manifest.name, *own
        self._first = {state.input: _filled(spec, state.initial) for state, spec in self._states}
        pairs = [(each, spec) for each, spec in self._controls if each.kind != CORRID]
        self._flags = {each.input: [_filled(spec, value) for value in each.false_true] for each, spec in pairs}

    def check(self, request: InferRequest, form: Form) -> None:
        """Refuse what belongs to no sequence. Raises RequestError INVALID, in Triton's words."""
        what = f"inference request to model '{self._name}' must specify"
        if form.rows > 1:
            raise RequestError(Fault.INVALID, f"{what} batch-size 1 due to requirements of sequence batcher")
        if request.state is not None:
            return
        if not request.stream:
            raise RequestError(Fault.INVALID, f"{what} a non-zero or non-empty correlation ID")
        for control, spec in self._controls:
            if control.kind == CORRID and spec.datatype is not Datatype.BYTES:
                self._number(request.stream, spec)

    def unknown(self, request: InferRequest) -> RequestError:
        """Return the refusal of a request without START, of a sequence that is not there."""
        what = f"inference request for sequence {request.stream} to model '{self._name}'"
        words = "must specify the START flag on the first request of the sequence"
        return RequestError(Fault.INVALID, f"{what} {words}")

    def inputs(self, request: InferRequest, state: SequenceState) -> dict[str, Tensor]:
        """Return the states and controls of a request. A state of another owner is none."""
        begins = state.owner != self.owner or bool(request.place & START)
        if begins:
            found = dict(self._first)
        else:
            found = {each.input: Tensor(spec.datatype, state.tensors[each.input]) for each, spec in self._states}
        facts = dict(zip(CONTROLS, (begins, bool(request.place & END), True), strict=False))  # each row is ready
        for control, spec in self._controls:
            if control.kind == CORRID:
                is_text = spec.datatype is Datatype.BYTES
                value = request.stream.encode() if is_text else self._number(request.stream, spec)
                found[control.input] = _filled(spec, value)
            else:
                found[control.input] = self._flags[control.input][facts[control.kind]]
        return found

    def next(self, response: InferResponse) -> SequenceState:
        """Take the state out of an answer. Raises RequestError if the model cannot go on with it."""
        found, size = dict[str, Array](), 0
        for state, spec in self._states:
            array = response.outputs.pop(state.output).array
            if not fits(array.shape, (1, *spec.shape[1:]) if self._batched else spec.shape):
                words = f"its state '{state.output}' has the shape {list(array.shape)}, expected {list(spec.shape)}"
                raise RequestError(Fault.INTERNAL, f"model '{self._name}': {words}")
            size += array.nbytes
            if size > ONE_STATE_BYTES:
                words = f"its state has {size} bytes with '{state.output}', at most {ONE_STATE_BYTES} are kept"
                raise RequestError(Fault.TOO_LARGE, f"model '{self._name}': {words}; end the sequence earlier")
            # A row of a run for many would keep the whole run in memory.
            found[state.input] = array if array.base is None else array.copy()
        return SequenceState(self.owner, found)

    def _number(self, stream: str, spec: TensorSpec) -> int:
        bounds = np.iinfo(spec.datatype.dtype)
        if not stream.removeprefix("-").isdecimal() or not bounds.min <= int(stream) <= bounds.max:
            what = f"model '{self._name}' needs a sequence_id that is a number of {spec.datatype.label}"
            raise RequestError(Fault.INVALID, f"{what}, not '{stream:.80}'")
        return int(stream)


def _filled(spec: TensorSpec, value: float | bytes) -> Tensor:
    """Return a tensor of one row with one value; open sizes are 1, as in Triton."""
    array = np.full([1 if size == ROWS else size for size in spec.shape], value, spec.datatype.dtype)
    array.flags.writeable = False  # requests share it
    return Tensor(spec.datatype, array)


class SequenceRequest:
    """Request of a sequence: it has its turn, runs with the state, and leaves the next one.

    It is the sink of its run, and equals the caller's, so that a run with answers for several flushes once.
    """

    __slots__ = ("_home", "_pending", "_sink", "_stream", "ticket", "waits")

    def __init__(self, home: SequenceServable, ticket: Ticket) -> None:
        self._home, self.ticket, self._sink, self.waits = home, ticket, ticket.sink, True
        self._pending: Ticket | None = None
        self._stream: StreamState | None = None

    def __eq__(self, other: object) -> bool:
        return self._sink == (other._sink if isinstance(other, SequenceRequest) else other)

    def __hash__(self) -> int:
        return hash(self._sink)

    def enter(self) -> None:
        """Join the line of its sequence, and run if it is the first one. Raises RequestError if it cannot."""
        request, is_first = self.ticket.request, True
        if request.state is None:
            self._stream = self._home.streams.join(self)
            is_first = self._stream.line[0] is self
        if is_first:
            try:
                self._run()
            except RequestError:
                self.ticket.account = None  # it was not submitted: its sender counts
                self._end()
                raise
        elif request.deadline_ns is not None:
            self.ticket.timer = asyncio.get_running_loop().call_at(request.deadline_ns / 1e9, self._expire)

    def grant(self, stream: StreamState) -> None:
        """Implement `InLine.grant`."""

    def advance(self) -> None:
        """Implement `InLine.advance`: its turn has begun."""
        if not self.ticket.done:
            try:
                self._run()
            except RequestError as error:
                self.refuse(None, error)
                self.flush()

    def _run(self) -> None:
        request, state = self.ticket.request, self.ticket.request.state
        if self._stream is not None:
            state = self._stream.states.get(STATE)
            if state is None and not request.place & (START | OPENS):
                self._home.statistics.fail.add(time.monotonic_ns() - self.ticket.queued_ns)
                raise self._home.tensors.unknown(request)
        if self.ticket.timer is not None:  # its run has one
            self.ticket.timer.cancel()
        self.waits, self._pending = False, self._home.run(self, state or SequenceState())

    def part(self, _token: Any, response: InferResponse) -> None:
        """Implement `Sink.part`: models with sequences give none."""

    def answer(self, _token: Any, response: InferResponse) -> None:
        """Implement `Sink.answer`."""
        try:
            state = self._home.tensors.next(response)
            if self._stream is None:
                response.state = state
            else:
                ends = self.ticket.request.place & END
                self._home.streams.keep(self._stream, {} if ends else {STATE: state})
        except RequestError as error:
            self.refuse(None, error)
            return
        self._end()
        self._sink.answer(self.ticket.token, response)

    def refuse(self, _token: Any, error: RequestError) -> None:
        """Implement `Sink.refuse`: the state is that before the run."""
        self._end()
        self._sink.refuse(self.ticket.token, error)

    def flush(self) -> None:
        """Implement `Sink.flush`."""
        self._sink.flush()

    def fail(self, error: RequestError, reason: str = "") -> None:
        """Refuse a request, whatever it waits for. `reason`: of a drop."""
        if self._pending is not None:
            self._home.withdraw(self._pending)
        if reason:
            self._home.statistics.drop(reason)
        self._home.statistics.fail.add(time.monotonic_ns() - self.ticket.queued_ns)
        self.refuse(None, error)
        self.flush()

    def leave(self, ticket: Ticket) -> None:
        """Implement `TicketOwner.leave`: its caller cancelled it."""
        if self._pending is not None:
            self._pending.cancel()
        else:
            self._home.statistics.abandoned(time.monotonic_ns() - ticket.queued_ns)
        self._end()

    def _expire(self) -> None:
        if not self.ticket.done:
            self.fail(self._home.expired(), "expired")

    def _end(self) -> None:
        if not self.ticket.done:
            self.ticket.end()
        self._home.under_way.remove(self.ticket)
        # What is pending holds this request, and so does its ticket: they would wait for a search for garbage.
        self._pending, self.ticket.home = None, self._home
        if (stream := self._stream) is not None:
            self._stream = None
            self._home.streams.leave(stream, self)
