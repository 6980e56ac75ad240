"""Several versions of one model that share its requests, and the shadow version whose answers are compared.

A split replaces a target in the routes only while several versions share, so that other models pay nothing for it. A
shadow runs the same requests again, at no cost for callers: a caller has its answer before the shadow gets the request.
The shadow runs it on its worker's thread, only while nothing else is under way there and the device's threads are idle.
Other requests are skipped, and counted by reason.
"""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any

from gateway.common.domain.errors import RequestError
from gateway.common.domain.manifest import ModelManifest
from gateway.common.domain.pipeline import keeps_state
from gateway.common.domain.tensor import Array, Tensor, Tensors
from gateway.serving.domain.infer import InferRequest, InferResponse
from gateway.serving.domain.ports import Pending, Sink
from gateway.serving.domain.sharing import Comparison, WeightedRoundRobin, main_version
from gateway.serving.engine.quotas import QuotaUse
from gateway.serving.engine.run import Ran
from gateway.serving.engine.target import ModelTarget
from gateway.serving.engine.ticket import Ticket
from gateway.serving.tasks.frame import Frame

ROUTED = "routed"
"""Mark among the contents of versions that take turns."""


class Split:
    """Versions of a model that take `turns`. `shadow`, if there is one, gets requests that another version answered.

    Manifest, placement and statistics of the model are those of the version with most weight.
    """

    def __init__(
        self, servables: Mapping[str, ModelTarget], turns: WeightedRoundRobin, shadow: ModelTarget | None
    ) -> None:
        self._main = main = servables[main_version(turns.weights)]
        self.manifest, self.placement, self.statistics = main.manifest, main.placement, main.statistics
        self._servables, self._turns, self._by_stream = servables, turns, keeps_state(main.manifest)
        self._shadow = None if shadow is None else Shadow(shadow)

    @property
    def contents(self) -> tuple[str, ...]:
        """Implement `RequestTarget.contents`: those of each version, after ROUTED if they are several."""
        found = [each for version in sorted(self._servables) for each in self._servables[version].contents]
        return (ROUTED, *found) if len(self._servables) > 1 else tuple(found)

    @property
    def refusal(self) -> str:
        """Implement `RequestTarget.refusal`: "" unless every version refuses."""
        return min(each.refusal for each in self._servables.values())

    @property
    def ready(self) -> bool:
        """Implement `RequestTarget.ready`: whether a version is."""
        return any(each.ready for each in self._servables.values())

    def check(self, request: InferRequest) -> None:
        """Implement `Inference.check`: refuse a request that every version refuses."""
        refusal: RequestError | None = None
        for servable in self._servables.values():
            try:
                servable.check(request)
            except RequestError as error:
                refusal = refusal or error
            else:
                return
        if refusal is not None:
            raise refusal

    def narrowed(self, fits: Callable[[ModelManifest], bool]) -> Split:
        """Return the versions whose manifest fits; turns of others are the main version's, which must fit."""
        fitting = {version: each for version, each in self._servables.items() if fits(each.manifest)}
        if len(fitting) == len(self._servables):
            return self
        narrowed = copy(self)
        narrowed._servables = fitting
        return narrowed

    def rows_together(self, row_bytes: int) -> int:
        """Implement `RequestTarget.rows_together`: what suits every version."""
        return min(servable.rows_together(row_bytes) for servable in self._servables.values())

    def raw_batch(self, _request: InferRequest) -> None:
        """Return None: each request has its turn."""

    def submit(
        self,
        request: InferRequest,
        sink: Sink,
        token: Any,
        account: QuotaUse | None = None,
        frames: Sequence[Frame] = (),
    ) -> Pending:
        """Implement `Submission.submit`: pass the request to the version whose turn it is.

        Requests of a stream go to the same version of a pipeline with state, or of a model with sequences.
        """
        version = self._turns.of(f"{request.caller}/{request.stream}") if self._by_stream else self._turns.next()
        servable, shadow = self._servables.get(version, self._main), self._shadow
        if shadow is None or shadow.servable is servable or request.in_parts:  # whose answer is not whole
            return servable.submit(request, sink, token, account, frames)
        return shadow.submit(servable, request, sink, token, account=account, frames=frames)


class Shadow:
    """Comparison of `servable` with the versions that answer. One request at a time; others are skipped."""

    def __init__(self, servable: ModelTarget) -> None:
        self.servable = servable
        self._counted = servable.statistics.shadow
        self._loop = asyncio.get_running_loop()
        self._asking = False

    def submit(
        self,
        servable: ModelTarget,
        request: InferRequest,
        sink: Sink,
        token: Any,
        *,
        account: QuotaUse | None,
        frames: Sequence[Frame],
    ) -> Ticket:
        """Submit a request to another version, and watch for its answer. Raises as `ModelTarget.submit` does."""
        tap = _Tap(self, servable, sink)
        tap.ticket = servable.submit(request, tap, token, account, frames)
        return tap.ticket

    def answered(self, by: ModelTarget, ticket: Ticket, response: InferResponse) -> None:
        """Receive an answer that its caller already has. Returns at once: other callers of the run wait for theirs."""
        if self._asking:
            self._counted.skip("busy")
        else:
            self._asking = True
            self._loop.call_soon(self._ask, by, ticket, response)

    def _ask(self, by: ModelTarget, ticket: Ticket, response: InferResponse) -> None:
        alike = by.manifest.inputs == self.servable.manifest.inputs
        if reason := "sequence" if self.servable.manifest.sequence else _unfit(ticket, alike=alike):
            self._skip(reason)
            return
        document = by.manifest.answered[:1]  # JSON of the task's tensors, which are compared as tensors
        answers = {name: tensor.array for name, tensor in response.outputs.items() if name not in document}
        if not answers:
            self._skip("result")
            return
        ended = partial(self._ran, answers=answers, rows=ticket.form.rows)
        try:
            if not self.servable.ask_beside(ticket.inputs, ticket.form if alike else None, ended, ticket.frames):
                self._skip("busy")
        except RequestError:
            self._skip("refused")

    def _ran(self, ran: Ran | None, answers: Tensors, rows: int) -> None:
        if ran is None or ran.failure:
            self._skip("busy" if ran is None else "failed")
            return
        results = ran.results[0] if ran.results else None  # those of the model's task are compared as well
        outputs = {**ran.outputs, **results} if isinstance(results, Mapping) else ran.outputs
        if self.servable.comparing.begin(answers, outputs, rows, self._compared):
            self._asking = False
        else:
            self._skip("pending")

    def _compared(self, found: Comparison | None) -> None:
        if found is None:
            self._counted.skip("unlike")
        else:
            self._counted.count(found.rows, found.disagreed, found.mean_abs)

    def _skip(self, reason: str) -> None:
        self._asking = False
        self._counted.skip(reason)


class _Tap:
    """Sink that forwards everything to the caller's own sink first.

    It equals that sink, so that a run with answers for both flushes once.
    """

    __slots__ = ("_by", "_shadow", "_sink", "ticket")

    def __init__(self, shadow: Shadow, by: ModelTarget, sink: Sink) -> None:
        self._shadow, self._by, self._sink = shadow, by, sink
        self.ticket: Ticket | None = None

    def __eq__(self, other: object) -> bool:
        return self._sink is (other._sink if isinstance(other, _Tap) else other)

    def __hash__(self) -> int:
        return hash(self._sink)

    def part(self, token: Any, response: InferResponse) -> None:
        """Implement `Sink.part`."""
        self._sink.part(token, response)

    def answer(self, token: Any, response: InferResponse) -> None:
        """Implement `Sink.answer`."""
        self._sink.answer(token, response)
        if self.ticket is not None:
            self._shadow.answered(self._by, self.ticket, response)

    def refuse(self, token: Any, error: RequestError) -> None:
        """Implement `Sink.refuse`."""
        self._sink.refuse(token, error)

    def flush(self) -> None:
        """Implement `Sink.flush`."""
        self._sink.flush()


def _unfit(ticket: Ticket, *, alike: bool) -> str:
    """Return why a request cannot be repeated, or "".

    Images are not decoded twice: the decoded images of one version serve the other if both take the `alike` inputs.
    """
    if any(output.classification for output in ticket.form.outputs):
        return "classification"
    if ticket.inputs is not ticket.request.inputs:
        return "" if alike else "encoded"
    if ticket.form.encoded:  # it waited until its version was open, whose own ticket has the decoded images
        return "encoded"
    return "shared_memory" if is_shared(ticket.inputs) else ""


def is_shared(inputs: Mapping[str, Tensor]) -> bool:
    """Return True if an input is in its caller's memory, whose contents may change."""
    return any(isinstance(_owner(tensor.array), mmap.mmap) for tensor in inputs.values())


def _owner(array: Array) -> object:
    """Return the owner of the memory that an array is a view of, or None if it is numpy's."""
    base = array.base
    while base is not None and hasattr(base, "base"):
        base = base.base
    return base.obj if isinstance(base, memoryview) else base
